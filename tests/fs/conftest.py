"""Mounts for tests of the file system side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fs.mounts import Lab, laboratory


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr("coldstart_fs.unmount._PATIENCE_SECONDS", 0.5)  # two seconds a test add up
    with laboratory(tmp_path) as lab:
        yield lab
