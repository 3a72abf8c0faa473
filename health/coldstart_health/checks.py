"""`health quick`: inventory, GPUs and host in seconds, each check with a deadline, all beside each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, ConfigError
from coldstart_health.gpu_checks import gpu_findings
from coldstart_health.host_checks import pressure_findings
from coldstart_health.inventory import (
    NO_DRIVER_CODES,
    Inventory,
    inventory_findings,
    inventory_path,
    load_inventory,
    may_record,
    record_inventory,
)
from coldstart_health.pressure import HostPressure, read_pressure
from coldstart_health.verdict import (
    HOST,
    NOT_CHECKED,
    CheckRun,
    Expectation,
    Finding,
    GpuVerdict,
    HealthReport,
    Verdict,
    merged,
    worst,
)
from coldstart_host.gpu import GpuFacts, NvmlReading
from coldstart_host.gpu_probe import PROBE_DEADLINE_SECONDS, read_gpus
from coldstart_host.pci import pci_gpus

if TYPE_CHECKING:
    from coldstart_health.dcgm import Diagnosis

T = TypeVar("T")

PRESSURE_DEADLINE_SECONDS = 4.0
ACTIVE_DEADLINE_SECONDS = 90.0


def quick_check(
    config: Config, *, active: bool = False, active_deadline_seconds: float = ACTIVE_DEADLINE_SECONDS
) -> HealthReport:
    """Verdict on this host in under five seconds; `active` adds DCGM's level 1 with a budget of its own."""
    run = HealthRun(config)
    pressure = _InBackground(lambda: read_pressure(_folders(config)))
    known, expected = run.expectation()
    reading = run.read_gpus(expected, known)
    run.take_pressure(pressure)
    if active:
        run.diagnose(reading, deadline_seconds=active_deadline_seconds)
    if may_record(reading, expected):
        run.record(reading, known)
    return run.report()


class HealthRun:
    """Findings as they come in. A check that cannot be made adds an unknown: nothing passes unseen."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._findings: list[Finding] = []
        self._checks: list[CheckRun] = []
        self._reading = NvmlReading()
        self._expected: Expectation | None = None
        self._pressure: HostPressure | None = None
        self._diagnosis: Diagnosis | None = None

    def expectation(self) -> tuple[Inventory | None, Expectation]:
        """The recorded inventory, and how many GPUs there should be."""
        configured = self._config.value("health.expect_gpus")
        known: Inventory | None = None
        try:
            known = load_inventory(inventory_path(self._config.state_folder))
        except ColdstartError as error:
            if configured.value is None:
                self._add(
                    Finding(
                        "inventory_unreadable", Verdict.UNKNOWN, HOST, "inventory", error.message, error.hint
                    )
                )
        if configured.value is not None:
            count = int(configured.value)
            if count < 0:
                raise ConfigError(f"expected GPUs must not be negative: {count} ({configured.source})")
            expected = Expectation(count, configured.source, explicit=True)
        elif known is not None:
            expected = Expectation(len(known.gpus), "last recorded boot", explicit=False)
        else:
            expected = Expectation(0, "no record", explicit=False)
        self._expected = expected
        return known, expected

    def read_gpus(self, expected: Expectation, known: Inventory | None) -> NvmlReading:
        """Ask NVML in a process of its own, and compare with what should be there."""
        with self._check("nvml"):
            self._reading = read_gpus(deadline_seconds=PROBE_DEADLINE_SECONDS)
            for gpu in self._reading.gpus:
                self._findings += gpu_findings(gpu, self._reading.gpus)
            self._findings += inventory_findings(self._reading, expected, pci_gpus(), known)
        return self._reading

    def take_pressure(self, sample: _InBackground[HostPressure]) -> None:
        warn, fail = thresholds(self._config)
        with self._check("pressure"):
            self._pressure = sample.result(PRESSURE_DEADLINE_SECONDS)
            self._findings += pressure_findings(self._pressure, warn_percent=warn, fail_percent=fail)

    def diagnose(self, reading: NvmlReading, *, deadline_seconds: float) -> None:
        """DCGM's software checks; nothing to do on a host without GPUs."""
        from coldstart_health.dcgm import diagnose

        if no_gpus(reading):
            return
        with self._check("dcgm"):
            self._diagnosis = diagnose(
                self._config, level=1, deadline_seconds=deadline_seconds, gpus=reading.gpus
            )
            self._findings += self._diagnosis.findings

    def add_diagnosis(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self._findings += diagnosis.findings
        self._checks.append(CheckRun("dcgm", diagnosis.duration_seconds))

    def record(self, reading: NvmlReading, known: Inventory | None) -> None:
        """Remember what is here for the next boot; a state folder we may not write is said, and no fault."""
        path = inventory_path(self._config.state_folder)
        try:
            record_inventory(path, reading, known)
        except ColdstartError as error:
            self._add(
                Finding("inventory_not_recorded", Verdict.OK, HOST, "inventory", error.message, error.hint)
            )

    def report(self) -> HealthReport:
        findings = merged(self._findings)
        return HealthReport(
            findings=findings,
            gpus=_gpu_verdicts(self._reading.gpus, self._diagnosis, findings),
            checks=tuple(self._checks),
            duration_seconds=time.monotonic() - self._started,
            expected=self._expected,
            driver_version=self._reading.driver_version,
            cuda_version=self._reading.cuda_version,
            dcgm_version=self._diagnosis.version if self._diagnosis else None,
            pressure=self._pressure,
        )

    def _add(self, finding: Finding) -> None:
        self._findings.append(finding)

    @contextmanager
    def _check(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        problem: ColdstartError | None = None
        try:
            yield
        except ColdstartError as error:
            problem = error
            self._add(Finding(f"{name}{NOT_CHECKED}", Verdict.UNKNOWN, HOST, name, error.message, error.hint))
        self._checks.append(CheckRun(name, time.monotonic() - started, problem))


def no_gpus(reading: NvmlReading) -> bool:
    """NVML says that there is none, or that there is no driver to have one."""
    return reading.count == 0 or (reading.fault is not None and reading.fault.code in NO_DRIVER_CODES)


def thresholds(config: Config) -> tuple[float, float]:
    """The configured percentages; above 100 a threshold is off."""
    warn, fail = config.number("health.warn_percent"), config.number("health.fail_percent")
    if not 0 < warn <= fail:
        raise ConfigError(
            f"health.warn_percent must be above 0 and at most health.fail_percent: {warn:g} and {fail:g}"
        )
    return warn, fail


def _folders(config: Config) -> tuple[Path, ...]:
    return Path("/"), config.state_folder, config.cache_folder


def _gpu_verdicts(
    gpus: tuple[GpuFacts, ...], diagnosis: Diagnosis | None, findings: tuple[Finding, ...]
) -> tuple[GpuVerdict, ...]:
    known = {gpu.subject: gpu for gpu in gpus}
    labels = {subject: f"GPU {gpu.index}" for subject, gpu in known.items()}
    for subject, label in diagnosis.labels.items() if diagnosis else ():
        labels.setdefault(subject, label)
    for finding in findings:
        if finding.subject.startswith("pci:"):
            labels.setdefault(finding.subject, "GPU")
    return tuple(
        GpuVerdict(
            subject=subject,
            verdict=worst(finding.verdict for finding in findings if finding.subject == subject),
            label=label,
            facts=known.get(subject),
        )
        for subject, label in labels.items()
    )


class _InBackground(Generic[T]):
    """A call that may hang (a dead network file system under the state folder) in a thread we can leave."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, timeout_seconds: float) -> T:
        self._thread.join(timeout_seconds)
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise BusyError(f"no answer from the host's file systems after {timeout_seconds:g} s")
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            self._errors.append(error)
