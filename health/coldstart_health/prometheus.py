"""A health report as a textfile for Prometheus' node exporter. Names and labels are stable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from coldstart_cli.prometheus import Metric, write_textfile
from coldstart_cli.regular import read_regular
from coldstart_health.verdict import FABRIC, HOST, HealthReport, Verdict
from coldstart_host.gpu import GpuFacts

_PREFIX = "coldstart_health_"
_SUCCESS = "last_success_timestamp_seconds"
_WORDS = ", ".join(f"{int(verdict)} {verdict.word}" for verdict in Verdict)


class _Metric(Metric):
    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(_PREFIX + name, meaning)


def write_report(path: Path, report: HealthReport, *, run: str, now_seconds: float) -> None:
    """The textfile of a run, `quick` or `deep`; in a success every check was made, whatever it found."""
    complete = all(check.error is None for check in report.checks)
    success = now_seconds if complete else _earlier_success(path)
    metrics = [*_verdicts(report, run), *_run(report, run, now_seconds, success)]
    write_textfile(path, [*metrics, *_gpus(report, run), *_host(report, run)])


def _verdicts(report: HealthReport, run: str) -> Iterator[_Metric]:
    subjects = [("all", "", report.overall), (HOST, "", report.host_verdict)]
    if report.fabric_verdict is not None:
        subjects.append((FABRIC, "", report.fabric_verdict))
    subjects += [(gpu.subject, gpu.label.removeprefix("GPU").strip(), gpu.verdict) for gpu in report.gpus]
    number = _Metric("verdict", f"Verdict as a number: {_WORDS}.")
    state = _Metric("state", "1 for the verdict that holds, 0 for the others.")
    for subject, gpu, verdict in subjects:
        number.add(int(verdict), run=run, subject=subject, gpu=gpu)
        for other in Verdict:
            state.add(other is verdict, run=run, subject=subject, gpu=gpu, verdict=other.word)
    reasons = _Metric("reason", "1 for each finding, by its reason code.")
    for finding in report.findings:
        reasons.add(1, run=run, subject=finding.subject, reason=finding.reason, verdict=finding.verdict.word)
    serve = _Metric("may_serve", "1 where replicas may be placed on this host.")
    serve.add(report.may_serve, run=run)
    yield from (number, state, reasons, serve)


def _run(report: HealthReport, run: str, now: float, success: float | None) -> Iterator[_Metric]:
    last = _Metric("last_run_timestamp_seconds", "When the last run ended.")
    last.add(now, run=run)
    good = _Metric(_SUCCESS, "When the last run ended in which every check was made.")
    good.add(success, run=run)
    duration = _Metric("duration_seconds", "How long the last run took.")
    duration.add(report.duration_seconds, run=run)
    checks = _Metric("check_success", "1 where the check was made, 0 where it failed.")
    for check in report.checks:
        checks.add(check.error is None, run=run, check=check.name)
    gpus = _Metric("gpus", "GPUs expected, and GPUs that answered.")
    if report.expected is not None:
        gpus.add(report.expected.count, run=run, kind="expected")
    gpus.add(sum(gpu.facts is not None and gpu.facts.readable for gpu in report.gpus), run=run, kind="found")
    yield from (last, good, duration, checks, gpus)


def _gpus(report: HealthReport, run: str) -> Iterator[_Metric]:
    info = _Metric("gpu_info", "1 for each GPU, with what it is.")
    readings = {name: _Metric(f"gpu_{name}", meaning) for name, meaning in _READINGS.items()}
    for gpu in report.gpus:
        if gpu.facts is None:
            continue
        labels = {"run": run, "subject": gpu.subject, "gpu": str(gpu.facts.index)}
        info.add(
            1,
            **labels,
            name=gpu.facts.name or "",
            serial=gpu.facts.serial or "",
            pci_bus_id=gpu.facts.pci_bus_id or "",
            driver=report.driver_version or "",
        )
        for name, value in _values(gpu.facts).items():
            readings[name].add(value, **labels)
    copies = _Metric("gpu_copy_bytes_per_second", "Speed of a copy between host and GPU.")
    subjects = {gpu.facts.pci_bus_id: gpu.subject for gpu in report.gpus if gpu.facts}
    for copy in report.copies:
        subject = subjects.get(copy.pci_bus_id, copy.pci_bus_id)
        copies.add(copy.to_device_bytes_per_second, run=run, subject=subject, direction="to_gpu")
        copies.add(copy.to_host_bytes_per_second, run=run, subject=subject, direction="from_gpu")
    yield from (info, *readings.values(), copies)


_READINGS = {
    "temperature_celsius": "Temperature of the GPU.",
    "memory_used_bytes": "Memory of the GPU in use.",
    "ecc_uncorrected_errors": "Uncorrectable ECC errors since the driver was loaded.",
    "ecc_corrected_errors": "Corrected ECC errors since the driver was loaded.",
    "remapped_rows": "Memory rows that were remapped.",
    "pcie_replays": "PCIe replays since they were last cleared.",
    "nvlinks_active": "NVLinks that are up.",
    "nvlink_errors": "Errors of all NVLinks since they were cleared.",
    "processes": "Processes on the GPU.",
}


def _values(facts: GpuFacts) -> dict[str, float | None]:
    rows, ecc = facts.remapped_rows, facts.ecc
    return {
        "temperature_celsius": facts.temperature_celsius,
        "memory_used_bytes": facts.memory_used_bytes,
        "ecc_uncorrected_errors": ecc.volatile_uncorrected if ecc else None,
        "ecc_corrected_errors": ecc.volatile_corrected if ecc else None,
        "remapped_rows": rows.correctable + rows.uncorrectable if rows else None,
        "pcie_replays": facts.pcie_replays,
        "nvlinks_active": facts.nvlinks_active,
        "nvlink_errors": sum(link.total for link in facts.nvlink_errors) if facts.nvlinks else None,
        "processes": None if facts.process_ids is None else len(facts.process_ids),
    }


def _host(report: HealthReport, run: str) -> Iterator[_Metric]:
    if report.pressure is None:
        return
    used = _Metric("host_used_ratio", "CPU, memory, or a disk's bytes or inodes in use, from 0 to 1.")
    used.add(report.pressure.cpu_percent / 100, run=run, what="cpu")
    for key, percent in report.pressure.percents.items():
        used.add(percent / 100, run=run, what=key)
    yield used


def _earlier_success(path: Path) -> float | None:
    """What the file said before: a run that failed to look must not seem fresh."""
    try:
        text = read_regular(path).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.search(rf"^{_PREFIX}{_SUCCESS}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None
