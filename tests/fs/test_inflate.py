"""Gzip layers through ISA-L: the same bytes and the same refusals as zlib's."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Iterator

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.indexing.sources import compression


def inflated(data: bytes, step: int) -> bytes | None:
    blocks = (data[start : start + step] for start in range(0, len(data), step))
    try:
        return b"".join(compression.decompressed(blocks, "a layer"))
    except DataError:
        return None


def damaged_streams(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(400):
        members = [
            gzip.compress(bytes(chance.choices(b"ab\0cdef", k=chance.randint(0, 3000))), level, mtime=0)
            for level in chance.choices((0, 1, 6, 9), k=chance.randint(1, 3))
        ]
        data = bytearray(b"".join(members))
        for _ in range(chance.randint(0, 3)):
            kind = chance.randrange(4)
            if kind == 0:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del data[chance.randrange(10, len(data) + 1) :]
            elif kind == 2:
                data += bytes(chance.randint(1, 40))
            else:
                data += chance.randbytes(chance.randint(1, 9))
        yield bytes(data)


@pytest.mark.parametrize("step", [1, 64, 1 << 18])
def test_damaged_gzip_streams_mean_the_same_to_both_inflaters(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("isal")
    streams = list(damaged_streams(step))
    fast = [inflated(data, step) for data in streams]
    monkeypatch.setattr(compression, "_inflater", lambda: zlib)
    assert [inflated(data, step) for data in streams] == fast
    assert fast.count(None) not in {0, len(fast)}
