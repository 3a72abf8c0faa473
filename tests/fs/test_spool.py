"""The spool gives chunks back in any order, and their disk space as they go."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from coldstart_cli.errors import IoFailure
from coldstart_fs.indexing import spool as spool_module
from coldstart_fs.indexing.spool import Spool


@pytest.mark.parametrize("order", ["as written", "backwards", "shuffled"])
def test_every_chunk_comes_back_in_any_order(tmp_path: Path, order: str) -> None:
    chance = random.Random(order)
    chunks = [chance.randbytes(chance.choice((1, 100, 5000, 300_000))) for _ in range(500)]
    spool = Spool(tmp_path)
    places = [(spool.append(chunk), chunk) for chunk in chunks]
    spool.finish()
    assert spool.size_bytes == sum(map(len, chunks))
    if order == "backwards":
        places.reverse()
    elif order == "shuffled":
        chance.shuffle(places)
    assert all(spool.take(offset, len(chunk)) == chunk for offset, chunk in places)
    spool.close()


def test_what_was_taken_gives_its_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_RELEASE_BYTES", 1 << 20)
    spool = Spool(tmp_path)
    chunks = [os.urandom(100_000) for _ in range(60)]
    offsets = [spool.append(chunk) for chunk in chunks]
    spool.finish()
    assert (tmp_path / "spool").stat().st_blocks * 512 >= 6_000_000
    for number in [*range(30, 60), *range(15)]:
        assert spool.take(offsets[number], 100_000) == chunks[number]
    left = (tmp_path / "spool").stat().st_blocks * 512
    assert left < 6_000_000 // 4 + (2 << 20)
    assert spool.take(offsets[20], 100_000) == chunks[20]
    spool.close()


def test_a_full_disk_and_a_spool_that_somebody_cut_are_named(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(b"x" * 1000)
    spool.finish()
    os.truncate(tmp_path / "spool", 10)
    with pytest.raises(IoFailure, match=r"cannot read .*spool`: it was cut short"):
        spool.take(0, 1000)
    spool.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "spool").symlink_to("/dev/full")
    full = Spool(tmp_path / "full")
    with pytest.raises(IoFailure, match=r"cannot write .*spool`: No space left"):
        full.append(b"x" * (2 << 20))
    full.close()
