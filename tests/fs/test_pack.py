"""Packs and the chunks in them: written as the format says, decoded with suspicion."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from coldstart_cli.errors import DataError, IoFailure, UsageError
from coldstart_fs.format.chunk import RAW, ZSTD, Compression, chunk_digest, decode_chunk, split, verify
from coldstart_fs.format.locator import RECORD, ChunkLocation
from coldstart_fs.format.pack import FOOTER, FOOTER_MAGIC, PackWriter


def test_a_pack_is_bodies_then_table_then_footer_under_its_digest(tmp_path: Path) -> None:
    bodies = [b"one", b"two22", b"three" * 100]
    writer = PackWriter(tmp_path)
    for body in bodies:
        writer.add(chunk_digest(body), body)
    writer.cut()
    (pack,) = writer.taken()
    content = pack.path.read_bytes()
    assert blake3(content).digest() == pack.digest
    assert pack.size_bytes == len(content)
    magic, version, count, table = FOOTER.unpack(content[-32:])
    assert (magic, version, count, table) == (FOOTER_MAGIC, 1, 3, sum(map(len, bodies)))
    assert content[table:-32] == pack.records
    records = [RECORD.unpack_from(content, table + 56 * number) for number in range(3)]
    assert len(content) == table + 3 * 56 + 32
    for body, (digest, offset, stored, size, number, encoding, _) in zip(bodies, records, strict=True):
        assert digest == chunk_digest(body)
        assert content[offset : offset + stored] == body
        assert (size, number, encoding) == (len(body), 0, RAW)


@pytest.mark.parametrize("compression", [None, Compression()])
def test_a_full_pack_is_followed_by_another(tmp_path: Path, compression: Compression | None) -> None:
    writer = PackWriter(tmp_path, full_bytes=1000, compression=compression)
    chance = random.Random(1)
    bodies = [chance.randbytes(100) for _ in range(25)]
    for body in bodies:
        writer.add(chunk_digest(body), body)
    writer.cut()
    packs = writer.taken()
    writer.close()
    assert [len(pack.records) // RECORD.size for pack in packs] == [10, 10, 5]
    assert writer.taken() == []
    found = [record[0] for pack in packs for record in RECORD.iter_unpack(pack.records)]
    assert found == [chunk_digest(body) for body in bodies]


def test_a_cut_ends_a_pack_and_an_empty_one_is_none(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path)
    writer.cut()
    for body in (b"hot", b"cold"):
        writer.add(chunk_digest(body), body)
        writer.cut()
        writer.cut()
    assert [
        pack.path.read_bytes()[: len(body)]
        for pack, body in zip(writer.taken(), (b"hot", b"cold"), strict=True)
    ] == [b"hot", b"cold"]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.pack").symlink_to("/dev/full")
    writer = PackWriter(tmp_path)
    body = b"x" * (2 << 20)
    with pytest.raises(IoFailure, match=r"cannot write `.*0\.pack`: No space left"):
        writer.add(chunk_digest(body), body)
    writer.close()


def test_compression_keeps_what_shrinks_and_leaves_the_rest(tmp_path: Path) -> None:
    noise = random.Random(2).randbytes(50_000)
    bodies = [b"words " * 10_000, noise, noise[:40_000] + bytes(1000), b"x", b"another text " * 3000]
    writer = PackWriter(tmp_path, compression=Compression(6))
    for body in bodies:
        writer.add(chunk_digest(body), body)
    writer.cut()
    (pack,) = writer.taken()
    writer.close()
    content = pack.path.read_bytes()
    encodings = []
    for body, (digest, offset, stored, size, _, encoding, _) in zip(
        bodies, RECORD.iter_unpack(pack.records), strict=True
    ):
        place = ChunkLocation(pack.digest, offset, stored, size, encoding)
        assert decode_chunk(place, content[offset : offset + stored]) == body
        verify(digest, body)
        encodings.append(encoding)
    assert encodings == [ZSTD, RAW, RAW, RAW, ZSTD]


@pytest.mark.parametrize("text", ["none", "zstd", "zstd:1", "zstd:19"])
def test_compressions_are_read_as_they_are_written(text: str) -> None:
    expected = {"none": None, "zstd": 3, "zstd:1": 1, "zstd:19": 19}[text]
    assert Compression.parse(text) == (Compression(expected) if expected else None)


@pytest.mark.parametrize("text", ["", "gzip", "zstd:", "zstd:0", "zstd:20", "zstd:x", "zstd:-1", "ZSTD"])
def test_other_compressions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a compression"):
        Compression.parse(text)


def location(stored: bytes, size: int, encoding: int) -> ChunkLocation:
    return ChunkLocation(b"p" * 32, 7, len(stored), size, encoding)


def test_chunks_are_decoded_raw_and_from_zstd() -> None:
    data = b"content " * 1000
    packed = zstandard.compress(data)
    assert decode_chunk(location(data, len(data), RAW), data) == data
    assert decode_chunk(location(packed, len(data), ZSTD), packed) == data
    # a frame that does not say how much is in it
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(data) + stream.flush()
    assert decode_chunk(location(packed, len(data), ZSTD), packed) == data


@pytest.mark.parametrize(
    ("stored", "size", "encoding", "message"),
    [
        (b"abc", 4, RAW, "3 bytes instead of 4"),
        (zstandard.compress(b"x" * 10_000_000), 5, ZSTD, "6 bytes instead of 5"),
        (zstandard.compress(b"xyz"), 4, ZSTD, "3 bytes instead of 4"),
        (b"not zstd at all", 4, ZSTD, "cannot be decompressed"),
        (b"abc", 3, 9, "unknown chunk encoding 9"),
    ],
)
def test_chunks_that_cannot_be_decoded_are_damage(
    stored: bytes, size: int, encoding: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        decode_chunk(location(stored, size, encoding), stored)


def test_a_short_read_is_damage() -> None:
    with pytest.raises(DataError, match="cut short: 2 of 3 bytes"):
        decode_chunk(location(b"abc", 3, RAW), b"ab")


def test_a_chunk_must_have_its_digest() -> None:
    verify(chunk_digest(b"a"), b"a")
    with pytest.raises(DataError, match="chunk is damaged: blake3:"):
        verify(chunk_digest(b"a"), b"b")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"abcdefghijk"],
        [b"a", b"bcd", b"efghij", b"k"],
        [4, b"abcd", 4, b"a"],
        [b"ab", 10, b"cd", 1, 3],
        [20, b"a"],
        [b"abcd", 40],
        [3],
        [b"", b"abcd", 0],
        [],
    ],
)
def test_pieces_are_regrouped_without_losing_a_byte(pieces: list[bytes | int]) -> None:
    whole = b"".join(bytes(piece) for piece in pieces)
    chunks = list(split(pieces, 4))
    assert b"".join(bytes(chunk) for chunk in chunks) == whole
    for chunk in chunks[:-1]:
        assert chunk % 4 == 0 if isinstance(chunk, int) else len(chunk) == 4
    assert all(chunk if isinstance(chunk, int) else len(chunk) for chunk in chunks)


def test_long_holes_stay_numbers() -> None:
    assert list(split([b"abcd", 4_000_000_000_000], 4))[1:] == [4_000_000_000_000]
