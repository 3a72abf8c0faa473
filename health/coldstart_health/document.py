"""A health report as the values of its JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coldstart_health.pressure import HostPressure
from coldstart_health.verdict import CheckRun, Finding, GpuVerdict, HealthReport
from coldstart_host.gpu import gpu_to_json


def report_document(report: HealthReport) -> dict[str, Any]:
    """Everything that was seen; a null is a question that the GPU or the kernel does not know."""
    expected = report.expected
    return {
        "verdict": report.overall.word,
        "may_serve": report.may_serve,
        "summary": report.summary,
        "host": {
            "verdict": report.host_verdict.word,
            "pressure": None if report.pressure is None else _pressure(report.pressure),
            "clock": None if report.clock is None else asdict(report.clock),
        },
        "fabric": None if report.fabric_verdict is None else {"verdict": report.fabric_verdict.word},
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "expected_gpus": None if expected is None else asdict(expected),
        "findings": [_finding(finding) for finding in report.findings],
        "copies": [asdict(copy) for copy in report.copies],
        "checks": [_check(check) for check in report.checks],
        "driver_version": report.driver_version,
        "cuda_version": report.cuda_version,
        "dcgm_version": report.dcgm_version,
        "duration_seconds": report.duration_seconds,
    }


def _gpu(gpu: GpuVerdict) -> dict[str, Any]:
    facts = None if gpu.facts is None else gpu_to_json(gpu.facts)
    return {"subject": gpu.subject, "verdict": gpu.verdict.word, "label": gpu.label, "facts": facts}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "verdict": finding.verdict.word}


def _check(check: CheckRun) -> dict[str, Any]:
    return {
        "name": check.name,
        "ran": check.error is None,
        "problem": None if check.error is None else check.error.message,
        "duration_seconds": check.duration_seconds,
    }


def _pressure(pressure: HostPressure) -> dict[str, Any]:
    disks = [{**asdict(disk), "path": str(disk.path)} for disk in pressure.disks]
    return {**asdict(pressure), "disks": disks, "memory_percent": pressure.memory_percent}
