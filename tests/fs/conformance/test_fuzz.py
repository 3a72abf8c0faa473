"""Damaged images by the thousand: refused in words, or indexed and read again; never a hang or a trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from coldstart_cli.process import run
from conftest import REPOSITORY

_MOST_MEMORY_BYTES = 1 << 30  # what a file of 2 TiB costs that is one hole


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 1000),
        pytest.param(100_000, 3000, marks=pytest.mark.full),
        pytest.param(200_000, 3000, marks=pytest.mark.full),
    ],
)
def test_damaged_images_are_refused_in_words_or_indexed_whole(first: int, count: int, tmp_path: Path) -> None:
    done = run(
        [sys.executable, "-m", "fs.conformance.fuzz", tmp_path / "fuzz", str(first), str(count)],
        deadline_seconds=60 + count,
        environment={"PYTHONPATH": str(REPOSITORY / "tests")},
    )
    report = json.loads(done.stdout)
    assert not report["failures"], "\n".join(report["failures"][:5])
    assert report["memory_bytes"] < _MOST_MEMORY_BYTES
    for kind in ("tar", "stream", "document", "digest", "oci-archive", "docker-archive"):
        assert report["counts"][f"{kind} refused"] > 0
    assert report["counts"]["tar accepted"] > count // 20
