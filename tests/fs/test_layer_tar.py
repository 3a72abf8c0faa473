"""Tar streams as they are met: exact numbers, byte names, binary xattrs, sparse files, damage."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.indexing.build import index_image
from coldstart_fs.indexing.sources.stream import ByteStream
from coldstart_fs.indexing.sources.tar import Member, TarReader
from coldstart_fs.stores.store_url import open_store
from fs.conformance.raw_tar import RawTar
from image_builder import Layer, apply_layers, write_layout


def read(content: bytes, block_bytes: int = 1000) -> list[tuple[Member, bytes]]:
    """All members with their contents, from a stream that comes in awkward blocks."""
    blocks = (content[start : start + block_bytes] for start in range(0, len(content), block_bytes))
    reader = TarReader(ByteStream(blocks), "test.tar")
    return [(member, b"".join(bytes(p) for p in reader.content(member))) for member in reader]


def raw_tar(format_number: int, *infos: tarfile.TarInfo, content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_number, errors="surrogateescape") as archive:
        for info in infos:
            archive.addfile(info, io.BytesIO(content) if info.size else None)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1700000000.123456789", 1_700_000_000_123_456_789),
        ("-1.5", -1_500_000_000),
        ("-0.000000001", -1),
        ("0", 0),
        ("12.", 12_000_000_000),
        ("1.1234567899", 1_123_456_789),
        ("9999999999.999999999", 9_999_999_999_999_999_999),
    ],
)
def test_times_are_exact_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert apply_layers(Layer().file("a", pax={"mtime": text}))[b"a"].mtime_ns == nanoseconds


def test_negative_and_huge_numbers_come_through_gnu_base_256() -> None:
    info = tarfile.TarInfo("a")
    info.mtime, info.uid, info.gid = -5, 3_000_000_000, 2_097_152
    ((member, _),) = read(raw_tar(tarfile.GNU_FORMAT, info))
    assert (member.mtime_ns, member.uid, member.gid) == (-5_000_000_000, 3_000_000_000, 2_097_152)


def test_names_are_bytes() -> None:
    tree = apply_layers(Layer().file(b"\xff\xfe/\xe4").symlink(b"s\n", b"\x80t"))
    assert b"\xff\xfe/\xe4" in tree
    assert tree[b"s\n"].target == b"\x80t"


@pytest.mark.parametrize("format_number", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_targets(format_number: int) -> None:
    info = tarfile.TarInfo("/".join(["d" * 200] * 5))
    info.type, info.linkname = tarfile.SYMTYPE, "t" * 3000
    ((member, _),) = read(raw_tar(format_number, info))
    assert member.name == info.name.encode()
    assert member.link == b"t" * 3000


def test_ustar_prefixes_are_joined() -> None:
    info = tarfile.TarInfo("d" * 90 + "/" + "f" * 90)
    ((member, _),) = read(raw_tar(tarfile.USTAR_FORMAT, info))
    assert member.name == info.name.encode()


def test_xattrs_are_binary_and_sorted() -> None:
    capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\n\x00=\xff\x80"
    tree = apply_layers(
        Layer().file("ping", xattrs={"user.z": b"", "security.capability": capability, "user.b": b"1"})
    )
    assert tree[b"ping"].xattrs == (
        (b"security.capability", capability),
        (b"user.b", b"1"),
        (b"user.z", b""),
    )


def test_modes_owners_and_devices() -> None:
    tree = apply_layers(
        Layer()
        .file("a", mode=0o6755, uid=12, gid=34)
        .add("c", tarfile.CHRTYPE, devmajor=10, devminor=200)
        .add("b", tarfile.BLKTYPE, devmajor=8, devminor=1)
    )
    assert (tree[b"a"].mode, tree[b"a"].uid, tree[b"a"].gid) == (0o106755, 12, 34)
    assert (tree[b"c"].device, tree[b"b"].device) == ((10, 200), (8, 1))


def test_a_v7_header_with_a_slash_is_a_folder() -> None:
    header = bytearray(raw_tar(tarfile.USTAR_FORMAT, tarfile.TarInfo("d/"))[:512])
    header[0:2], header[156], header[257:265] = b"d/", 0, bytes(8)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    ((member, _),) = read(bytes(header) + bytes(1024))
    assert (member.kind, member.name) == (b"5", b"d/")


@pytest.mark.parametrize(
    "arguments",
    [["--format=gnu"], *([["--format=pax", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0")])],
)
def test_sparse_files_of_gnu_tar_come_back_whole(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        for position in range(40):
            stream.seek(position * 100_000)
            stream.write(b"data %d" % position)
        stream.truncate(5_000_000)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 3_000_000)
    (tmp_path / "after").write_bytes(b"after")
    archive = subprocess.run(
        ["tar", "-cS", *arguments, "-C", tmp_path, "sparse", "hole", "after"],
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    assert len(archive) < 1_000_000
    found = {member.name: (member.size, content) for member, content in read(archive, 4096)}
    assert found == {
        b"sparse": (5_000_000, path.read_bytes()),
        b"hole": (3_000_000, bytes(3_000_000)),
        b"after": (5, b"after"),
    }


def lastlog(size: int, name: bytes = b"lastlog") -> RawTar:
    """A sparse file with one record at its very end, as PAX format 1.0."""
    keys = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"%d" % size}
    return RawTar().file(name, (b"1\n%d\n292\n" % (size - 292)).ljust(512, b"\0") + b"x" * 292, pax=keys)


@pytest.mark.parametrize(
    "users", [1_000_000_000, pytest.param(4_294_967_295, marks=pytest.mark.full, id="all users of Linux")]
)
def test_a_login_record_of_the_last_user_costs_no_space(users: int, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [lastlog(users * 292).content()])
    store = open_store(str(tmp_path / "store"), create=True)
    report = index_image(f"oci:{tmp_path}/layout", store=store, name="image")
    assert report.content_bytes == users * 292
    assert report.new_bytes <= 2 * 131072
    assert report.index_bytes < users * 292 // 4000


def test_holes_beyond_measure_are_refused_before_they_take_memory() -> None:
    with pytest.raises(DataError, match=r"tar stream passes a limit: .*`lastlog`: its size is"):
        apply_layers(lastlog((1 << 41) + 1).content())
    first, second = lastlog(1 << 40, b"a").content(), lastlog((1 << 40) + 1000, b"b").content()
    with pytest.raises(DataError, match="layer 1: `b` brings the image's holes to"):
        apply_layers(first, second)


def test_contents_that_nobody_reads_are_passed_over() -> None:
    content = Layer().file("a", b"x" * 5000).file("b", b"y" * 512).file("c", b"z").content()
    reader = TarReader(ByteStream(iter([content])), "x")
    seen = []
    for member in reader:
        if member.name == b"b":
            next(iter(reader.content(member)))
        seen.append(member.name)
    assert seen == [b"a", b"b", b"c"]


def test_an_archive_without_its_end_marker_is_accepted_at_a_member_boundary() -> None:
    content = Layer().file("a", b"x").content()
    assert [member.name for member, _ in read(content[:1024])] == [b"a"]


@pytest.mark.parametrize("length", [1, 511, 513, 700, 811])
def test_an_archive_cut_short_is_damaged(length: int) -> None:
    content = Layer().file("a", b"x" * 300).content()
    with pytest.raises(DataError, match=r"tar stream is damaged: test\.tar"):
        read(content[:length])


def test_an_archive_may_end_before_the_padding_of_its_last_file() -> None:
    content = Layer().file("a", b"x" * 300).content()
    for length in (812, 1000, 1023):
        assert read(content[:length])[0][1] == b"x" * 300


def test_a_flipped_header_byte_is_damage_and_not_the_end() -> None:
    content = bytearray(Layer().file("a", b"x").file("b", b"y").content())
    content[1024 + 3] ^= 0xFF
    with pytest.raises(DataError, match="checksum is wrong"):
        read(bytes(content))


def test_unknown_types_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"`odd`: its type b.M. is unknown"):
        read(raw_tar(tarfile.GNU_FORMAT, _typed("odd", b"M")))


def _typed(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


@pytest.mark.parametrize(
    "pax",
    [{"mtime": "yesterday"}, {"uid": "-1"}, {"size": "abc"}, {"mtime": "9" * 30}, {"uid": str(1 << 32)}],
)
def test_numbers_that_cannot_be_are_damage(pax: dict[str, str]) -> None:
    with pytest.raises(DataError, match="tar stream is damaged"):
        read(Layer().file("a", pax=pax).content())


@pytest.mark.parametrize("seed", range(200))
def test_random_damage_never_escapes_as_another_error(seed: int) -> None:
    content = bytearray(
        Layer()
        .file("a", b"x" * 700, pax={"mtime": "1.5"}, xattrs={"user.a": b"v"})
        .link("b", "a")
        .folder("d")
        .content()[:6144]
    )
    for step in range(4):
        content[(seed * 7919 + step * 104_729) % len(content)] ^= 1 << (seed % 8)
    with suppress(DataError):
        apply_layers(bytes(content))
