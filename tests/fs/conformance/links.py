"""Hard links, symlinked parents, and names that lead elsewhere."""

from __future__ import annotations

from fs.conformance.case import case
from fs.conformance.raw_tar import RawTar


def _root() -> RawTar:
    return RawTar().folder(b"./")


HARD_LINKS = [
    case("hard links are one inode", _root().file(b"a", b"1").link(b"b", b"a").link(b"d/c", b"./b")),
    case("a hard link to a symlink is the symlink", _root().symlink(b"s", b"nowhere").link(b"l", b"s")),
    case(
        "a hard link to a symlink to a file is the symlink",
        _root().file(b"f", b"1").symlink(b"s", b"f").link(b"l", b"s"),
    ),
    case("a hard link to a device", _root().member(b"n", b"3", major=1, minor=3).link(b"l", b"n")),
    case("a hard link to a FIFO", _root().member(b"n", b"6").link(b"l", b"n")),
    case("a hard link before its target", _root().link(b"b", b"a").file(b"a", b"1")),
    case(
        "a chain of hard links, each before its target",
        _root().link(b"c", b"b").link(b"b", b"a").file(b"a", b"1"),
    ),
    case(
        "a hard link before a target that is met twice",
        _root().link(b"b", b"a").file(b"a", b"1").file(b"a", b"22"),
    ),
    case(
        "a hard link before its target, replaced before the target comes",
        _root().link(b"b", b"a").file(b"b", b"own").file(b"a", b"1"),
    ),
    case(
        "a hard link to a target that the same layer replaces later",
        _root().file(b"a", b"1").link(b"b", b"a").file(b"a", b"22"),
    ),
    case(
        "a hard link to a target that the same layer replaced earlier",
        _root().file(b"a", b"1"),
        RawTar().file(b"a", b"22").link(b"b", b"a"),
    ),
    case(
        "a hard link to a lower file that the same layer replaces later",
        _root().file(b"a", b"1"),
        RawTar().link(b"b", b"a").file(b"a", b"22"),
    ),
    case("a hard link into a lower layer", _root().file(b"a", b"1"), RawTar().link(b"b", b"a")),
    case(
        "a hard link across layers keeps the content when the target is replaced",
        _root().file(b"a", b"1"),
        RawTar().link(b"b", b"a"),
        RawTar().file(b"a", b"22"),
    ),
    case(
        "a hard link across layers keeps the content when the target is hidden",
        _root().file(b"a", b"1").link(b"b", b"a"),
        RawTar().file(b".wh.a"),
    ),
    case(
        "a hard link to a target that the layer hides later",
        _root().file(b"a", b"1"),
        RawTar().link(b"b", b"a").file(b".wh.a"),
    ),
    case(
        "a hard link to a target that the layer hid before",
        _root().file(b"a", b"1"),
        RawTar().file(b".wh.a").link(b"b", b"a"),
    ),
    case(
        "a hard link into a folder that the layer hides later",
        _root().file(b"d/a", b"1"),
        RawTar().link(b"b", b"d/a").file(b".wh.d"),
    ),
    case(
        "a hard link into a folder that the layer makes opaque later",
        _root().file(b"d/a", b"1"),
        RawTar().link(b"d/b", b"d/a").file(b"d/.wh..wh..opq"),
    ),
    case(
        "a hard link replaced by a whiteout and linked again",
        _root().file(b"a", b"1").link(b"b", b"a"),
        RawTar().file(b".wh.b").link(b"b", b"a"),
    ),
    case("a hard link to itself that is there already", _root().file(b"a", b"1").link(b"a", b"a")),
    case("a hard link to itself that is not there is refused", _root().link(b"a", b"a")),
    case("two hard links to each other are refused", _root().link(b"a", b"b").link(b"b", b"a")),
    case(
        "a hard link to another name of the same inode",
        _root().file(b"a", b"1").link(b"b", b"a").link(b"b", b"a"),
    ),
    case("a hard link to nothing is refused", _root().link(b"a", b"nothing")),
    case("a hard link to a folder is refused", _root().folder(b"d").link(b"a", b"d")),
    case("a hard link to the root is refused", _root().link(b"a", b"./")),
    case("a hard link without a target is refused", _root().link(b"a", b"")),
    case("a hard link out of the root is refused", _root().link(b"a", b"../../etc/passwd")),
    case("a hard link to an absolute name", _root().file(b"a", b"1").link(b"b", b"/a")),
    case("a hard link to a name through `..`", _root().folder(b"d").file(b"a", b"1").link(b"b", b"d/../a")),
    case(
        "a hard link to a target behind a symlinked folder",
        _root().file(b"d/a", b"1").symlink(b"l", b"d").link(b"b", b"l/a"),
    ),
    case(
        "a hard link to a target behind an absolute symlink",
        _root().file(b"d/a", b"1").symlink(b"l", b"/d").link(b"b", b"l/a"),
    ),
    case(
        "a hard link replaces a folder with children",
        _root().file(b"a", b"1").folder(b"d").file(b"d/x", b"2"),
        RawTar().link(b"d", b"a"),
    ),
    case(
        "a hard link whose member has other metadata",
        _root().file(b"a", b"1", mode=0o600, uid=1, mtime=5).link(b"b", b"a", mode=0o644, uid=2, mtime=9),
    ),
    case(
        "a hard link whose member has xattrs",
        _root().file(b"a", b"1").link(b"b", b"a", xattrs={b"user.x": b"1"}),
    ),
    case(
        "a hard link whose member has a size",
        _root().file(b"a", b"12345").link(b"b", b"a", size=5).file(b"c", b"3"),
    ),
    case(
        "a hard link to a symlink whose member has other metadata",
        _root().symlink(b"s", b"t", uid=1, mtime=5).link(b"l", b"s", uid=2, mtime=9),
    ),
    case(
        "a folder below a hard link to a file",
        _root().file(b"a", b"1").link(b"b", b"a"),
        RawTar().folder(b"b").file(b"b/x"),
    ),
]
PARENTS = [
    case(
        "a file below a symlink to a folder",
        _root().folder(b"usr").folder(b"usr/lib").symlink(b"lib", b"usr/lib"),
        RawTar().file(b"lib/x", b"1").file(b"lib/deep/y", b"2"),
    ),
    case(
        "a file below an absolute symlink stays in the root",
        _root().folder(b"usr").symlink(b"l", b"/usr"),
        RawTar().file(b"l/x", b"1"),
    ),
    case(
        "a file below a symlink through `..`",
        _root().folder(b"a").folder(b"b").symlink(b"a/l", b"../b"),
        RawTar().file(b"a/l/x", b"1"),
    ),
    case(
        "a file below a symlink that leaves the root stays in the root",
        _root().symlink(b"l", b"../../../../tmp"),
        RawTar().file(b"l/coldstart-conformance", b"1"),
    ),
    case("a file below a dangling symlink", _root().symlink(b"l", b"no/where"), RawTar().file(b"l/x", b"1")),
    case(
        "a file below a symlink to a file",
        _root().file(b"f", b"1").symlink(b"l", b"f"),
        RawTar().file(b"l/x", b"1"),
    ),
    case(
        "a file below a chain of symlinks",
        _root().folder(b"d").symlink(b"l3", b"d").symlink(b"l2", b"l3").symlink(b"l1", b"./l2"),
        RawTar().file(b"l1/x", b"1"),
    ),
    case("a file below a symlink to the root", _root().symlink(b"l", b"/"), RawTar().file(b"l/x", b"1")),
    case(
        "a file below a symlink to itself is refused",
        _root().symlink(b"l", b"l"),
        RawTar().file(b"l/x", b"1"),
    ),
    case(
        "a file below a loop of symlinks is refused",
        _root().symlink(b"a", b"b").symlink(b"b", b"a"),
        RawTar().file(b"a/x", b"1"),
    ),
    case(
        "a folder where a symlink to a folder is",
        _root().folder(b"r").file(b"r/f", b"1").symlink(b"d", b"r"),
        RawTar().folder(b"d", mode=0o700),
    ),
    case(
        "a folder with a slash where a symlink to a folder is",
        _root().folder(b"r").symlink(b"d", b"r"),
        RawTar().folder(b"d/").file(b"d/x"),
    ),
    case("missing parents are made", _root().file(b"a/b/c", b"1")),
    case(
        "missing parents of a symlink, a device and a link",
        _root().symlink(b"a/s", b"t").member(b"b/n", b"6").file(b"f").link(b"c/l", b"f"),
    ),
    case(
        "a folder after its children takes its metadata",
        _root().file(b"d/f", b"1").folder(b"d", mode=0o700, uid=1, mtime=7),
    ),
    case(
        "many layers, one file each",
        *[
            RawTar().folder(b"./").file(b"f%03d" % number, b"%d" % number).file(b"same", b"%d" % number)
            for number in range(120)
        ],
    ),
]
NAMES = [
    case("names with `./` in front", _root().folder(b"./d/").file(b"./d/f", b"1")),
    case("absolute names", _root().folder(b"/d").file(b"/d/f", b"1").file(b"///g", b"2")),
    case("names with doubled slashes and dots", _root().file(b"a//b/./c", b"1")),
    case("a name with `..` inside of the root", _root().folder(b"a").file(b"a/../b", b"1")),
    case(
        "a name with `..` through a symlink",
        _root().folder(b"x").folder(b"x/y").symlink(b"l", b"x/y").file(b"l/../b", b"1"),
    ),
    case("a name that leaves the root is refused", _root().file(b"../coldstart-conformance", b"1")),
    case(
        "a name that leaves the root in its middle is refused",
        _root().file(b"a/../../coldstart-conformance", b"1"),
    ),
    case(
        "an absolute name that leaves the root is refused", _root().file(b"/../coldstart-conformance", b"1")
    ),
    case("a file without a name is refused", _root().file(b"", b"1")),
    case("a folder without a name is the root", _root().folder(b"", mode=0o700)),
    case("a file named `.` is refused", _root().file(b".", b"1")),
    case("a symlink named `./` is refused", _root().symlink(b"./", b"x")),
    case("a folder named `/` is the root", RawTar().folder(b"/", mode=0o700, uid=1, mtime=5)),
    case("a folder named `.` is the root", RawTar().folder(b".", mode=0o700, uid=1, mtime=5)),
    case("a folder named `a/..` is the root", RawTar().folder(b"a/..", mode=0o700, uid=1, mtime=5)),
    case("an image without a root entry", RawTar().file(b"f", b"1")),
    case("an empty layer", RawTar(), _root().file(b"f", b"1")),
    case("a file whose name ends with a slash", _root().file(b"f/", b"")),
    case("a file with content whose name ends with a slash", _root().file(b"f/", b"12345").file(b"g", b"1")),
    case("a file of type NUL whose name ends with a slash", _root().member(b"f/", b"\0")),
    case("a symlink whose name ends with a slash", _root().symlink(b"s/", b"t")),
    case("a FIFO whose name ends with a slash", _root().member(b"p/", b"6")),
    case("a hard link whose name ends with a slash", _root().file(b"a", b"1").link(b"l/", b"a")),
    case("a hard link whose target ends with a slash", _root().file(b"a", b"1").link(b"l", b"a/")),
    case(
        "a name that is no UTF-8",
        _root().folder(b"\xff\xfe").file(b"\xff\xfe/\xe4", b"1").symlink(b"\x80", b"\xff\xfe"),
    ),
    case("a name that is no UTF-8 in a PAX record", _root().file(b"x", b"1", pax={b"path": b"d\xff\xe4"})),
    case("a name with a newline, a tab, a quote and a backslash", _root().file(b'a\nb\tc"d\\e', b"1")),
    case(
        "names that differ in case or in normalisation",
        _root().file(b"A", b"1").file(b"a", b"2").file(b"\xc3\xa4", b"3").file(b"a\xcc\x88", b"4"),
    ),
    case("a component of 255 bytes", _root().file(b"x", b"1", pax={b"path": b"n" * 255})),
    case("a component of 256 bytes is refused", _root().file(b"x", b"1", pax={b"path": b"n" * 256})),
    case(
        "a component of 256 bytes in the middle is refused",
        _root().file(b"x", b"1", pax={b"path": b"d/" + b"n" * 256 + b"/f"}),
    ),
    case("a name of 3,000 bytes", _root().file(b"x", b"1", pax={b"path": b"/".join([b"d" * 99] * 30)})),
    case(
        "a name of 5,000 bytes is refused",
        _root().file(b"x", b"1", pax={b"path": b"/".join([b"d" * 99] * 50)}),
    ),
    case("a symlink target of 4,095 bytes", _root().symlink(b"s", b"", pax={b"linkpath": b"t" * 4095})),
    case(
        "a symlink target of 4,096 bytes is refused",
        _root().symlink(b"s", b"", pax={b"linkpath": b"t" * 4096}),
    ),
    case("a symlink without a target is refused", _root().symlink(b"s", b"")),
    case("a symlink target that is no UTF-8", _root().symlink(b"s", b"\xff/\x80")),
    case(
        "symlink targets are not rewritten",
        _root().symlink(b"a", b"/etc/../x//y/").symlink(b"b", b"../../../..").symlink(b"c", b"."),
    ),
    case("lost+found is kept", _root().folder(b"lost+found", mode=0o700)),
    case(
        "proc, sys and dev are kept as the folders they are",
        _root().folder(b"proc", mode=0o555).folder(b"sys", mode=0o555).folder(b"dev", mode=0o755),
    ),
    case(
        "what lies in dev is kept",
        _root()
        .folder(b"dev")
        .member(b"dev/null", b"3", major=1, minor=3, mode=0o666)
        .member(b"dev/console", b"3", major=5, minor=1, mode=0o600)
        .symlink(b"dev/fd", b"/proc/self/fd")
        .folder(b"dev/pts")
        .folder(b"dev/shm", mode=0o1777),
    ),
    case(
        "what lies in proc and sys is kept",
        _root().folder(b"proc").file(b"proc/x", b"1").file(b"sys/kernel/y", b"2"),
    ),
]
