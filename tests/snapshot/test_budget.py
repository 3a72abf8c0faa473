"""The budget of a restore, from figures and from criu's own account."""

from __future__ import annotations

import struct
from pathlib import Path

from coldstart_snapshot.criu.budget import RestoreBudget
from coldstart_snapshot.criu.images import RestoreStats, restore_stats

# as criu 4.2.1 left it after a restore of 82,957 pages
_STATS = bytes.fromhex("405910550633095710000000120e08001000180220a9fe5f288d8805")


def test_what_criu_says_of_a_restore_is_read(tmp_path: Path) -> None:
    (tmp_path / "stats-restore").write_bytes(_STATS)
    assert restore_stats(tmp_path) == RestoreStats(1.572649, 82957)


def test_what_is_no_account_of_criu_is_passed_over(tmp_path: Path) -> None:
    assert restore_stats(tmp_path) is None
    for content in (b"", _STATS[:9], _STATS[:20], struct.pack("<II", 1, 2) + _STATS[8:], _STATS[:8]):
        (tmp_path / "stats-restore").write_bytes(content)
        assert restore_stats(tmp_path) in {None, RestoreStats(0.0, 0)}


def test_a_budget_says_what_was_measured_and_nothing_else() -> None:
    bare = RestoreBudget(1000, 24, 0, "off")
    assert bare.fault_bytes_per_second is None
    assert bare.document()["read_bytes_per_second"] is None
    assert not any("MB/s" in line for line in bare.lines())
    full = RestoreBudget(1000, 24, 0, "off", False, 5e9, 1000, 0.5, {"verify": 0.1}).also("ready", 0.2)
    assert full.document()["seconds"] == {"verify": 0.1, "ready": 0.2}
    assert full.document()["fault_bytes_per_second"] == 8192000
