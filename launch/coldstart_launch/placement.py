"""Which verdicts count for a replica: the host's always, and those of the GPUs that it may use."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.errors import BusyError, NegativeAnswer
from coldstart_host.kernel import boot_id

if TYPE_CHECKING:
    from concurrent.futures import Future

    from coldstart_health.verdict import GpuVerdict, HealthReport

# the check promises five; a host that stands still gets more, and no launch waits for ever
_HEALTH_SECONDS = 120.0
_HINT = "`coldstart health quick` shows the evidence, `coldstart health status` what is in quarantine"
# how long the last verdict says enough to begin something that the next one can still take down
_LATELY_SECONDS = 600.0


def lately_fit(state_folder: Path) -> bool:
    """Whether the last quick check, in this boot and minutes ago, let replicas be placed here.

    Its record is read without the health component, whose import costs more than it saves.
    """
    try:
        last = json.loads((state_folder / "health" / "last-quick.json").read_bytes())
        age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - float(last["at"]["boottime_seconds"])
        same_boot = last["at"]["boot_id"] == boot_id()
        return same_boot and last["verdict"] in {"ok", "degraded"} and 0 <= age_seconds < _LATELY_SECONDS
    except (OSError, ValueError, KeyError, TypeError):
        return False


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


def verdict_in_time(health: Future[HealthReport]) -> HealthReport:
    """The verdict of a check that runs beside us."""
    try:
        return health.result(_HEALTH_SECONDS)
    except TimeoutError as error:
        if health.done():  # its own error
            raise
        raise BusyError(
            f"no verdict on this host after {_HEALTH_SECONDS:g} s", hint="coldstart health quick"
        ) from error
