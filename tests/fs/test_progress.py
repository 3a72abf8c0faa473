"""How far an indexing is, in words."""

from __future__ import annotations

import pytest

from coldstart_fs.indexing.progress import Progress


def test_a_phase_alone_is_a_sentence() -> None:
    assert Progress("opening oci:x").describe() == "opening oci:x"


@pytest.mark.parametrize(
    ("seconds", "done", "expected"),
    [
        (0.5, 2_000_000, "reading, 2.0 of 400 MB, 7 files"),
        (2, 100_000_000, "reading, 100 of 400 MB, 7 files, 50 MB/s, 6 s left"),
        (100, 2_000_000, "reading, 2.0 of 400 MB, 7 files, 0.0 MB/s, 5:31 h left"),
        (10, 20_000_000, "reading, 20 of 400 MB, 7 files, 2.0 MB/s, 3:10 min left"),
        (10, 400_000_000, "reading, 400 of 400 MB, 7 files, 40 MB/s"),
        (10, 500_000_000, "reading, 400 of 400 MB, 7 files, 50 MB/s"),
    ],
)
def test_share_files_rate_and_time_left(
    seconds: float, done: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress("reading")
    progress.expect(400_000_000)
    progress.files = 7
    list(progress.counted([bytes(1_000_000)] * (done // 1_000_000)))
    now[0] += seconds
    assert progress.describe() == expected
    assert progress.read_bytes == done


def test_the_work_at_hand_begins_anew_and_the_source_goes_on() -> None:
    progress = Progress()
    progress.expect(10)
    list(progress.counted([b"x" * 10]))
    progress.expect(5)
    progress.advance(3)
    assert (progress.done_bytes, progress.total_bytes, progress.read_bytes) == (3, 5, 10)
