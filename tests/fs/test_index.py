"""The index: what is written comes back, the same tree gives the same bytes, damage is named."""

from __future__ import annotations

import os
import random
import re
import stat
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.format.entry import Entry
from coldstart_fs.format.index import HEADER, HEADER_BYTES, HOLE, Index
from coldstart_fs.format.index_writer import encode_index

CHUNK = 4096
CONFIGURATION = {"command": ["/bin/sh"], "environment": ["A=\u00e4"], "user": "1000"}


def sample_tree(order: int = 1) -> Entry:
    """A bit of everything; `order` reverses the order in which names were met."""
    xattrs = ((b"user.a", b"\0\xff"), (b"security.capability", b"x"))
    linked = Entry(
        stat.S_IFREG | 0o4755, 0, 5, -1, xattrs, size=CHUNK * 2 + 1, chunks=b"1" * 32 + HOLE + b"3" * 32
    )
    folder = Entry(stat.S_IFDIR | 0o711, 7, 8, 1_000_000_000_000_000_001)
    names = {
        b"link": linked,
        b"\xff\n": Entry(stat.S_IFREG | 0o600, mtime_ns=-1_500_000_000),
        b"sym": Entry(stat.S_IFLNK | 0o777, target=b"/\x80/where"),
        b"null": Entry(stat.S_IFCHR | 0o666, device=(1, 3)),
        b"disk": Entry(stat.S_IFBLK | 0o660, device=(4095, 1_048_575)),
        b"fifo": Entry(stat.S_IFIFO | 0o644, xattrs=tuple(reversed(xattrs))),
    }
    folder.children = dict(list(names.items())[::order])
    empty = Entry(stat.S_IFDIR | 0o1777)
    root = Entry(stat.S_IFDIR | 0o755, uid=4_294_967_294)
    root.children = dict([(b"a", linked), (b"folder", folder), (b"tmp", empty)][::order])
    return root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sample.index"
    path.write_bytes(encode_index(sample_tree(), chunk_bytes=CHUNK, configuration=CONFIGURATION))
    return path


def test_everything_written_comes_back(path: Path) -> None:
    with Index.open(path) as index:
        assert (index.chunk_bytes, index.inode_count, index.content_bytes) == (CHUNK, 9, CHUNK * 2 + 1)
        assert index.has_xattrs
        assert index.configuration == CONFIGURATION
        root = index.inode(0)
        assert (root.mode, root.uid, root.links, root.size) == (stat.S_IFDIR | 0o755, 4_294_967_294, 4, 3)
        assert [name for _, name, _, _ in index.entries(0)] == [b"a", b"folder", b"tmp"]
        linked = index.inode(1)
        assert (linked.mode, linked.gid, linked.mtime_ns, linked.links) == (stat.S_IFREG | 0o4755, 5, -1, 2)
        assert list(index.chunk_digests(1)) == [b"1" * 32, HOLE, b"3" * 32]
        assert index.chunk_digest(1, 2) == b"3" * 32
        assert index.xattrs(1) == {b"security.capability": b"x", b"user.a": b"\0\xff"}
        folder = index.lookup(0, b"folder")
        assert folder == 2
        assert index.inode(2).parent == 0
        assert index.inode(2).mtime_ns == 1_000_000_000_000_000_001
        assert index.lookup(2, b"link") == 1
        found = {name: index.inode(number) for _, name, number, _ in index.entries(2)}
        assert sorted(found) == [b"disk", b"fifo", b"link", b"null", b"sym", b"\xff\n"]
        assert found[b"disk"].device == (4095, 1_048_575)
        assert found[b"null"].device == (1, 3)
        assert found[b"fifo"].device == (0, 0)
        assert found[b"\xff\n"].mtime_ns == -1_500_000_000
        assert index.symlink_target(found[b"sym"].number) == b"/\x80/where"
        assert found[b"sym"].size == len(b"/\x80/where")
        assert index.inode(8).links == 2


def test_numbers_are_depth_first_and_links_stand_at_their_first_name(path: Path) -> None:
    with Index.open(path) as index:
        assert [(name, number) for _, name, number, _ in index.entries(0)] == [
            (b"a", 1),
            (b"folder", 2),
            (b"tmp", 8),
        ]
        assert [number for _, _, number, _ in index.entries(2)] == [3, 4, 1, 5, 6, 7]


def test_reading_a_folder_goes_on_where_it_was_left(path: Path) -> None:
    with Index.open(path) as index:
        whole = list(index.entries(2))
        assert [position for position, *_ in whole] == list(range(6))
        assert list(index.entries(2, 4)) == whole[4:]
        assert list(index.entries(2, 6)) == []
        assert whole[0][3] == stat.S_IFBLK >> 12


def test_lookups_find_every_name_and_nothing_else(tmp_path: Path) -> None:
    root = Entry(stat.S_IFDIR | 0o755)
    names = {random.Random(number).randbytes(1 + number % 9).replace(b"/", b"_") for number in range(500)}
    root.children = {name: Entry(stat.S_IFREG) for name in names}
    path = tmp_path / "i"
    path.write_bytes(encode_index(root, chunk_bytes=CHUNK, configuration={}))
    with Index.open(path) as index:
        numbers = {name: number for _, name, number, _ in index.entries(0)}
        assert {name: index.lookup(0, name) for name in names} == numbers
        for absent in (b"", b"\0", b"\xff" * 255, next(iter(names)) + b"!"):
            assert index.lookup(0, absent) is None or absent in names


def test_the_order_in_which_names_were_met_does_not_matter() -> None:
    forward = encode_index(sample_tree(1), chunk_bytes=CHUNK, configuration=CONFIGURATION)
    backward = encode_index(
        sample_tree(-1), chunk_bytes=CHUNK, configuration=dict(reversed(CONFIGURATION.items()))
    )
    assert forward == backward


def test_very_deep_trees_are_no_recursion(tmp_path: Path) -> None:
    root = folder = Entry(stat.S_IFDIR | 0o755)
    for _ in range(5000):
        folder.children[b"d"] = Entry(stat.S_IFDIR | 0o755)
        folder = folder.children[b"d"]
    path = tmp_path / "deep"
    path.write_bytes(encode_index(root, chunk_bytes=CHUNK, configuration={}))
    with Index.open(path) as index:
        assert index.inode(5000).parent == 4999


def test_the_digest_of_the_whole_file_is_checked_when_it_is_given(path: Path) -> None:
    digest = Index.open(path).digest()
    Index.open(path, expected_digest=digest).close()
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"index is damaged: {path}: its digest is blake3:"):
        Index.open(path, expected_digest=digest)


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="index does not exist"):
        Index.open(tmp_path / "none.index")


def test_a_newer_format_is_refused_with_the_way_out(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] = 2
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"index has format 2, coldstart .* reads up to 1") as caught:
        Index.open(path)
    assert caught.value.hint == "install a newer coldstart"


def test_an_index_cut_anywhere_is_damaged(path: Path) -> None:
    content = path.read_bytes()
    for length in [*range(HEADER_BYTES + 2), *range(HEADER_BYTES, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=re.escape(f"index is damaged: {path}")):
            Index.open(path)


def test_bytes_after_the_end_are_damage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match="index is damaged"):
        Index.open(path)


def read_all(path: Path) -> None:
    """Touch everything that an index can be asked for."""
    with Index.open(path) as index:
        _ = index.configuration
        for number in range(index.inode_count):
            inode = index.inode(number)
            index.xattrs(number)
            if inode.is_directory:
                for _, name, child, _ in index.entries(number):
                    assert child < index.inode_count
                    index.lookup(number, name)
            elif inode.is_symlink:
                index.symlink_target(number)
            elif inode.is_file:
                for digest in index.chunk_digests(number):
                    assert len(digest) == 32


def damage_met(path: Path) -> ColdstartError | None:
    """The expected error that reading everything ends with; any other error fails the test."""
    try:
        read_all(path)
    except ColdstartError as error:
        return error
    return None


def test_every_header_field_is_checked(path: Path) -> None:
    good = path.read_bytes()
    fields = list(HEADER.unpack_from(good))
    refused = 0
    for position in range(1, len(fields)):
        for value in (0, 1, fields[position] + 1, fields[position] + 8, 0xFFFFFFFF, 1 << 31):
            changed = [*fields]
            changed[position] = value
            path.write_bytes(HEADER.pack(*changed) + good[HEADER_BYTES:])
            if error := damage_met(path):
                refused += 1
                assert str(path) in error.message
    assert refused > 70


@pytest.mark.parametrize("seed", range(300))
def test_random_damage_is_a_named_error_or_harmless(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(content) - 8)
        content[start : start + chance.choice((1, 4, 8))] = chance.choice(
            (b"\xff", b"\0", b"\xff" * 4, b"\x7f" * 8, os.urandom(8))
        )
    path.write_bytes(content)
    if error := damage_met(path):
        assert isinstance(error, DataError)
        assert str(path) in error.message


def test_what_is_not_there_is_damage_not_a_crash(path: Path) -> None:
    with Index.open(path) as index:
        for question in (
            lambda: index.inode(9),
            lambda: index.inode(-1),
            lambda: index.lookup(1, b"x"),
            lambda: list(index.entries(1)),
            lambda: index.symlink_target(0),
            lambda: index.chunk_digests(0),
            lambda: index.chunk_digest(1, 3),
            lambda: index.chunk_digest(1, -1),
        ):
            with pytest.raises(DataError, match="index is damaged"):
                question()
