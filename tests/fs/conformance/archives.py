"""What the tar format allows, what programs made of it, and what is left of it after an accident."""

from __future__ import annotations

from fs.conformance.case import case
from fs.conformance.raw_tar import BLOCK, GNU, V7, RawTar, base_256, header


def _root() -> RawTar:
    return RawTar().folder(b"./")


def _pairs(*numbers: int) -> bytes:
    return b"".join(b"%011o\0" % number for number in numbers)


def _old_sparse(name: bytes, size: int, *pairs: int) -> bytes:
    """The fields behind the minor number of an old GNU sparse header: times, map, flag, real size."""
    tail = bytearray(167)
    tail[41 : 41 + 12 * len(pairs[:8])] = _pairs(*pairs[:8])
    tail[137] = 1 if len(pairs) > 8 else 0
    tail[138:150] = b"%011o\0" % size
    del name
    return bytes(tail)


def _extension(more: bool, *pairs: int) -> bytes:
    return _pairs(*pairs).ljust(504, b"\0") + bytes([more]) + bytes(7)


EXTENDED = [
    case(
        "a PAX name and target",
        _root()
        .file(b"x", b"1", pax={b"path": b"p" * 150})
        .symlink(b"y", b"t", pax={b"linkpath": b"q" * 150}),
    ),
    case(
        "a GNU name and target",
        _root()
        .gnu_name(b"p" * 150)
        .file(b"p", b"1", magic=GNU)
        .gnu_name(b"s" * 120)
        .gnu_link(b"q" * 150)
        .symlink(b"s", b"q", magic=GNU),
    ),
    case(
        "a GNU name and a PAX name at once", _root().gnu_name(b"gnu").file(b"x", b"1", pax={b"path": b"pax"})
    ),
    case(
        "a PAX name and a GNU name at once", _root().pax({b"path": b"pax"}).gnu_name(b"gnu").file(b"x", b"1")
    ),
    case(
        "a GNU target and a PAX target at once",
        _root().gnu_link(b"gnu").symlink(b"s", b"x", pax={b"linkpath": b"pax"}),
    ),
    case("a PAX size", _root().file(b"f", b"12345", size=0, pax={b"size": b"5"}).file(b"g", b"1")),
    case("a PAX size of a folder is ignored", _root().folder(b"d", pax={b"size": b"600"}).file(b"f", b"1")),
    case("a ustar prefix", _root().file(b"f", b"1", prefix=b"some/prefix")),
    case("a V7 header", _root().file(b"f", b"1", magic=V7).member(b"d/", b"\0", magic=V7)),
    case(
        "a star header with times behind its prefix",
        _root().file(
            b"f", b"1", prefix=b"p".ljust(131, b"\0") + b"00000000000 00000000000 \0\0\0\0\0\0\0\0tar\0"
        ),
    ),
    case(
        "a GNU header with times in the place of a prefix",
        _root().file(b"f", b"1", magic=GNU, prefix=b"14371573400".ljust(12, b"\0") * 2),
    ),
    case("contiguous files, type 7", _root().member(b"f", b"7", b"123")),
    case("type NUL is a file", _root().member(b"f", b"\0", b"123")),
    case(
        "PAX records for all that follow",
        _root()
        .pax({b"mtime": b"5", b"uid": b"7", b"comment": b"x"}, b"g")
        .file(b"f", b"1")
        .file(b"g", b"2", pax={b"uid": b"8"}),
    ),
    case("a PAX comment for all that follow", _root().pax({b"comment": b"x" * 40}, b"g").file(b"f", b"1")),
    case(
        "PAX xattrs for all that follow", _root().pax({b"SCHILY.xattr.user.a": b"1"}, b"g").file(b"f", b"1")
    ),
    case(
        "an empty PAX value takes nothing away",
        _root().file(
            b"f", b"1", uid=7, mtime=5, pax={b"path": b"", b"uid": b"", b"mtime": b"", b"size": b""}
        ),
    ),
    case(
        "the last of two equal PAX records counts",
        _root().file(b"f", b"1", pax=[(b"path", b"first"), (b"path", b"second")]),
    ),
    case(
        "two PAX headers before one file: the last counts",
        _root().pax({b"path": b"first", b"uid": b"5"}).pax({b"mtime": b"5"}).file(b"f", b"1"),
    ),
    case(
        "PAX records of unknown keys",
        _root().file(b"f", b"1", pax={b"VENDOR.key": b"\x00\xff", b"hdrcharset": b"BINARY"}),
    ),
    case(
        "a PAX record without `=` is refused", _root().member(b"x", b"x", b"10 path_\xff\n").file(b"f", b"1")
    ),
    case(
        "a PAX record with a wrong length is refused",
        _root().member(b"x", b"x", b"99 path=a\n").file(b"f", b"1"),
    ),
    case(
        "a PAX record with the length 0 is refused",
        _root().member(b"x", b"x", b"0 path=a\n").file(b"f", b"1"),
    ),
    case(
        "a PAX record with a signed length is refused",
        _root().member(b"x", b"x", b"+10 path=a\n").file(b"f", b"1"),
    ),
    case("a PAX name with a zero byte is refused", _root().file(b"f", b"1", pax={b"path": b"a\0b"})),
    case("an extended header with nothing after it is refused", _root().pax({b"path": b"a"})),
    case(
        "an extended header that claims gigabytes is refused", _root().raw(header(b"x", b"x", size=4 << 30))
    ),
    case(
        "a GNU name that claims gigabytes is refused",
        _root().raw(header(b"x", b"L", size=4 << 30, magic=GNU)),
    ),
    case("an unknown type is refused", _root().member(b"odd", b"Z", b"123")),
    case("a GNU volume header is passed over", _root().member(b"label", b"V", magic=GNU).file(b"f", b"1")),
    case("a GNU dump folder is refused", _root().member(b"d/", b"D", b"Yf\0\0", magic=GNU)),
]
NUMBERS = [
    case(
        "a size in base-256", _root().file(b"f", b"12345", size=base_256(5, 12), magic=GNU).file(b"g", b"1")
    ),
    case(
        "owners and times in base-256",
        _root().file(
            b"f",
            b"1",
            uid=base_256(5, 8),
            gid=base_256(1 << 22, 8),
            mtime=base_256(1_600_000_001, 12),
            magic=GNU,
        ),
    ),
    case(
        "numbers with spaces around",
        _root().file(b"f", b"123", mode=b"   644 \0", uid=b"  7 \0", size=b"       3 "),
    ),
    case(
        "numbers without an end",
        _root().file(b"f", b"123", mode=b"00000644", uid=b"00000007", size=b"000000000003"),
    ),
    case("numbers with zero bytes in front", _root().file(b"f", b"123", uid=b"\0\0007\0", size=b"\0\0\0003")),
    case("empty numbers are zero", _root().file(b"f", b"", mode=b"0000644", uid=b"", gid=b"", mtime=b"")),
    case("a negative size is refused", _root().raw(header(b"f", b"0", size=base_256(-1, 12), magic=GNU))),
    case(
        "a size of 2^63 is refused",
        _root().raw(header(b"f", b"0", size=b"\x80\0\0\0\x80\0\0\0\0\0\0\0", magic=GNU)),
    ),
    case("a PAX size of 2^63 is refused", _root().file(b"f", b"1", pax={b"size": b"9223372036854775808"})),
    case("a PAX size below zero is refused", _root().file(b"f", b"1", pax={b"size": b"-1"})),
    case("a size that is not there is refused", _root().raw(header(b"f", b"0", size=1 << 40))),
    case("a size with digits that are not octal is refused", _root().file(b"f", b"1", size=b"00000000009\0")),
    case("a size with a sign is refused", _root().file(b"f", b"1", size=b"+0000000001\0")),
    case(
        "a size with a prefix of a programming language is refused",
        _root().file(b"f", b"1", size=b"0o000000001\0"),
    ),
    case("a size with an underscore is refused", _root().file(b"f", b"1", size=b"0_000000001\0")),
    case("a mode with a sign is refused", _root().file(b"f", b"1", mode=b"-000644\0")),
]
SPARSE = [
    case(
        "old GNU sparse",
        _root()
        .member(
            b"f",
            b"S",
            b"a" * 512 + b"b" * 100,
            magic=GNU,
            tail=_old_sparse(b"f", 10_000, 0, 512, 8192, 100, 10_000, 0),
        )
        .file(b"g", b"1"),
    ),
    case(
        "old GNU sparse with a continued map",
        _root()
        .raw(
            header(
                b"f",
                b"S",
                size=5 * 512,
                magic=GNU,
                tail=_old_sparse(b"f", 50_000, 0, 512, 8192, 512, 16384, 512, 24576, 512, 40960, 512),
            )
        )
        .raw(_extension(False, 40960, 512, 50_000, 0))
        .raw(b"abcde" * 512)
        .file(b"g", b"1"),
    ),
    case(
        "old GNU sparse that is one hole",
        _root()
        .member(b"f", b"S", b"", magic=GNU, tail=_old_sparse(b"f", 10_000_000, 10_000_000, 0))
        .file(b"g", b"1"),
    ),
    case(
        "PAX sparse 0.0",
        _root()
        .file(
            b"f",
            b"a" * 512 + b"b" * 100,
            pax=[
                (b"GNU.sparse.size", b"10000"),
                (b"GNU.sparse.numblocks", b"2"),
                (b"GNU.sparse.offset", b"0"),
                (b"GNU.sparse.numbytes", b"512"),
                (b"GNU.sparse.offset", b"8192"),
                (b"GNU.sparse.numbytes", b"100"),
            ],
        )
        .file(b"g", b"1"),
    ),
    case(
        "PAX sparse 0.1",
        _root()
        .file(
            b"x",
            b"a" * 512 + b"b" * 100,
            pax=[
                (b"GNU.sparse.size", b"10000"),
                (b"GNU.sparse.numblocks", b"2"),
                (b"GNU.sparse.name", b"f"),
                (b"GNU.sparse.map", b"0,512,8192,100"),
            ],
        )
        .file(b"g", b"1"),
    ),
    case(
        "PAX sparse 1.0",
        _root()
        .file(
            b"x",
            b"2\n0\n512\n8192\n100\n".ljust(512, b"\0") + b"a" * 512 + b"b" * 100,
            pax=[
                (b"GNU.sparse.major", b"1"),
                (b"GNU.sparse.minor", b"0"),
                (b"GNU.sparse.name", b"f"),
                (b"GNU.sparse.realsize", b"10000"),
            ],
        )
        .file(b"g", b"1"),
    ),
    case(
        "PAX sparse 1.0 that is one hole",
        _root()
        .file(
            b"x",
            b"0\n".ljust(512, b"\0"),
            pax=[
                (b"GNU.sparse.major", b"1"),
                (b"GNU.sparse.minor", b"0"),
                (b"GNU.sparse.name", b"f"),
                (b"GNU.sparse.realsize", b"3000000"),
            ],
        )
        .file(b"g", b"1"),
    ),
    case(
        "a sparse map that overlaps is refused",
        _root().file(
            b"f", b"a" * 200, pax=[(b"GNU.sparse.size", b"1000"), (b"GNU.sparse.map", b"0,100,50,100")]
        ),
    ),
    case(
        "a sparse map that goes beyond the size is refused",
        _root().file(
            b"f", b"a" * 200, pax=[(b"GNU.sparse.size", b"100"), (b"GNU.sparse.map", b"0,100,100,100")]
        ),
    ),
    case(
        "a sparse map with an odd number of numbers is refused",
        _root().file(
            b"f", b"a" * 200, pax=[(b"GNU.sparse.size", b"1000"), (b"GNU.sparse.map", b"0,100,200")]
        ),
    ),
    case(
        "a sparse map that does not fit its data is refused",
        _root().file(b"f", b"a" * 200, pax=[(b"GNU.sparse.size", b"1000"), (b"GNU.sparse.map", b"0,100")]),
    ),
    case(
        "a sparse map that claims more entries than there are is refused",
        _root().file(
            b"x",
            b"99999999999\n0\n1\n".ljust(512, b"\0"),
            pax=[(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"100")],
        ),
    ),
    case(
        "an unknown version of sparse files is refused",
        _root().file(
            b"x",
            b"1",
            pax=[(b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"100")],
        ),
    ),
]
ENDS = [
    case("garbage after the end", _root().file(b"f", b"1").content() + b"garbage" * 100),
    case(
        "another archive after the end",
        _root().file(b"f", b"1").content() + RawTar().file(b"g", b"2").content(),
    ),
    case("an archive without its end blocks", _root().file(b"f", b"1").content(end=b"")),
    case("an archive with one end block", _root().file(b"f", b"1").content(end=bytes(BLOCK))),
    case("an archive padded to 10 KiB", _root().file(b"f", b"1").content(end=bytes(10240 - 3 * BLOCK))),
    case(
        "one zero block in the middle is refused",
        _root().file(b"f", b"1").content(end=bytes(BLOCK)) + RawTar().file(b"g", b"2").content(),
    ),
    case("half an end block", _root().file(b"f", b"1").content(end=bytes(100))),
    case("an archive that ends in a header is refused", _root().file(b"f", b"1").content(end=b"")[:-700]),
    case(
        "an archive that ends in a file is refused", _root().file(b"f", b"x" * 2000).content(end=b"")[:-1000]
    ),
    case(
        "an archive that ends before the padding of its last file",
        _root().member(b"f", b"0", b"12345", padded=False).content(end=b""),
    ),
    case(
        "an archive that ends in the padding of its last file",
        _root().member(b"f", b"0", b"12345", padded=False).content(end=bytes(100)),
    ),
    case("an empty archive", RawTar().content(end=b""), _root()),
    case(
        "a damaged header is refused",
        _root().file(b"f", b"1").content()[:512] + b"\xff" + _root().file(b"f", b"1").content()[513:],
    ),
]
