"""Where we refuse, and where a reference makes something else of an image than we do, and why we do so.

Every case that is not named here gives the same tree in all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REFUSED = "refused"
ACCEPTED = "accepted"
Differing = Mapping[str, str]


@dataclass(frozen=True)
class Deviation:
    """`refused` is how our message goes on behind the layer; None when we accept.

    `umoci` and `containerd`: REFUSED, ACCEPTED (what we refuse), or path to fields that differ.
    `holds`: what our tree has where no reference can vouch for it.
    """

    why: str
    refused: str | None = None
    umoci: Differing | str = field(default_factory=dict)
    containerd: Differing | str = field(default_factory=dict)
    holds: Mapping[str, str] = field(default_factory=dict)


def refused(message: str, why: str = "nothing sensible can be made of it") -> Deviation:
    """All three refuse."""
    return Deviation(why, message)


def refused_by_us(message: str, why: str) -> Deviation:
    return Deviation(why, message, ACCEPTED, ACCEPTED)


_ORDER = "the specification: a whiteout never hides what its own layer brings; containerd goes by the order"
_FORWARD = "the layer says what it means, only later; GNU tar's own order is free with `--delete` and `-r`"
_ROOT = "the tar says what the root is; containerd passes over its entry"
_LINK = "as umoci and GNU tar: the inode has the metadata of its first name; containerd takes the last one's"
_BEFORE_1970 = "the tar is exact; containerd puts every time before 1970 to 1970"
_OUT = "an archive that tries to leave its root is not to be trusted; umoci and containerd bend the name back"
_OWN_ENTRY = "a file may not be the root; containerd passes over it"
_NO_USER = "Linux has no such owner, and chown takes -1 for `as it is`: the references leave root as owner"
_NO_DEVICE = "Linux has no such device; the references cut the number down to another device"
_POSIX = "POSIX, GNU tar and bsdtar; umoci refuses the type, containerd makes a file of the record"
_GNU = "GNU tar writes it and reads it; umoci and containerd do not know the type"
_CUT = "the archive is cut where a file was announced"
_BELOW = "overlayfs, containerd's own way of mounting, shows the upper folder; only copying unpackers fail"

DEVIATIONS: dict[str, Deviation] = {
    # whiteouts and replacement
    "a symlink to nothing replaces a folder of the same layer": Deviation(
        "containerd sets the folder's time in the end and meets the symlink",
        containerd=REFUSED,
        holds={"x": "-> nowhere"},
    ),
    "a whiteout in a folder that is not there": Deviation(
        "nothing to hide, nothing to make; containerd makes the parents of a whiteout",
        containerd={"x": "extra", "x/y": "extra"},
    ),
    "a whiteout below a file": Deviation(
        "umoci writes it when a file replaces a folder; there is nothing to hide", containerd=REFUSED
    ),
    "a whiteout after the file that the same layer adds again": Deviation(
        _ORDER, containerd={"d/a": "missing"}
    ),
    "a whiteout after the folder that the same layer adds again": Deviation(_ORDER, containerd=REFUSED),
    "a whiteout after a file below the folder that it hides": Deviation(
        _ORDER, containerd={"d": "missing", "d/new": "missing"}
    ),
    "a whiteout in the lowest layer": Deviation(
        "containerd makes the parents of a whiteout", containerd={"b": "extra"}
    ),
    "a whiteout in a folder hidden by the same layer": Deviation(
        "containerd makes the parents of a whiteout", containerd={"d": "extra"}
    ),
    "a bare whiteout is refused": refused("`d/.wh.` is a whiteout of nothing"),
    "a bare whiteout in the root is refused": refused("`.wh.` is a whiteout of nothing"),
    "a whiteout of `.` is refused": refused("`d/.wh..` is a whiteout of nothing"),
    "a whiteout of `..` is refused": refused("`d/.wh...` is a whiteout of nothing"),
    "an opaque marker in a folder that is not there": Deviation(
        "containerd makes the parents of a whiteout", containerd={"x": "extra"}
    ),
    "an opaque marker after files in subfolders that both have": Deviation(
        "the lower subfolder is hidden, so its mode is too; containerd hides even the layer's own files",
        umoci={"d/s": "mode"},
        containerd={"d/s": "missing", "d/s/new": "missing"},
    ),
    "AUFS leftovers are left out": Deviation(
        "as Docker: they belong to a file system that nobody has any more; they are counted in the report",
        umoci={".wh..wh.plnk": "extra", ".wh..wh.plnk/1.2": "extra"},
        containerd={".wh..wh.plnk": "extra", ".wh..wh.plnk/1.2": "extra"},
    ),
    "a hard link to an AUFS leftover": Deviation(
        "as Docker: the file is found, its name under `.wh..wh.plnk` is not kept",
        umoci={".wh..wh.plnk": "extra", ".wh..wh.plnk/1.2": "extra", "a": "links group"},
        containerd={".wh..wh.plnk": "extra", ".wh..wh.plnk/1.2": "extra", "a": "links group"},
    ),
    "a folder met again gives up its xattrs": Deviation(
        "the upper entry is all there is; containerd's copying snapshotter adds to the old ones",
        containerd={"d": "xattrs"},
    ),
    "a file below what is a file in a lower layer": Deviation(
        _BELOW, umoci=REFUSED, containerd=REFUSED, holds={"top": "folder", "top/x": "1"}
    ),
    "a file below what is a file in the same layer": refused("`a` has something below it and is no folder"),
    "an upper layer changes the root's own metadata": Deviation(_ROOT, containerd={"/": "mode uid gid"}),
    # hard links
    "a hard link before its target": Deviation(
        _FORWARD, umoci=REFUSED, containerd=REFUSED, holds={"a": "1", "b": "same as a"}
    ),
    "a chain of hard links, each before its target": Deviation(
        _FORWARD,
        umoci=REFUSED,
        containerd=REFUSED,
        holds={"a": "1", "b": "same as a", "c": "same as a"},
    ),
    "a hard link before a target that is met twice": Deviation(
        _FORWARD, umoci=REFUSED, containerd=REFUSED, holds={"a": "22", "b": "same as a"}
    ),
    "a hard link before its target, replaced before the target comes": Deviation(
        _FORWARD, umoci=REFUSED, containerd=REFUSED, holds={"a": "1", "b": "own"}
    ),
    "a hard link to a target that the layer hid before": refused(
        "`b` is a hard link to `a`, which is not there"
    ),
    "a hard link to itself that is there already": Deviation(
        "GNU tar writes it when a file is named twice; the references remove the file first",
        umoci=REFUSED,
        containerd=REFUSED,
        holds={"a": "1"},
    ),
    "a hard link to itself that is not there is refused": refused(
        "`a` is a hard link to `a`, which is not there"
    ),
    "two hard links to each other are refused": refused("`a` is a hard link to `b`, which is not there"),
    "a hard link to nothing is refused": refused("`a` is a hard link to `nothing`, which is not there"),
    "a hard link to a folder is refused": refused("`a` is a hard link to the folder `d`"),
    "a hard link to the root is refused": refused("`a` is a hard link to the folder `/`"),
    "a hard link without a target is refused": refused("`a` is a hard link to the folder `/`"),
    "a hard link out of the root is refused": refused("`../../etc/passwd` leaves the root"),
    "a hard link whose member has other metadata": Deviation(
        _LINK, containerd={"a": "mode uid mtime_ns", "b": "mode uid mtime_ns"}
    ),
    "a hard link whose member has xattrs": Deviation(_LINK, containerd={"a": "xattrs", "b": "xattrs"}),
    "a hard link to a symlink whose member has other metadata": Deviation(
        _LINK, containerd={"l": "uid mtime_ns", "s": "uid mtime_ns"}
    ),
    # parents and names
    "a file below a symlink to a file": Deviation(
        _BELOW, umoci=REFUSED, containerd=REFUSED, holds={"f": "folder", "f/x": "1", "l": "-> f"}
    ),
    "a file below a symlink to itself is refused": refused("`l` leads through a loop of symlinks"),
    "a file below a loop of symlinks is refused": refused("`a` leads through a loop of symlinks"),
    "a name that leaves the root is refused": refused_by_us(
        "`../coldstart-conformance` leaves the root", _OUT
    ),
    "a name that leaves the root in its middle is refused": refused_by_us(
        "`a/../../coldstart-conformance` leaves the root", _OUT
    ),
    "an absolute name that leaves the root is refused": refused_by_us(
        "`/../coldstart-conformance` leaves the root", _OUT
    ),
    "a file without a name is refused": Deviation(
        _OWN_ENTRY, "`` is the root and no folder", containerd=ACCEPTED
    ),
    "a folder without a name is the root": Deviation(_ROOT, containerd={"/": "mode"}),
    "a file named `.` is refused": Deviation(
        _OWN_ENTRY, "`.` is the root and no folder", containerd=ACCEPTED
    ),
    "a symlink named `./` is refused": Deviation(
        _OWN_ENTRY, "`./` is the root and no folder", containerd=ACCEPTED
    ),
    "a folder named `/` is the root": Deviation(_ROOT, containerd={"/": "mode uid"}),
    "a folder named `.` is the root": Deviation(_ROOT, containerd={"/": "mode uid"}),
    "a folder named `a/..` is the root": Deviation(_ROOT, containerd={"/": "mode uid"}),
    "a component of 256 bytes is refused": refused("`n+...` has a component of more than 255 bytes"),
    "a component of 256 bytes in the middle is refused": refused(
        "`d/n+...` has a component of more than 255 bytes"
    ),
    "a name of 5,000 bytes is refused": refused("`d+/d+/...` has more than 4095 bytes"),
    "a symlink target of 4,096 bytes is refused": refused("`s` is a symlink without a usable target"),
    "a symlink without a target is refused": refused("`s` is a symlink without a usable target"),
    # metadata
    "a device with a major number that Linux lacks is refused": refused_by_us(
        "`c`: its device number is out of range: 4096:0", _NO_DEVICE
    ),
    "a device with a minor number that Linux lacks is refused": refused_by_us(
        "`c`: its device number is out of range: 1:1048576", _NO_DEVICE
    ),
    "a device with a negative number is refused": refused_by_us(
        "`c`: its device number is out of range: -1:3", _NO_DEVICE
    ),
    "the owner -1 is refused": refused_by_us("`f`: its uid is out of range: 4294967295", _NO_USER),
    "a negative owner is refused": refused_by_us("`f`: its uid is out of range: -1", _NO_USER),
    "an owner above 2^32 is refused": refused_by_us("`f`: its uid is out of range: 4294967296", _NO_USER),
    "times before 1970 as PAX": Deviation(_BEFORE_1970, containerd={"f": "mtime_ns"}),
    "times before 1970 in base-256": Deviation(_BEFORE_1970, containerd={"f": "mtime_ns"}),
    "a time that is not a number is refused": refused("`f`: its mtime is not a number"),
    "an empty xattr": Deviation("an empty value is a value; umoci loses it", umoci={"f": "xattrs"}),
    "an xattr of the root": Deviation(_ROOT, containerd={"/": "xattrs"}),
    "trusted xattrs of any file type": Deviation(
        "as umoci: the tar says so; containerd leaves out all that is `trusted.`",
        containerd={"f": "xattrs", "p": "xattrs", "s": "xattrs"},
    ),
    "user xattrs of a symlink are left out": Deviation(
        "as containerd: Linux has none there; counted in the report", umoci=REFUSED
    ),
    "user xattrs of a FIFO are left out": Deviation(
        "as containerd: Linux has none there; counted in the report", umoci=REFUSED
    ),
    "user xattrs of a device are left out": Deviation(
        "as containerd: Linux has none there; counted in the report", umoci=REFUSED
    ),
    "security.selinux as an xattr": Deviation(
        "as containerd: the tar says so; umoci leaves labels to the host", umoci={"f": "xattrs"}
    ),
    "files in a folder with a default access control list": Deviation(
        "the tar gives them none; with containerd they inherit it while they are unpacked",
        containerd={"d/e": "xattrs", "d/f": "xattrs"},
    ),
    "an xattr without a name": refused("`f` has an xattr with a name of 0 bytes"),
    "an xattr with a name of 256 bytes is refused": refused("`f` has an xattr with a name of 256 bytes"),
    "an xattr of 64 KiB and one byte is refused": refused("`f` has an xattr of 65537 bytes"),
    # archives
    "contiguous files, type 7": Deviation(
        "POSIX: a file for all who do not know better; the references do not know the type",
        umoci=REFUSED,
        containerd=REFUSED,
        holds={"f": "123"},
    ),
    "PAX records for all that follow": Deviation(
        _POSIX, umoci=REFUSED, containerd={"PaxHeaders": "extra", "f": "uid mtime_ns", "g": "mtime_ns"}
    ),
    "a PAX comment for all that follow": Deviation(_POSIX, umoci=REFUSED, containerd={"PaxHeaders": "extra"}),
    "PAX xattrs for all that follow": Deviation(
        _POSIX, umoci=REFUSED, containerd={"PaxHeaders": "extra", "f": "xattrs"}
    ),
    "a PAX record without `=` is refused": refused("at or behind `./`: an extended header cannot be read"),
    "a PAX record with a wrong length is refused": refused(
        "at or behind `./`: an extended header cannot be read"
    ),
    "a PAX record with the length 0 is refused": refused(
        "at or behind `./`: an extended header cannot be read"
    ),
    "a PAX record with a signed length is refused": refused(
        "at or behind `./`: an extended header cannot be read"
    ),
    "a PAX name with a zero byte is refused": refused("`a\0b`: its name holds a zero byte"),
    "an extended header with nothing after it is refused": refused_by_us(
        "at or behind `./`: it ends after an extended header", _CUT
    ),
    "an extended header that claims gigabytes is refused": refused(
        "at or behind `./`: an extended header has 4294967296 bytes, the most is 8388608"
    ),
    "a GNU name that claims gigabytes is refused": refused(
        "at or behind `./`: an extended header has 4294967296 bytes, the most is 8388608"
    ),
    "an unknown type is refused": refused("`odd`: its type b'Z' is unknown"),
    "a GNU volume header is passed over": Deviation(
        _GNU, umoci=REFUSED, containerd=REFUSED, holds={"f": "1"}
    ),
    "a GNU dump folder is refused": refused("`d/`: its type b'D' is unknown"),
    "a negative size is refused": refused("`f`: its size is negative"),
    "a size of 2^63 is refused": refused("`f`: its size is 9223372036854775808, the most is 2199023255552"),
    "a PAX size of 2^63 is refused": refused(
        "`f`: its size is 9223372036854775808, the most is 2199023255552"
    ),
    "a PAX size below zero is refused": refused("`f`: its size is not a number"),
    "a size that is not there is refused": refused("`f`: it ends inside of the file"),
    "a size with digits that are not octal is refused": refused("`f`: its size is not a number"),
    "a size with a sign is refused": refused("`f`: its size is not a number"),
    "a size with a prefix of a programming language is refused": refused("`f`: its size is not a number"),
    "a size with an underscore is refused": refused("`f`: its size is not a number"),
    "a mode with a sign is refused": refused("`f`: its mode is not a number"),
    "old GNU sparse": Deviation(_GNU, umoci=REFUSED, containerd=REFUSED, holds={"g": "1"}),
    "old GNU sparse with a continued map": Deviation(
        _GNU, umoci=REFUSED, containerd=REFUSED, holds={"g": "1"}
    ),
    "old GNU sparse that is one hole": Deviation(_GNU, umoci=REFUSED, containerd=REFUSED, holds={"g": "1"}),
    "a sparse map that overlaps is refused": refused("`f`: its sparse map cannot be right"),
    "a sparse map that goes beyond the size is refused": refused("`f`: its sparse map cannot be right"),
    "a sparse map with an odd number of numbers is refused": refused("`f`: its sparse map cannot be right"),
    "a sparse map that does not fit its data is refused": refused(
        "`f`: its sparse map does not fit its data"
    ),
    "a sparse map that claims more entries than there are is refused": refused(
        "`x`: its sparse map is cut short"
    ),
    "an unknown version of sparse files is refused": refused_by_us(
        "`x`: its sparse format b'2' is unknown", "the content would be the map and not the file"
    ),
    "one zero block in the middle is refused": refused(
        "at or behind `f`: members follow after a single zero block"
    ),
    "half an end block": refused("at or behind `f`: it ends inside of a header"),
    "an archive that ends in a header is refused": refused("at or behind `./`: it ends inside of a header"),
    "an archive that ends in a file is refused": refused("`f`: it ends inside of the file"),
    "a damaged header is refused": refused("at or behind `./`: a header's checksum is wrong"),
}
