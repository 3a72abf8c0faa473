"""A host of a few GPUs for whole runs of `health quick`: faults by line, reboots by switch, and fast."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pynvml
import pytest

from coldstart_cli import config as configuration
from coldstart_cli.config import Scalar
from coldstart_health import checks, moment
from coldstart_health.moment import Moment
from coldstart_health.pressure import HostPressure
from coldstart_health.quarantine_record import GpuRecord
from coldstart_health.standing import standing
from coldstart_health.verdict import HealthReport
from coldstart_host.clock import ClockFacts
from coldstart_host.fabric import FabricFacts
from coldstart_host.gpu import NvmlReading
from coldstart_host.gpu_nvml import NvmlSession
from stand_ins.gpu_driver import GpuDriver

IDLE = HostPressure(1.0, 2, 0.1, 100, 90, (), None, None)
IN_TIME = ClockFacts(True, True, False, 0.01, 1_700_000_000.0, 36_000.0)


class GpuHost:
    """Two healthy GPUs, until told otherwise; the driver is asked in this process, unless it is to hang."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.driver = GpuDriver(folder)
        for name, value in self.driver.environment.items():
            patch.setenv(name, value)
        self._boots = 0
        self.seconds = 1000.0
        patch.setattr(moment, "now", self.now)
        for module in ("checks", "deep", "remember", "collection"):
            patch.setattr(f"coldstart_health.{module}.now", self.now)
        patch.setattr(checks, "pci_gpus", tuple)
        patch.setattr(checks, "read_pressure", lambda _: IDLE)
        patch.setattr(checks, "read_clock", lambda: IN_TIME)
        patch.setattr(checks, "read_fabric", lambda: FabricFacts(0, False, False))
        patch.setattr(checks, "left_over", tuple)
        self._probe = checks.read_gpus
        patch.setattr(checks, "read_gpus", self._read)
        library = os.path.join(self.driver.environment["LD_LIBRARY_PATH"], "libnvidia-ml.so.1")
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(library))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self._hangs = False
        self.driver_version: str | None = None
        self.reboot()

    def reboot(self) -> None:
        self._boots += 1
        self.seconds = 60.0

    def now(self) -> Moment:
        """A second later at each look; the clock on the wall is set by whoever wants it wrong."""
        self.seconds += 1.0
        return Moment(f"boot-{self._boots}", self.seconds, f"2026-11-{self._boots:02}T12:00:00+00:00")

    def quick(self, *faults: str, **settings: Scalar) -> HealthReport:
        """One `health quick`; keys of settings have `__` for the dot."""
        self._hangs = any(" hang " in fault for fault in faults)
        self.driver.control("* count 2", *faults)
        flags = {"health.clean_interval_seconds": 0.0}
        flags |= {key.replace("__", "."): value for key, value in settings.items()}
        return checks.quick_check(configuration.load(flags))

    def _read(self, **_: Any) -> NvmlReading:
        if self._hangs:
            return self._probe(deadline_seconds=4.0)
        session = NvmlSession()
        gpus = tuple(session.read(session.questions(index)) for index in range(session.count))
        session.close()
        driver = self.driver_version or session.driver_version
        return NvmlReading(driver, session.cuda_version, session.count, gpus)


def blocking() -> tuple[GpuRecord, ...]:
    """What is in quarantine, as everybody but the checks themselves is told."""
    return standing(configuration.load()).blocking


def state_folder() -> Path:
    return configuration.load().state_folder
