"""The locator: every chunk is found, nothing else is, damage is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.format.locator import ChunkLocation, Locator, encode_locator

PACKS = [bytes([number]) * 32 for number in range(3)]
LOCATIONS = {
    hashlib.sha256(b"%d" % number).digest(): ChunkLocation(
        PACKS[number % 3], number * 1000, 900, 1000, number % 2
    )
    for number in range(200)
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.locator"
    path.write_bytes(encode_locator(LOCATIONS, PACKS))
    return path


def test_every_chunk_is_found_and_nothing_else(path: Path) -> None:
    with Locator.open(path) as locator:
        assert locator.packs == PACKS
        assert {digest: locator.find(digest) for digest in LOCATIONS} == LOCATIONS
        assert dict(locator.records()) == LOCATIONS
        for absent in (bytes(32), b"\xff" * 32, hashlib.sha256(b"other").digest()):
            assert locator.find(absent) is None


def test_the_bytes_do_not_depend_on_the_order_of_the_chunks() -> None:
    assert encode_locator(LOCATIONS, PACKS) == encode_locator(dict(reversed(LOCATIONS.items())), PACKS)


def test_a_locator_of_no_chunks(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(encode_locator({}, []))
    with Locator.open(path) as locator:
        assert locator.find(b"1" * 32) is None


def test_a_flipped_bit_anywhere_is_damage(path: Path) -> None:
    content = path.read_bytes()
    for position in [*range(40), *range(64, 96), *range(96, len(content), 97)]:
        changed = bytearray(content)
        changed[position] ^= 4
        path.write_bytes(changed)
        with pytest.raises(DataError, match="locator"):
            Locator.open(path)


def test_a_locator_cut_anywhere_is_damage(path: Path) -> None:
    content = path.read_bytes()
    for length in [*range(0, 100, 3), len(content) - 56, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=f"locator is damaged: {path}"):
            Locator.open(path)


def test_a_pack_number_out_of_range_is_damage(path: Path) -> None:
    content = encode_locator(LOCATIONS, PACKS)
    # a well-formed file whose records name packs that its table lacks
    body = bytearray(content[96 + 96 :])
    from blake3 import blake3

    header = bytearray(content[:96])
    header[16:24] = (96 + len(body)).to_bytes(8, "little")
    header[24:32] = bytes(8)
    header[64:96] = blake3(body).digest()
    path.write_bytes(bytes(header) + bytes(body))
    with Locator.open(path) as locator, pytest.raises(DataError, match="no pack"):
        locator.find(next(iter(LOCATIONS)))
