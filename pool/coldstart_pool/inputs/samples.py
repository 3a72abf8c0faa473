"""Sampled replicas and request rates, one column a series as Grafana exports them or one row a sample."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_values import DemandTrace, ReplicaEvent
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity
from coldstart_pool.inputs.heading_units import heading_unit
from coldstart_pool.inputs.numbers import BadNumberError, is_missing, parse_number
from coldstart_pool.inputs.rows import RowReader, UnusableRow
from coldstart_pool.inputs.tables import Row
from coldstart_pool.inputs.times import BadTimeError, Clock

MOST_REPLICAS = 5_000_000
_LABELS = re.compile(r'([A-Za-z_][A-Za-z0-9_.]*)\s*=~?\s*"((?:[^"\\]|\\.)*)"')
_METRIC = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)?\s*\{(.*)\}", re.DOTALL)
_APPLICATION_LABELS = (
    "application", "app", "app_kubernetes_io_name", "model_name", "model", "service", "deployment",
    "workload", "container", "job",
)  # fmt: skip
_GPU_LABELS = ("gpu", "gpu_model", "gpu_type", "gpu_name", "accelerator", "modelName")
_REPLICA_WORDS = re.compile(r"replica|running|ready|instances|pods", re.IGNORECASE)
_COUNTER = re.compile(r"_(total|count|sum|bucket)$")
# what Grafana writes with "formatted data" on: rounded, with a unit behind
_FORMATTED = re.compile(
    r"[+-]?[\d.,]+\s*(%|[KkMGTBµμmn]|Mil|Bil|Tri|[a-zA-Z]+/[a-zA-Z]+|[a-z]+ps|ms|s|min)\.?"
)
_NAN = re.compile(r"[+-]?nan", re.IGNORECASE)


@dataclass(frozen=True)
class SampledSeries:
    """One series: values by time; None where there was no sample."""

    name: str
    application: str
    gpu: str
    gpus_per_replica: int | None
    counts_replicas: bool
    service_rate: Fraction | None
    values: Mapping[Fraction, Fraction | None]
    factor: Fraction = Fraction(1)
    per_seconds: Fraction = Fraction(1)
    """Of a rate: the unit of time that it counts in."""

    def scaled(self, service_rate: Fraction | None) -> SampledSeries:
        """The same in replicas: divided by what one of them serves a second."""
        return self if service_rate is None else replace(self, factor=1 / (service_rate * self.per_seconds))


def read_samples(rows: RowReader, clock: Clock, *, wide: bool) -> list[SampledSeries]:
    """All series of the table; what cannot be read becomes a finding."""
    return _wide(rows, clock) if wide else _long(rows, clock)


def trace_of_samples(
    rows: RowReader, levels: Mapping[tuple[str, str, int], Sequence[SampledSeries]], *, since_1970: bool
) -> DemandTrace | None:
    """Rises are starts and falls are stops, at the time of the later sample."""
    times = sorted({time for members in levels.values() for series in members for time in series.values})
    step = _step(rows, times)
    if step is None:
        return None
    events: list[ReplicaEvent] = []
    at_start = []
    gaps = moved = 0
    for key, members in sorted(levels.items()):
        held = [Fraction(0)] * len(members)
        before: int | None = None
        for time in times:
            for number, series in enumerate(members):
                value = series.values.get(time)
                if value is None:
                    gaps += 1
                else:
                    held[number] = value * series.factor
            level = math.ceil(sum(held))
            moved += abs(level - (before or 0))
            if moved > MOST_REPLICAS:
                raise DataError(
                    f"{rows.table.path}: more than {MOST_REPLICAS} replicas in one table",
                    hint="look at `--service-rate` and the unit of the rates",
                )
            if before is None:
                at_start.append((*key, level))
            elif level != before:
                events.append(ReplicaEvent(time, *key, level - before))
            before = level
    if gaps:
        rows.decide(
            "gaps", f"{gaps} samples are missing: the last value holds until the next, 0 before the first"
        )
    rows.decide("samples", f"every {float(step):g} s; a rise counts at the sample that shows it")
    return DemandTrace(
        tuple(sorted(events, key=attrgetter("order"))),
        times[0],
        times[-1],
        since_1970,
        any(event.replicas < 0 for event in events),
        tuple(entry for entry in at_start if entry[3]),
        step,
    )


def labels_of(heading: str) -> tuple[str, dict[str, str]]:
    """The metric's name and its labels, as Prometheus writes a series; a plain heading has none."""
    match = _METRIC.fullmatch(heading.strip())
    if match is None:
        return "", {}
    labels = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LABELS.findall(match[2])}
    return match[1] or labels.pop("__name__", ""), labels


def _step(rows: RowReader, times: Sequence[Fraction]) -> Fraction | None:
    """The distance of samples; they must lie on one grid, or they are no samples."""
    if len(times) < 2:
        rows.find(0, Severity.INVALID, "fewer than two samples")
        return None
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    step = min(gaps)
    # a scrape may be late by a little
    if any(abs(gap / step - round(gap / step)) > Fraction(1, 10) for gap in gaps):
        reason = "times do not lie on one grid: samples are expected, not single requests"
        rows.find(0, Severity.REFUSED, reason)
        return None
    return step


def _wide(rows: RowReader, clock: Clock) -> list[SampledSeries]:
    times: dict[int, Fraction] = {}
    first_line: dict[Fraction, int] = {}

    def time_of(row: Row) -> Fraction:
        return clock.seconds(row.text("time"))

    for row, time in rows.values(time_of):
        earlier = first_line.setdefault(time, row.line)
        if earlier != row.line:
            rows.find(row.line, Severity.INVALID, f"the time of line {earlier} once more")
            continue
        times[row.line] = time
    found = []
    for heading, cells in rows.table.series:
        try:
            series = _series(rows, heading)
        except UnusableRow as problem:
            rows.find(1, problem.severity, problem.reason, problem.detail)
            continue
        if series.per_seconds != 1:
            rows.decide("unit", f"`{heading}`: requests in {float(series.per_seconds):g} s")
        values: dict[Fraction, Fraction | None] = {}
        for line, cell in cells:
            if line in times:
                _put(rows, values, times[line], line, cell)
        found.append(replace(series, values=values))
    return found


def _long(rows: RowReader, clock: Clock) -> list[SampledSeries]:
    found: dict[tuple[str, ...], SampledSeries] = {}
    values: dict[tuple[str, ...], dict[Fraction, Fraction | None]] = {}
    lines: dict[tuple[tuple[str, ...], Fraction], int] = {}
    for row in rows.table.rows:
        key = tuple(row.text(field) for field in ("series", "application", "gpu", "gpus_per_replica"))
        field = next((name for name in ("running", "rate", "value") if name in row.cells), "value")
        try:
            time = clock.seconds(row.text("time"))
            if key not in found:
                found[key] = _series_of_row(rows, row, field)
        except BadTimeError as error:
            rows.findings.append(rows.time_finding(row.line, error))
            continue
        except (BadNumberError, UnusableRow) as problem:
            severity = problem.severity if isinstance(problem, UnusableRow) else Severity.INVALID
            rows.find(row.line, severity, str(problem), getattr(problem, "detail", ""))
            continue
        column = values.setdefault(key, {})
        earlier = lines.setdefault((key, time), row.line)
        before = column.get(time)
        _put(rows, column, time, row.line, row.text(field))
        if earlier != row.line and before != column.get(time):
            rows.find(row.line, Severity.INVALID, f"contradicts the sample of line {earlier}")
        elif earlier != row.line:
            rows.find(row.line, Severity.NOTED, "repeats an earlier row", f"line {earlier}")
    return [replace(series, values=values.get(key, {})) for key, series in found.items()]


def _series(rows: RowReader, heading: str) -> SampledSeries:
    """What a column's heading says about its series."""
    metric, labels = labels_of(heading)
    if _COUNTER.search(metric):
        raise UnusableRow(Severity.REFUSED, "a counter, export its `rate()`", f"`{heading}`")
    application = next((labels[name] for name in _APPLICATION_LABELS if labels.get(name)), "")
    gpu = next((labels[name] for name in _GPU_LABELS if labels.get(name)), "")
    constant = rows.rules.constants
    kind = TableKind.DEMAND
    counts = constant.get((kind, "value"), "").lower()
    if counts not in {"", "replicas", "requests"}:
        raise UnusableRow(Severity.REFUSED, "`--set demand.value` is `replicas` or `requests`", f"`{counts}`")
    gpus = constant.get((kind, "gpus_per_replica"))
    counts_replicas = counts == "replicas" or (not counts and bool(_REPLICA_WORDS.search(metric or heading)))
    per_seconds = Fraction(1)
    if not counts_replicas and not metric and (stated := heading_unit(heading).seconds):
        per_seconds = stated[0]
    return SampledSeries(
        heading,
        application or constant.get((kind, "application"), "") or heading.strip(),
        gpu or constant.get((kind, "gpu"), ""),
        int(gpus) if gpus and gpus.isdigit() else None,
        counts_replicas,
        None,
        {},
        per_seconds=per_seconds,
    )


def _series_of_row(rows: RowReader, row: Row, field: str) -> SampledSeries:
    series = _series(rows, row.text("series"))
    gpus = rows.count(row, "gpus_per_replica") if row.text("gpus_per_replica") else series.gpus_per_replica
    return replace(
        series,
        name=row.text("series") or row.text("application") or f"line {row.line}",
        application=row.text("application") or series.application,
        gpu=row.text("gpu") or series.gpu,
        gpus_per_replica=gpus,
        counts_replicas=field == "running" or (field == "value" and series.counts_replicas),
        service_rate=rows.number(row, "service_rate") or None,
        per_seconds=1 / rows.factor(field),
    )


def _put(
    rows: RowReader, values: dict[Fraction, Fraction | None], time: Fraction, line: int, cell: str
) -> None:
    """Read one sample; an empty cell and NaN, which is how Prometheus writes none, are a gap."""
    if is_missing(cell) or _NAN.fullmatch(cell.strip()):
        values[time] = None
        return
    try:
        value = parse_number(cell, rows.table.mark)
    except BadNumberError as error:
        if _FORMATTED.fullmatch(cell.strip()):
            reason = "a formatted and so a rounded value: export with `Formatted data` switched off"
            rows.find(line, Severity.REFUSED, reason, f"`{cell.strip()}`")
        else:
            rows.find(line, Severity.INVALID, str(error))
        return
    if value < 0:
        rows.find(line, Severity.INVALID, f"`{cell.strip()}` is negative")
        return
    values[time] = value
