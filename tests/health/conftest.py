"""What tests of health share."""

from __future__ import annotations

from pathlib import Path

import pytest

from stand_ins.gpu_driver import GpuDriver


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuDriver:
    driver = GpuDriver(tmp_path)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver
