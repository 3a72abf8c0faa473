"""From evidence to a report. Asks nobody and writes nothing: same evidence, same verdict, on any host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coldstart_cli.errors import ColdstartError
from coldstart_health.diagnosing import diagnosing_findings
from coldstart_health.evidence import Evidence
from coldstart_health.fabric_checks import fabric_findings, has_fabric
from coldstart_health.gpu_checks import duplicate_findings, gpu_findings, model_findings
from coldstart_health.host_checks import clock_findings, pressure_findings
from coldstart_health.inventory import inventory_findings
from coldstart_health.verdict import (
    HOST,
    NOT_CHECKED,
    CheckRun,
    Finding,
    GpuVerdict,
    HealthReport,
    Verdict,
    merged,
    worst,
)
from coldstart_host.gpu import GpuFacts

if TYPE_CHECKING:
    from coldstart_health.dcgm import Diagnosis


def judge(evidence: Evidence) -> HealthReport:
    """Every finding that the evidence holds. A check that could not be made is an unknown, never ok."""
    diagnosis, checks = _diagnosis(evidence)
    findings = merged(_findings(evidence, checks, diagnosis))
    return HealthReport(
        findings=findings,
        gpus=_gpu_verdicts(evidence.reading.gpus, diagnosis, findings),
        checks=checks,
        duration_seconds=evidence.duration_seconds,
        expected=evidence.expected,
        driver_version=evidence.reading.driver_version,
        cuda_version=evidence.reading.cuda_version,
        dcgm_version=diagnosis.version if diagnosis else None,
        pressure=evidence.pressure,
        clock=evidence.clock,
        copies=evidence.copies,
        fabric=has_fabric(evidence.reading.gpus, evidence.fabric),
    )


def _findings(
    evidence: Evidence, checks: tuple[CheckRun, ...], diagnosis: Diagnosis | None
) -> Iterator[Finding]:
    yield from evidence.notes
    for check in checks:
        if error := check.error:
            yield _not_checked(check.name, error, gpuless=evidence.gpuless)
    gpus = evidence.reading.gpus
    uptime = evidence.clock.uptime_seconds if evidence.clock else None
    for gpu in gpus:
        yield from gpu_findings(gpu, gpus, uptime_seconds=uptime)
    yield from model_findings(gpus)
    yield from duplicate_findings(gpus)
    yield from fabric_findings(gpus, evidence.fabric)
    yield from inventory_findings(evidence.reading, evidence.expected, evidence.bus, evidence.known)
    if evidence.pressure:
        yield from pressure_findings(evidence.pressure, evidence.limits, evidence.previous)
    if evidence.clock:
        yield from clock_findings(evidence.clock, evidence.previous)
    yield from diagnosing_findings(evidence.diagnosing, evidence.orphans)
    if evidence.kernel_log:
        from coldstart_health.kernel_checks import kernel_findings

        yield from kernel_findings(
            evidence.kernel_log, evidence.reading, evidence.known, gpuless=evidence.gpuless
        )
    if evidence.copies:
        from coldstart_health.cuda_checks import copy_findings

        yield from copy_findings(evidence.copies, gpus)
    if diagnosis:
        yield from diagnosis.findings


def _not_checked(check: str, error: ColdstartError, *, gpuless: bool) -> Finding:
    """Unknown; but where there are no GPUs to be, the kernel log is only read for the host's sake."""
    if check == "kernel_log":
        verdict = Verdict.OK if gpuless else Verdict.UNKNOWN
        return Finding("kmsg_denied", verdict, HOST, check, error.message, error.hint)
    return Finding(f"{check}{NOT_CHECKED}", Verdict.UNKNOWN, HOST, check, error.message, error.hint)


def _diagnosis(evidence: Evidence) -> tuple[Diagnosis | None, tuple[CheckRun, ...]]:
    """DCGM's word; where its output says that it cannot or may not run, the check was not made."""
    if not evidence.dcgm:
        return None, evidence.checks
    from coldstart_health.dcgm import read_outputs

    readable = [gpu for gpu in evidence.reading.gpus if gpu.readable]
    try:
        return read_outputs(evidence.dcgm, readable), evidence.checks
    except ColdstartError as error:
        duration = sum(output.duration_seconds for output in evidence.dcgm)
        failed = CheckRun("dcgm", duration, error)
        return None, (*(check for check in evidence.checks if check.name != "dcgm"), failed)


def _gpu_verdicts(
    gpus: tuple[GpuFacts, ...], diagnosis: Diagnosis | None, findings: tuple[Finding, ...]
) -> tuple[GpuVerdict, ...]:
    # a pair for each GPU that answered, also where two go by one name
    own: list[tuple[str, str, GpuFacts | None]] = [(gpu.subject, f"GPU {gpu.index}", gpu) for gpu in gpus]
    known = {gpu.subject for gpu in gpus}
    labels: dict[str, str] = {}
    for subject, label in diagnosis.labels.items() if diagnosis else ():
        if subject not in known:
            labels.setdefault(subject, label)
    for finding in findings:
        if finding.subject.startswith(("pci:", "GPU-")) and finding.subject not in known:
            labels.setdefault(finding.subject, "GPU")
    return tuple(
        GpuVerdict(
            subject=subject,
            verdict=worst(finding.verdict for finding in findings if finding.subject == subject),
            label=label,
            facts=facts,
        )
        for subject, label, facts in (*own, *((subject, label, None) for subject, label in labels.items()))
    )
