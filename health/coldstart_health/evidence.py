"""What a judgement reads, and all it reads: gathered on this host, or recorded on another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coldstart_health.diagnosing import Diagnosing
from coldstart_health.inventory import NO_DRIVER_CODES, Inventory
from coldstart_health.pressure import HostPressure
from coldstart_health.samples import Sample
from coldstart_health.verdict import CheckRun, Expectation, Finding
from coldstart_host.clock import ClockFacts
from coldstart_host.fabric import FabricFacts
from coldstart_host.gpu import NvmlReading
from coldstart_host.pci import PciGpu

if TYPE_CHECKING:
    from coldstart_health.dcgm_run import DcgmOutput
    from coldstart_health.kernel_checks import KernelLog
    from coldstart_host.cuda_copy import CopyResult


@dataclass(frozen=True)
class Limits:
    """Percentages at which a host is degraded and at which it is out; above 100 one is off."""

    warn_percent: float = 80.0
    fail_percent: float = 90.0


@dataclass(frozen=True)
class Evidence:
    """Facts without an opinion. `checks` are those asked for, each with its error where it was not made.

    `dcgm` holds every run of one diagnosis, `copies` the CUDA copies made instead.
    `previous` is the host's last sample; `orphans` are processes that an earlier diagnosis left.
    `notes` are findings of the gathering itself, such as a record that could not be written.
    """

    checks: tuple[CheckRun, ...] = ()
    limits: Limits = field(default_factory=Limits)
    expected: Expectation = field(default_factory=lambda: Expectation(0, "no record", explicit=False))
    known: Inventory | None = None
    reading: NvmlReading = field(default_factory=NvmlReading)
    bus: tuple[PciGpu, ...] = ()
    fabric: FabricFacts | None = None
    pressure: HostPressure | None = None
    clock: ClockFacts | None = None
    previous: Sample | None = None
    diagnosing: Diagnosing | None = None
    orphans: tuple[int, ...] = ()
    kernel_log: KernelLog | None = None
    dcgm: tuple[DcgmOutput, ...] = ()
    copies: tuple[CopyResult, ...] = ()
    notes: tuple[Finding, ...] = ()
    duration_seconds: float = 0.0

    @property
    def no_gpus(self) -> bool:
        """NVML says that there is none, or that there is no driver to have one."""
        fault = self.reading.fault
        return self.reading.count == 0 or (fault is not None and fault.code in NO_DRIVER_CODES)

    @property
    def gpuless(self) -> bool:
        """No GPU is here, on the bus neither, and none is expected."""
        return self.no_gpus and not self.expected.count and not any(gpu.ours for gpu in self.bus)
