"""Mounts for tests of the file system side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fs.mounts import Lab, laboratory


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab
