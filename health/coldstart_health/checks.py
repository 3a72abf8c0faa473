"""`health quick`: gathers the evidence in seconds, each check with a deadline, all beside each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, ConfigError, NotFoundError
from coldstart_cli.process import is_installed
from coldstart_health.diagnosing import Diagnosing, diagnosing_path, left_over, read_diagnosing
from coldstart_health.evidence import Evidence, Limits
from coldstart_health.host_checks import levels
from coldstart_health.inventory import (
    Inventory,
    inventory_path,
    load_inventory,
    may_record,
    record_inventory,
)
from coldstart_health.judgement import judge
from coldstart_health.moment import now
from coldstart_health.pressure import HostPressure, read_pressure
from coldstart_health.remember import Run, with_memory
from coldstart_health.samples import Sample, load_sample, record_sample, sample_path
from coldstart_health.verdict import HOST, CheckRun, Expectation, Finding, HealthReport, Verdict
from coldstart_host.clock import ClockFacts, read_clock
from coldstart_host.fabric import FabricFacts, read_fabric
from coldstart_host.gpu import NvmlReading
from coldstart_host.gpu_probe import PROBE_DEADLINE_SECONDS, read_gpus
from coldstart_host.pci import PciGpu, pci_gpus

if TYPE_CHECKING:
    from coldstart_health.dcgm_run import DcgmOutput
    from coldstart_health.kernel_checks import KernelLog
    from coldstart_host.cuda_copy import CopyResult

T = TypeVar("T")

PRESSURE_DEADLINE_SECONDS = 4.0
KERNEL_LOG_DEADLINE_SECONDS = 2.0
ACTIVE_DEADLINE_SECONDS = 90.0
THOROUGH_DEADLINE_SECONDS = 20.0


def quick_check(
    config: Config,
    *,
    active: bool = False,
    active_deadline_seconds: float = ACTIVE_DEADLINE_SECONDS,
    record: bool = True,
) -> HealthReport:
    """Verdict on this host in under five seconds; `active` puts the GPUs to work, in a budget of its own.

    Without `record` nothing is written: neither this boot's GPUs nor the quarantine.
    """
    run = Run("quick", now(), record=record)
    evidence = gather(config, active=active, active_deadline_seconds=active_deadline_seconds, record=record)
    return with_memory(config, evidence, judge(evidence), run)


def gather(
    config: Config,
    *,
    active: bool = False,
    active_deadline_seconds: float = ACTIVE_DEADLINE_SECONDS,
    record: bool = True,
) -> Evidence:
    """All that the quick check reads, and this boot's GPUs recorded for the next one."""
    run = HealthRun(config)
    pressure = _InBackground(lambda: read_pressure(_folders(config)))
    kernel_log = run.kernel_log_in_background(write=record)
    run.expectation()
    run.read_gpus(thorough=active)
    run.read_host()
    run.take_pressure(pressure)
    if active:
        run.exercise(deadline_seconds=active_deadline_seconds)
        kernel_log = run.kernel_log_in_background(write=record)  # what the diagnosis provoked counts
    run.take_kernel_log(kernel_log)
    if record:
        run.record_sample()
        run.record()
    return run.evidence()


class HealthRun:
    """Evidence as it comes in. A check that cannot be made leaves its error."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._limits = thresholds(config)
        self._checks: list[CheckRun] = []
        self._notes: list[Finding] = []
        self._known: Inventory | None = None
        self._expected = Expectation(0, "no record", explicit=False)
        self._reading = NvmlReading()
        self._bus: tuple[PciGpu, ...] = ()
        self._fabric: FabricFacts | None = None
        self._pressure: HostPressure | None = None
        self._clock: ClockFacts | None = None
        self._previous: Sample | None = None
        self._diagnosing: Diagnosing | None = None
        self._orphans: tuple[int, ...] = ()
        self._kernel_log: KernelLog | None = None
        self._dcgm: tuple[DcgmOutput, ...] = ()
        self._copies: tuple[CopyResult, ...] = ()

    def evidence(self) -> Evidence:
        return Evidence(
            checks=tuple(self._checks),
            limits=self._limits,
            expected=self._expected,
            known=self._known,
            reading=self._reading,
            bus=self._bus,
            fabric=self._fabric,
            pressure=self._pressure,
            clock=self._clock,
            previous=self._previous,
            diagnosing=self._diagnosing,
            orphans=self._orphans,
            kernel_log=self._kernel_log,
            dcgm=self._dcgm,
            copies=self._copies,
            notes=tuple(self._notes),
            duration_seconds=time.monotonic() - self._started,
        )

    def expectation(self) -> None:
        """The recorded inventory, and how many GPUs there should be."""
        configured = self._config.value("health.expect_gpus")
        given = self._config.optional_text("health.inventory")
        path = inventory_path(self._config.state_folder) if given is None else Path(given)
        try:
            self._known = load_inventory(path)
            if self._known is None and given is not None:
                raise NotFoundError(f"GPU inventory does not exist: {path}", hint=f"write {path}")
        except ColdstartError as error:
            if configured.value is None:
                self._note("inventory_unreadable", Verdict.UNKNOWN, error)
        if (count := self._config.optional_integer("health.expect_gpus")) is not None:
            if count < 0:
                raise ConfigError(f"expected GPUs must not be negative: {count} ({configured.source})")
            self._expected = Expectation(count, configured.source, explicit=True)
        elif self._known is not None and given is not None:
            self._expected = Expectation(
                len(self._known.gpus), f"inventory {path}", explicit=True, named=True
            )
        elif self._known is not None:
            self._expected = Expectation(len(self._known.gpus), "last recorded boot", explicit=False)

    def read_gpus(self, *, thorough: bool = False) -> NvmlReading:
        """Ask NVML in a process of its own, and the PCI bus; `thorough` also has the InfoROM verified."""
        deadline = THOROUGH_DEADLINE_SECONDS if thorough else PROBE_DEADLINE_SECONDS
        self._reading = NvmlReading()  # a look that fails must not leave the one before standing
        with self._check("nvml"):
            self._reading = read_gpus(deadline_seconds=deadline, thorough=thorough)
            self._bus = pci_gpus()
            self._fabric = read_fabric()
        return self._reading

    def read_host(self) -> None:
        """The clock, a diagnosis at work, and what the last run measured."""
        self._clock = read_clock()
        previous = load_sample(sample_path(self._config.run_folder))
        if previous and previous.before(self._clock.uptime_seconds):
            self._previous = previous
        self._diagnosing = read_diagnosing(diagnosing_path(self._config.run_folder))
        self._orphans = left_over()

    def take_pressure(self, sample: _InBackground[HostPressure]) -> None:
        with self._check("pressure"):
            self._pressure = sample.result(PRESSURE_DEADLINE_SECONDS)

    def kernel_log_in_background(self, *, write: bool = True) -> KernelLogSample | None:
        """Begin to read the kernel log; None where the configuration says not to."""
        configured = self._config.text("health.kernel_log")
        if configured == "none":
            return None
        state_folder, journalctl = self._config.state_folder, self._config.text("programs.journalctl")

        def take() -> tuple[KernelLog, tuple[Finding, ...]]:
            from coldstart_health.kernel_record import take_kernel_log

            return take_kernel_log(
                state_folder,
                configured,
                journalctl=journalctl,
                deadline_seconds=KERNEL_LOG_DEADLINE_SECONDS,
                write=write,
            )

        return _InBackground(take, "the kernel log")

    def take_kernel_log(self, sample: KernelLogSample | None) -> None:
        if sample is None:
            evidence = "not read, as configured: no XID is seen"
            self._notes.append(Finding("kernel_log_off", Verdict.OK, HOST, "kernel_log", evidence))
            return
        with self._check("kernel_log"):
            # it may have to wait for a lock, and for the journal where the device has a gap
            self._kernel_log, notes = sample.result(2 * KERNEL_LOG_DEADLINE_SECONDS)
            self._notes += notes

    def exercise(self, *, deadline_seconds: float) -> None:
        """DCGM's software checks, or a copy to each GPU and back where DCGM is not installed."""
        if self.evidence().no_gpus:
            return
        if not is_installed("dcgmi", self._config.text("programs.dcgmi")):
            self._copy(deadline_seconds)
            return
        from coldstart_health.dcgm_run import discover, run_dcgmi

        with self._check("dcgm"):
            known = discover(self._config)
            output = run_dcgmi(self._config, level=1, deadline_seconds=deadline_seconds, known=known)
            self._dcgm = (output,)

    def _copy(self, deadline_seconds: float) -> None:
        from coldstart_host.cuda_copy import copy_to_gpus

        # CUDA does not see a GPU that is split as a whole
        whole = [gpu.pci_bus_id for gpu in self._reading.gpus if gpu.pci_bus_id and not gpu.mig_enabled]
        with self._check("cuda"):
            self._copies = copy_to_gpus(whole, deadline_seconds=deadline_seconds) if whole else ()

    def add_diagnosis(self, outputs: Sequence[DcgmOutput]) -> None:
        """The runs of a diagnosis made elsewhere."""
        self._dcgm = tuple(outputs)
        self._checks.append(CheckRun("dcgm", sum(output.duration_seconds for output in outputs)))

    def record_sample(self) -> None:
        """What this run measured, for the next one: two samples in a row decide."""
        if self._clock is None or self._pressure is None:
            return
        now = levels(self._pressure, self._limits, self._previous)
        sample = Sample(self._clock.uptime_seconds, self._clock.booted_at, self._clock.synchronised, now)
        try:
            record_sample(sample_path(self._config.run_folder), sample)
        except ColdstartError as error:
            self._note("sample_not_recorded", Verdict.OK, error)

    def record(self) -> None:
        """Remember what is here for the next boot; a state folder we may not write is said, and no fault."""
        if not may_record(self._reading, self._expected):
            return
        path = inventory_path(self._config.state_folder)
        try:
            record_inventory(path, self._reading, self._known)
        except ColdstartError as error:
            self._note("inventory_not_recorded", Verdict.OK, error)

    def _note(self, reason: str, verdict: Verdict, error: ColdstartError) -> None:
        self._notes.append(Finding(reason, verdict, HOST, "inventory", error.message, error.hint))

    @contextmanager
    def _check(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        problem: ColdstartError | None = None
        try:
            yield
        except ColdstartError as error:
            problem = error
        # a check that is made again counts as made last
        self._checks = [check for check in self._checks if check.name != name]
        self._checks.append(CheckRun(name, time.monotonic() - started, problem))


def thresholds(config: Config) -> Limits:
    """The configured percentages; above 100 a threshold is off."""
    warn, fail = config.number("health.warn_percent"), config.number("health.fail_percent")
    if not 0 < warn <= fail:
        raise ConfigError(
            f"health.warn_percent must be above 0 and at most health.fail_percent: {warn:g} and {fail:g}"
        )
    return Limits(warn, fail)


def _folders(config: Config) -> tuple[Path, ...]:
    return Path("/"), config.state_folder, config.cache_folder


class _InBackground(Generic[T]):
    """A call that may hang (a dead network file system under the state folder) in a thread we can leave."""

    def __init__(self, function: Callable[[], T], subject: str = "the host's file systems") -> None:
        self._function = function
        self._subject = subject
        self._results: list[T] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, timeout_seconds: float) -> T:
        self._thread.join(timeout_seconds)
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise BusyError(f"no answer from {self._subject} after {timeout_seconds:g} s")
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            self._errors.append(error)


KernelLogSample = _InBackground["tuple[KernelLog, tuple[Finding, ...]]"]
