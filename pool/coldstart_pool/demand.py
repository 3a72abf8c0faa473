"""How many idle GPUs each class needs: stated targets, or the quantile of scale-ups in a lead time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.columns import Synonyms, synonyms
from coldstart_pool.findings import Finding, Severity, TableReport
from coldstart_pool.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.numbers import BadNumberError, parse_count, parse_number
from coldstart_pool.tables import Row, Table, read_table

_DEMAND_COLUMNS: Synonyms = synonyms(
    gpu="gpu gpuname gputype gpumodel gpuclass class accelerator acceleratorname",
    target="targetgpus target needed neededgpus required",
    time="time timestamp starttime createdat creationtime",
    replicas="replicas replica starts instances",
    gpus_per_replica="gpusperreplica gpusreplica replicagpus",
)
_MOST_REPLICAS = 1_000_000
_EPOCH_MILLISECONDS_FROM = 10**11


@dataclass(frozen=True, order=True)
class Target:
    """Idle GPUs wanted of one class; `scale_ups` replicas were counted where it came from events."""

    gpu: str
    target_gpus: Fraction
    scale_ups: int | None = None


@dataclass(frozen=True, order=True)
class ScaleUp:
    """`replicas` of `gpus` GPUs each, wanted at one instant (seconds)."""

    time: Fraction
    replicas: int
    gpus: int


def load_demand(
    path: Path, *, service_level: Fraction, lead_time_seconds: Fraction | None
) -> tuple[tuple[Target, ...], TableReport]:
    """Targets by GPU class; demand is never dropped: any bad row refuses the table."""
    table = read_table(
        path, _DEMAND_COLUMNS, "gpu", "target|time", numeric=("target", "replicas", "gpus_per_replica")
    )
    if {"target", "time"} <= table.headings.keys():
        raise DataError(
            f"{table.path}: both targets (`{table.headings['target']}`) and "
            f"scale-up events (`{table.headings['time']}`)",
            hint="remove one of the columns",
        )
    findings = list(table.findings)
    if "time" not in table.headings:
        targets = _targets(table, findings)
    else:
        if lead_time_seconds is None:
            raise UsageError(
                f"{table.path} holds scale-up events: their need depends on how long a refill takes",
                hint="pass `--lead-time SECONDS`",
            )
        targets = _from_events(_events(table, findings), service_level, lead_time_seconds)
    bad = [finding.sentence() for finding in sorted(findings) if finding.severity is not Severity.NOTED]
    if bad:
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError("; ".join(bad[:5]) + more, hint="correct these lines: demand is never left out")
    if not targets:
        raise DataError(f"{table.path}: no demand: the table has no rows")
    report = TableReport(table.path, table.digest, table.row_count, len(table.rows), tuple(sorted(findings)))
    return tuple(sorted(targets)), report


def needed_gpus(
    scale_ups: Iterable[ScaleUp], service_level: Fraction, lead_time: Fraction
) -> tuple[int, int]:
    """The smallest buffer that serves a share `service_level` of replicas at once, and how many replicas.

    In a pool of S whose every take is refilled after a lead time L, a replica is served at once exactly when
    the GPUs taken in (t - L, t], its own included, are at most S. So S is the quantile of that count over
    the arriving replicas (not over time: bursts weigh as much as they hurt).
    """
    counts: list[int] = []
    window: deque[ScaleUp] = deque()
    inside = 0
    for event in sorted(scale_ups):
        while window and window[0].time <= event.time - lead_time:
            gone = window.popleft()
            inside -= gone.replicas * gone.gpus
        counts.extend(inside + event.gpus * number for number in range(1, event.replicas + 1))
        inside += event.replicas * event.gpus
        window.append(event)
    if not counts:
        return 0, 0
    counts.sort()
    return counts[math.ceil(service_level * len(counts)) - 1], len(counts)


def _targets(table: Table, findings: list[Finding]) -> list[Target]:
    by_gpu: dict[str, tuple[Target, int]] = {}
    for row in table.rows:
        try:
            gpu = canonical_gpu(row.text("gpu"))
            value = parse_number(row.text("target"), table.mark)
        except (BadNumberError, UnclearGpuError) as error:
            findings.append(Finding(table.path, row.line, Severity.INVALID, str(error)))
            continue
        if value < 0:
            findings.append(Finding(table.path, row.line, Severity.INVALID, "target is negative"))
        elif gpu in by_gpu:
            reason = f"{gpu} has a target already in line {by_gpu[gpu][1]}"
            findings.append(Finding(table.path, row.line, Severity.INVALID, reason))
        else:
            by_gpu[gpu] = (Target(gpu, value), row.line)
    return [target for target, _ in by_gpu.values()]


def _from_events(
    events: dict[str, list[ScaleUp]], service_level: Fraction, lead_time: Fraction
) -> list[Target]:
    targets = []
    for gpu, scale_ups in events.items():
        need, replicas = needed_gpus(scale_ups, service_level, lead_time)
        targets.append(Target(gpu, Fraction(need), replicas))
    return targets


def _events(table: Table, findings: list[Finding]) -> dict[str, list[ScaleUp]]:
    events: dict[str, list[ScaleUp]] = {}
    total = 0
    naive: list[int] = []
    for row in table.rows:
        try:
            seconds, is_naive = _instant(row.text("time"))
            gpu = canonical_gpu(row.text("gpu"))
            replicas = _count(row, "replicas", table)
            gpus = _count(row, "gpus_per_replica", table)
        except (BadNumberError, UnclearGpuError) as error:
            findings.append(Finding(table.path, row.line, Severity.INVALID, str(error)))
            continue
        total += replicas
        if is_naive:
            naive.append(row.line)
        if total > _MOST_REPLICAS:
            raise DataError(f"{table.path}:{row.line}: more than {_MOST_REPLICAS} replicas in one table")
        if replicas == 0 or gpus == 0:
            findings.append(Finding(table.path, row.line, Severity.INVALID, "a scale-up of nothing"))
            continue
        events.setdefault(gpu, []).append(ScaleUp(seconds, replicas, gpus))
    if naive and len(naive) < len(table.rows):
        # local times beside absolute ones would shift against each other
        findings += [Finding(table.path, line, Severity.INVALID, "time without offset") for line in naive]
    elif naive:
        findings.append(Finding(table.path, 0, Severity.NOTED, "times without offset are read as UTC"))
    return events


def _count(row: Row, field: str, table: Table) -> int:
    return parse_count(row.text(field), table.mark) if field in table.headings else 1


def _instant(text: str) -> tuple[Fraction, bool]:
    """Seconds since 1970, and whether the text left its time zone open."""
    if text.replace(".", "", 1).isdigit() and text.isascii():
        seconds = parse_number(text)
        return (seconds / 1000 if seconds >= _EPOCH_MILLISECONDS_FROM else seconds), False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadNumberError(f"`{text}` is not a time") from error
    naive = moment.tzinfo is None
    absolute = moment.replace(tzinfo=UTC) if naive else moment
    delta = absolute - datetime(1970, 1, 1, tzinfo=UTC)
    return Fraction(delta.days * 86400 + delta.seconds) + Fraction(delta.microseconds, 10**6), naive
