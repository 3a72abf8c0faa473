"""Whiteouts, opaque folders, and what replaces what."""

from __future__ import annotations

from collections.abc import Callable

from fs.conformance.case import case
from fs.conformance.raw_tar import RawTar

Maker = Callable[[RawTar, bytes, bytes], RawTar]
MAKERS: dict[str, Maker] = {
    "file": lambda tar, at, _: tar.file(at + b"x", b"content"),
    "empty file": lambda tar, at, _: tar.file(at + b"x"),
    "folder": lambda tar, at, _: tar.folder(at + b"x").file(at + b"x/child", b"1"),
    "symlink": lambda tar, at, target: tar.symlink(at + b"x", target),
    "hard link": lambda tar, at, _: tar.file(at + b"other", b"o").link(at + b"x", at + b"other"),
    "FIFO": lambda tar, at, _: tar.member(at + b"x", b"6"),
    "character device": lambda tar, at, _: tar.member(at + b"x", b"3", major=1, minor=3),
    "block device": lambda tar, at, _: tar.member(at + b"x", b"4", major=7, minor=1),
}


def _lower() -> RawTar:
    return RawTar().folder(b"./").folder(b"d").file(b"d/a", b"a").file(b"d/b", b"b").file(b"top", b"t")


def _pairs() -> list[tuple[bytes, str, str]]:
    pairs = [(first, second) for first in MAKERS for second in MAKERS]
    return [(b"%02d" % number, *pair) for number, pair in enumerate(pairs)]


def _both(*, one_layer: bool) -> list[RawTar]:
    """Every type replaced by every type, each pair in a folder of its own."""
    lower = RawTar().folder(b"./")
    upper = lower if one_layer else RawTar()
    for folder, first, second in _pairs():
        # containerd sets a folder's time in the end, through the symlink that has replaced it
        target = b"." if one_layer and first == "folder" else b"target"
        lower.folder(folder)
        MAKERS[first](lower, folder + b"/", target)
        if not one_layer:
            continue
        MAKERS[second](upper, folder + b"/", target)
    for folder, _, second in [] if one_layer else _pairs():
        MAKERS[second](upper, folder + b"/", b"target")
    return [lower] if one_layer else [lower, upper]


REPLACEMENTS = [
    case("any type replaces any type of a lower layer", *_both(one_layer=False)),
    case("any type replaces any type of the same layer", *_both(one_layer=True)),
    case(
        "a symlink to nothing replaces a folder of the same layer",
        RawTar().folder(b"./").folder(b"x").symlink(b"x", b"nowhere"),
    ),
]
WHITEOUTS = [
    case("a whiteout hides a file of a lower layer", _lower(), RawTar().file(b"d/.wh.a")),
    case("a whiteout hides a whole folder", _lower(), RawTar().file(b".wh.d")),
    case("a whiteout of a file in the root", _lower(), RawTar().file(b".wh.top")),
    case(
        "a whiteout of what is not there changes nothing",
        _lower(),
        RawTar().file(b"d/.wh.zzz").file(b".wh.zzz"),
    ),
    case("a whiteout in a folder that is not there", _lower(), RawTar().file(b"x/y/.wh.z")),
    case("a whiteout below a file", _lower(), RawTar().file(b"top/.wh.z")),
    case(
        "a whiteout before the file that the same layer adds again",
        _lower(),
        RawTar().file(b"d/.wh.a").file(b"d/a", b"new"),
    ),
    case(
        "a whiteout after the file that the same layer adds again",
        _lower(),
        RawTar().file(b"d/a", b"new").file(b"d/.wh.a"),
    ),
    case(
        "a whiteout before the folder that the same layer adds again",
        _lower(),
        RawTar().file(b".wh.d").folder(b"d").file(b"d/new"),
    ),
    case(
        "a whiteout after the folder that the same layer adds again",
        _lower(),
        RawTar().folder(b"d", mode=0o700).file(b"d/new").file(b".wh.d"),
    ),
    case(
        "a whiteout after a file below the folder that it hides",
        _lower(),
        RawTar().file(b"d/new").file(b".wh.d"),
    ),
    case(
        "a whiteout in the lowest layer",
        RawTar().folder(b"./").file(b".wh.a").file(b"a", b"1").file(b"b/.wh.c"),
    ),
    case("a whiteout given as a folder", _lower(), RawTar().folder(b"d/.wh.a")),
    case("a whiteout given as a hard link", _lower(), RawTar().link(b"d/.wh.a", b"top")),
    case("a whiteout given as a symlink", _lower(), RawTar().symlink(b"d/.wh.a", b"top")),
    case("a whiteout with content", _lower(), RawTar().file(b"d/.wh.a", b"x" * 600).file(b"after", b"1")),
    case(
        "a whiteout of a name that is no UTF-8",
        RawTar().folder(b"./").file(b"\xff\xfe", b"1"),
        RawTar().file(b".wh.\xff\xfe"),
    ),
    case("a whiteout of a name that begins with .wh.", _lower(), RawTar().file(b"d/.wh..wh.a")),
    case("a whiteout through a symlinked parent", _lower().symlink(b"l", b"d"), RawTar().file(b"l/.wh.a")),
    case("a whiteout of a symlink leaves its target", _lower().symlink(b"l", b"d"), RawTar().file(b".wh.l")),
    case(
        "a whiteout of one hard link leaves the other", _lower().link(b"l", b"d/a"), RawTar().file(b"d/.wh.a")
    ),
    case(
        "a whiteout in a folder hidden by the same layer", _lower(), RawTar().file(b".wh.d").file(b"d/.wh.a")
    ),
    case("a whiteout with `./` in front", _lower(), RawTar().file(b"./d/.wh.a")),
    case("a whiteout of the root's children one by one", _lower(), RawTar().file(b".wh.d").file(b".wh.top")),
    case("a bare whiteout is refused", _lower(), RawTar().file(b"d/.wh.")),
    case("a bare whiteout in the root is refused", _lower(), RawTar().file(b".wh.")),
    case("a whiteout of `.` is refused", _lower(), RawTar().file(b"d/.wh..")),
    case("a whiteout of `..` is refused", _lower(), RawTar().file(b"d/.wh...")),
    case("a folder named as a whiteout with files in it", _lower(), RawTar().file(b".wh.d/x")),
    case(
        "an opaque marker before the folder's files",
        _lower(),
        RawTar().folder(b"d").file(b"d/.wh..wh..opq").file(b"d/new").file(b"d/a", b"2"),
    ),
    case(
        "an opaque marker after the folder's files",
        _lower(),
        RawTar().folder(b"d").file(b"d/new").file(b"d/a", b"2").file(b"d/.wh..wh..opq"),
    ),
    case(
        "an opaque marker between the folder's files",
        _lower(),
        RawTar().folder(b"d").file(b"d/new").file(b"d/.wh..wh..opq").file(b"d/a", b"2"),
    ),
    case(
        "an opaque marker before its folder's own entry",
        _lower(),
        RawTar().file(b"d/.wh..wh..opq").folder(b"d", mode=0o700).file(b"d/new"),
    ),
    case(
        "an opaque marker without its folder's entry",
        _lower(),
        RawTar().file(b"d/.wh..wh..opq").file(b"d/new"),
    ),
    case("an opaque marker in a folder that is not there", _lower(), RawTar().file(b"x/.wh..wh..opq")),
    case(
        "an opaque marker after files in subfolders that both have",
        RawTar().folder(b"./").folder(b"d").folder(b"d/s", mode=0o711).file(b"d/s/old"),
        RawTar().file(b"d/s/new").file(b"d/.wh..wh..opq"),
    ),
    case(
        "an opaque marker after subfolders that both have",
        RawTar().folder(b"./").folder(b"d").folder(b"d/s").file(b"d/s/old"),
        RawTar().folder(b"d/s").file(b"d/s/new").file(b"d/.wh..wh..opq"),
    ),
    case("an opaque root", _lower(), RawTar().file(b".wh..wh..opq").file(b"new")),
    case(
        "an opaque marker through a symlinked parent",
        _lower().symlink(b"l", b"d"),
        RawTar().file(b"l/.wh..wh..opq").file(b"l/new"),
    ),
    case(
        "an opaque marker and a whiteout",
        _lower(),
        RawTar().file(b"d/.wh.a").file(b"d/.wh..wh..opq").file(b"d/new"),
    ),
    case(
        "an opaque folder stays opaque for later layers only by content",
        _lower(),
        RawTar().file(b"d/.wh..wh..opq").file(b"d/1"),
        RawTar().file(b"d/2").file(b"d/.wh.1"),
    ),
    case(
        "AUFS leftovers are left out",
        _lower(),
        RawTar()
        .file(b".wh..wh.aufs")
        .folder(b".wh..wh.orph")
        .folder(b".wh..wh.plnk")
        .file(b".wh..wh.plnk/1.2", b"x")
        .file(b"a"),
    ),
    case("AUFS leftovers deeper in the tree", _lower(), RawTar().file(b"d/.wh..wh.x")),
    case(
        "a hard link to an AUFS leftover",
        _lower(),
        RawTar().folder(b".wh..wh.plnk").file(b".wh..wh.plnk/1.2", b"x").link(b"a", b".wh..wh.plnk/1.2"),
    ),
    case(
        "a folder met again keeps its children and takes the new metadata",
        _lower(),
        RawTar().folder(b"d", mode=0o2711, uid=5, gid=6, mtime=77),
    ),
    case(
        "a folder met again gives up its xattrs",
        RawTar().folder(b"./").folder(b"d", xattrs={b"user.a": b"1", b"user.b": b"2"}).file(b"d/f"),
        RawTar().folder(b"d", xattrs={b"user.b": b"3"}),
    ),
    case(
        "a file met again gives up its xattrs",
        RawTar().folder(b"./").file(b"f", xattrs={b"user.a": b"1"}),
        RawTar().file(b"f", b"2"),
    ),
    case(
        "the last of two files of one name wins",
        RawTar()
        .folder(b"./")
        .file(b"a", b"1")
        .file(b"./a", b"22", mode=0o600)
        .file(b"/a", b"333", mode=0o640),
    ),
    case(
        "folder, file, folder under one name: the children are gone",
        RawTar().folder(b"./").folder(b"d").file(b"d/x", b"1").file(b"d", b"f").folder(b"d"),
    ),
    case(
        "a folder twice in one layer keeps its children",
        RawTar().folder(b"./").folder(b"d").file(b"d/x", b"1").folder(b"d", mode=0o700),
    ),
    case(
        "a symlink to a folder, then the folder itself",
        RawTar().folder(b"./").folder(b"r").file(b"r/f").symlink(b"d", b"r"),
        RawTar().folder(b"d").file(b"d/x"),
    ),
    case("a file below what is a file in a lower layer", _lower(), RawTar().file(b"top/x", b"1")),
    case(
        "a file below what is a file in the same layer",
        RawTar().folder(b"./").file(b"a", b"1").file(b"a/b", b"2"),
    ),
    case(
        "an upper layer adds to a folder without naming it", _lower(), RawTar().file(b"d/new", b"1", mtime=5)
    ),
    case(
        "an upper layer changes the root's own metadata",
        _lower(),
        RawTar().folder(b"./", mode=0o700, uid=3, gid=4, mtime=99),
    ),
]
