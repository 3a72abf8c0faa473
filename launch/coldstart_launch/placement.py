"""Which verdicts count for a replica: the host's always, and those of the GPUs that it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from coldstart_cli.errors import NegativeAnswer

if TYPE_CHECKING:
    from coldstart_health.verdict import GpuVerdict, HealthReport

_HINT = "`coldstart health quick` shows the evidence, `coldstart health status` what is in quarantine"


def concerning(report: HealthReport, environment: Mapping[str, str]) -> HealthReport:
    """The report without GPUs that the replica cannot see; all of them count where it names none."""
    chosen = _chosen(report, environment)
    if chosen is None:
        return report
    mine = {gpu.subject for gpu in chosen}
    others = {gpu.subject for gpu in report.gpus} - mine
    findings = tuple(finding for finding in report.findings if finding.subject not in others)
    return replace(report, findings=findings, gpus=chosen)


def require_place(report: HealthReport) -> None:
    """The refusal, where nothing may be placed."""
    if not report.may_serve:
        raise NegativeAnswer(f"nothing may be placed on this host: {report.summary}", hint=_HINT)


def _chosen(report: HealthReport, environment: Mapping[str, str]) -> tuple[GpuVerdict, ...] | None:
    """The GPUs of CUDA_VISIBLE_DEVICES; None where it does not say for sure which they are."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    # without this order CUDA counts the fastest GPU first, and a number may be any of them
    by_number = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        if entry == "-1":  # CUDA stops at the first that it does not know
            break
        if entry.startswith("GPU-"):
            found = [gpu for gpu in report.gpus if gpu.subject.startswith(entry)]
        elif by_number and entry.isdecimal():
            found = [gpu for gpu in report.gpus if gpu.facts is not None and gpu.facts.index == int(entry)]
        else:
            return None
        if len(found) != 1:
            raise NegativeAnswer(f"replica wants a GPU that is not here: {entry}", hint=_HINT)
        chosen.append(found[0])
    return tuple(chosen)
