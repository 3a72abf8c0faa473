"""Modes, owners, times, devices, xattrs and access control lists."""

from __future__ import annotations

from fs.conformance.case import case
from fs.conformance.raw_tar import GNU, RawTar, base_256

CAPABILITY = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
# version 2; user::rw-, user:1000:r--, group::r--, mask::r--, other::r--
ACL = bytes.fromhex(
    "02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000400ffffffff"
)
FOLDER_ACL = bytes.fromhex(
    "02000000 01000700ffffffff 02000700e8030000 04000500ffffffff 10000700ffffffff 20000700ffffffff"
)
DEFAULT_ACL = bytes.fromhex(
    "02000000 01000700ffffffff 02000500e8030000 04000500ffffffff 10000500ffffffff 20000500ffffffff"
)
ACL_TEXT = b"user::rw-\nuser:1000:r--\ngroup::r--\nmask::r--\nother::r--\n"


def _root() -> RawTar:
    return RawTar().folder(b"./")


MODES = [
    case(
        "setuid, setgid and sticky bits",
        _root()
        .file(b"u", b"1", mode=0o4755)
        .file(b"g", b"1", mode=0o2755)
        .folder(b"t", mode=0o1777)
        .folder(b"s", mode=0o2775, gid=50),
    ),
    case(
        "setuid bits of files that are not root's", _root().file(b"u", b"1", mode=0o6755, uid=1000, gid=1000)
    ),
    case("modes without any bit", _root().file(b"f", b"1", mode=0).folder(b"d", mode=0)),
    case(
        "modes with file type bits",
        _root()
        .file(b"f", b"1", mode=0o100640)
        .folder(b"d", mode=0o040750)
        .symlink(b"s", b"t", mode=0o120777),
    ),
    case("modes of symlinks are 0777", _root().symlink(b"s", b"t", mode=0o600)),
    case(
        "FIFOs and devices",
        _root()
        .member(b"p", b"6", mode=0o622)
        .member(b"c", b"3", major=5, minor=2, mode=0o620, gid=5)
        .member(b"b", b"4", major=8, minor=17, mode=0o660),
    ),
    case("device numbers as large as Linux has them", _root().member(b"c", b"3", major=4095, minor=1048575)),
    case(
        "a device with a major number that Linux lacks is refused",
        _root().member(b"c", b"3", major=4096, minor=0),
    ),
    case(
        "a device with a minor number that Linux lacks is refused",
        _root().member(b"c", b"4", major=1, minor=1048576),
    ),
    case(
        "a device with a negative number is refused",
        _root().member(b"c", b"3", major=base_256(-1, 8), minor=3),
    ),
    case(
        "a character device 0:0 is a device, no whiteout",
        _root().file(b"a", b"1"),
        RawTar().member(b"a", b"3", major=0, minor=0),
    ),
    case("device numbers of what is no device are ignored", _root().file(b"f", b"1", major=3, minor=4)),
    case("zero-size files", _root().file(b"a").file(b"b", b"", mode=0o600)),
    case("owners above 2^31", _root().file(b"f", b"1", uid=3_000_000_000, gid=4_294_967_294)),
    case(
        "owners above 2^31 as PAX",
        _root().file(b"f", b"1", pax={b"uid": b"3000000000", b"gid": b"4294967294"}),
    ),
    case("the owner -1 is refused", _root().file(b"f", b"1", uid=4_294_967_295)),
    case("a negative owner is refused", _root().file(b"f", b"1", uid=base_256(-1, 8))),
    case("an owner above 2^32 is refused", _root().file(b"f", b"1", pax={b"uid": b"4294967296"})),
    case(
        "names of owners are ignored",
        _root().file(b"f", b"1", uid=7, pax={b"uname": b"daemon", b"gname": b"daemon"}),
    ),
]
TIMES = [
    case(
        "times to the nanosecond",
        _root()
        .file(b"f", b"1", pax={b"mtime": b"1700000000.123456789"})
        .folder(b"d", pax={b"mtime": b"1700000000.000000001"})
        .symlink(b"s", b"t", pax={b"mtime": b"1700000000.5"}),
    ),
    case(
        "more than nine digits are cut off",
        _root().file(b"f", b"1", pax={b"mtime": b"1700000000.12345678987654"}),
    ),
    case("times before 1970 as PAX", _root().file(b"f", b"1", pax={b"mtime": b"-1.5"})),
    case("times before 1970 in base-256", _root().file(b"f", b"1", mtime=-1000, magic=GNU)),
    case("the time 0", _root().file(b"f", b"1", mtime=0)),
    case("times after 2038", _root().file(b"f", b"1", mtime=5_000_000_000)),
    case(
        "access and change times are ignored", _root().file(b"f", b"1", pax={b"atime": b"5", b"ctime": b"6"})
    ),
    case(
        "a folder's time stays when an upper layer adds to it",
        _root().folder(b"d", mtime=1000).file(b"d/a", b"1"),
        RawTar().file(b"d/b", b"2"),
    ),
    case(
        "a folder's time is that of its last entry",
        _root().folder(b"d", mtime=1000).file(b"d/a", b"1"),
        RawTar().folder(b"d", mtime=2000).file(b"d/b", b"2"),
        RawTar().file(b"d/.wh.a"),
    ),
    case("a time that is not a number is refused", _root().file(b"f", b"1", pax={b"mtime": b"yesterday"})),
]
XATTRS = [
    case(
        "binary xattrs",
        _root().file(b"f", b"1", xattrs={b"user.bin": bytes(range(256)), b"user.newline": b"a\nb\n"}),
    ),
    case("an empty xattr", _root().file(b"f", b"1", xattrs={b"user.empty": b""})),
    case("xattrs of folders", _root().folder(b"d", xattrs={b"user.a": b"1"})),
    case("an xattr of the root", RawTar().folder(b"./", xattrs={b"user.a": b"1"})),
    case(
        "security.capability",
        _root().file(b"ping", b"1", mode=0o755, xattrs={b"security.capability": CAPABILITY}),
    ),
    case(
        "security.capability of a file that is not root's",
        _root().file(b"ping", b"1", mode=0o755, uid=1000, xattrs={b"security.capability": CAPABILITY}),
    ),
    case(
        "trusted xattrs of any file type",
        _root()
        .file(b"f", b"1", xattrs={b"trusted.a": b"1"})
        .symlink(b"s", b"t", xattrs={b"trusted.a": b"2"})
        .member(b"p", b"6", xattrs={b"trusted.a": b"3"}),
    ),
    case("user xattrs of a symlink are left out", _root().symlink(b"s", b"t", xattrs={b"user.a": b"1"})),
    case("user xattrs of a FIFO are left out", _root().member(b"p", b"6", xattrs={b"user.a": b"1"})),
    case(
        "user xattrs of a device are left out",
        _root().member(b"c", b"3", major=1, minor=3, xattrs={b"user.a": b"1"}),
    ),
    case(
        "an xattr in no namespace of Linux is left out", _root().file(b"f", b"1", xattrs={b"nonsense": b"1"})
    ),
    case(
        "security.selinux as an xattr",
        _root().file(b"f", b"1", xattrs={b"security.selinux": b"system_u:object_r:bin_t:s0\0"}),
    ),
    case(
        "overlay's own xattrs",
        _root().folder(b"d", xattrs={b"trusted.overlay.opaque": b"y"}).file(b"d/f", b"1"),
    ),
    case(
        "overlay's own xattrs for users",
        _root().folder(b"d", xattrs={b"user.overlay.opaque": b"y"}).file(b"d/f", b"1"),
    ),
    case("an xattr without a name", _root().file(b"f", b"1", pax={b"SCHILY.xattr.": b"1"})),
    case(
        "an xattr with a name of 256 bytes is refused",
        _root().file(b"f", b"1", xattrs={b"user." + b"n" * 251: b"1"}),
    ),
    case(
        "an xattr of 64 KiB and one byte is refused",
        _root().file(b"f", b"1", xattrs={b"user.a": b"v" * 65537}),
    ),
    case(
        "an access control list as xattr",
        _root().file(b"f", b"1", mode=0o644, xattrs={b"system.posix_acl_access": ACL}),
    ),
    case(
        "a default access control list as xattr",
        _root().folder(b"d", xattrs={b"system.posix_acl_default": DEFAULT_ACL}),
    ),
    case(
        "files in a folder with a default access control list",
        _root()
        .folder(b"d", xattrs={b"system.posix_acl_default": DEFAULT_ACL})
        .file(b"d/f", b"1")
        .folder(b"d/e"),
    ),
    case(
        "an access control list as text is left out",
        _root().file(b"f", b"1", mode=0o644, pax={b"SCHILY.acl.access": ACL_TEXT}),
    ),
    case(
        "a default access control list as text is left out",
        _root().folder(
            b"d", pax={b"SCHILY.acl.default": b"user::rwx,user:1000:r-x,group::r-x,mask::r-x,other::r-x"}
        ),
    ),
    case(
        "an NFSv4 access control list as text is left out",
        _root().file(b"f", b"1", pax={b"SCHILY.acl.ace": b"owner@:rw:allow"}),
    ),
    case(
        "xattrs in libarchive's own form are left out",
        _root().file(b"f", b"1", pax={b"LIBARCHIVE.xattr.user.a%20b": b"AP8B"}),
    ),
    case(
        "xattrs in both forms of bsdtar",
        _root().file(
            b"f", b"1", pax={b"LIBARCHIVE.xattr.user.a": b"AP8B", b"SCHILY.xattr.user.a": b"\x00\xff\x01"}
        ),
    ),
    case(
        "an SELinux label as GNU tar writes it is left out",
        _root().file(b"f", b"1", pax={b"RHT.security.selinux": b"system_u:object_r:bin_t:s0"}),
    ),
    case(
        "star's other records are ignored",
        _root().file(
            b"f",
            b"1",
            pax={
                b"SCHILY.dev": b"1",
                b"SCHILY.ino": b"2",
                b"SCHILY.nlink": b"3",
                b"SCHILY.fflags": b"nodump",
                b"SCHILY.realsize": b"99",
            },
        ),
    ),
]
