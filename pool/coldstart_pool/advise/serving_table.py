"""Serving metrics from a table: one row a moment and replica, as dashboards export them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.advise.serving_units import COLUMNS, KINDS, Kind, factor_of
from coldstart_pool.advise.window import Observed
from coldstart_pool.inputs.findings import Finding, Severity
from coldstart_pool.inputs.numbers import BadNumberError, is_missing, parse_number
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, Table, read_table
from coldstart_pool.inputs.times import BadTimeError, Clock

_ROW_SECONDS = 60.0
_NEEDED = ("running", "waiting", "requests_per_second|tokens_per_second")


@dataclass(frozen=True)
class ServingTable:
    """Replicas of a table, and what was decided about it that its reader should know."""

    observed: list[Observed]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Moment:
    line: int
    seconds: float | None
    values: Mapping[str, float]


def observed_in(
    path: Path, *, row_seconds: float | None = None, time_zone: tzinfo | None = None, model: str | None = None
) -> ServingTable:
    """Replicas of a table whose rows are means, in order of their time; any bad row refuses it.

    `row_seconds` is the time from row to row, where the table has no times that tell it.
    """
    table = _read(path)
    factors = {
        field: factor_of(table.path, field, heading)
        for field, heading in table.headings.items()
        if field in KINDS
    }
    notes = _unread(table)
    rows = _of_model(table, model)
    clock = Clock((row.text("time") for row in rows), time_zone) if "time" in table.headings else None
    bad = list(table.findings)
    replicas: dict[str, list[_Moment]] = {}
    for row in rows:
        try:
            seconds = None if clock is None else float(clock.seconds(row.text("time")))
            moment = _Moment(row.line, seconds, _values(row, table, factors))
            replicas.setdefault(row.text("replica"), []).append(moment)
        except BadTimeError as error:
            detail = "pass --tz" if error.zoneless else ""
            bad.append(Finding(table.path, row.line, Severity.INVALID, str(error), detail))
        except BadNumberError as error:
            bad.append(Finding(table.path, row.line, Severity.INVALID, str(error)))
    bad += _percent_findings(table, factors, replicas)
    if clock is not None and clock.mixed:
        reason = "dates stand beside seconds that count from a start of their own"
        bad.append(Finding(table.path, 0, Severity.INVALID, reason))
    if bad:
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError("; ".join(item.sentence() for item in sorted(bad)[:5]) + more)
    if not replicas:
        raise DataError(f"{table.path}: the table has no rows")
    if clock is None:
        usual = _ROW_SECONDS if row_seconds is None else row_seconds
        notes.append(f"{table.path}: no column of times: rows are taken in their order, {usual:g} s apart")
    elif not all(map(_in_order, replicas.values())):
        notes.append(f"{table.path}: rows were put into the order of their times")
    observed = [
        _observed(name, _ordered(table.path, name, moments), row_seconds, table.path)
        for name, moments in replicas.items()
    ]
    _refuse_successors(table.path, replicas)
    return ServingTable(observed, tuple(notes))


def _read(path: Path) -> Table:
    try:
        return read_table(path, COLUMNS, *_NEEDED, numeric=list(KINDS), rules=ReadingRules())
    except DataError as error:
        if error.hint is None or "--map" not in error.hint:
            raise
        raise DataError(
            error.message, hint=f"rename the column that holds it; the names: {', '.join(COLUMNS)}"
        ) from error


def _unread(table: Table) -> list[str]:
    return [
        f"{table.path}: columns not read: {decision}"
        for topic, decision in table.decisions
        if topic == "columns not read"
    ]


def _of_model(table: Table, model: str | None) -> Sequence[Row]:
    models = sorted({row.text("model") for row in table.rows} - {""})
    if model is not None:
        if model not in models:
            known = ", ".join(models) or "none"
            raise DataError(f"{table.path}: no rows of model {model}; models: {known}")
        return [row for row in table.rows if row.text("model") == model]
    if len(models) > 1:
        raise DataError(
            f"{table.path}: rows of {len(models)} models: {', '.join(models)}",
            hint=f"ask for one at a time: --model {models[0]}",
        )
    return table.rows


def _values(row: Row, table: Table, factors: Mapping[str, tuple[float, bool]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for field, (factor, is_percent) in factors.items():
        text = row.text(field)
        if is_missing(text):
            continue
        number = text.removesuffix("%")
        if number != text and KINDS[field] is not Kind.SHARE:
            raise BadNumberError(f"`{text}` is no number of {KINDS[field]}")
        # exact first: 95 % is to be 0.95
        scale = Fraction(1, 100) if number != text else Fraction(str(factor))
        value = float(parse_number(number, table.mark) * scale)
        if value < 0:
            raise BadNumberError(f"`{text}` is negative")
        if KINDS[field] is Kind.SHARE and value > 1:
            how = "above 100 %" if is_percent else "no share from 0 to 1 (write 45% as 0.45 or 45%)"
            raise BadNumberError(f"`{text}` is {how}")
        values[field] = value
    return values


def _percent_findings(
    table: Table, factors: Mapping[str, tuple[float, bool]], replicas: Mapping[str, Sequence[_Moment]]
) -> list[Finding]:
    """Shares from 0 to 1 under a heading that says percent would read as next to nothing."""
    found = []
    for field, (_, is_percent) in factors.items():
        values = [
            one.values[field] for moments in replicas.values() for one in moments if field in one.values
        ]
        plain = not any("%" in row.text(field) for row in table.rows)
        if is_percent and plain and values and max(values) <= 0.01 and any(0 < v < 0.01 for v in values):
            reason = f"`{table.headings[field]}` says percent, and no value is above 1"
            detail = "write shares under a heading without percent"
            found.append(Finding(table.path, 0, Severity.INVALID, reason, detail))
    return found


def _in_order(moments: Sequence[_Moment]) -> bool:
    return all((one.seconds or 0) <= (later.seconds or 0) for one, later in pairwise(moments))


def _ordered(path: str, name: str, moments: Sequence[_Moment]) -> list[_Moment]:
    """By time; two rows of one moment are refused: which replica is the second one of?"""
    if any(one.seconds is None for one in moments):
        return list(moments)
    ordered = sorted(moments, key=lambda one: (one.seconds or 0.0, one.line))
    for earlier, later in pairwise(ordered):
        if earlier.seconds == later.seconds:
            whose = f" of `{name}`" if name else ""
            raise DataError(
                f"{path}:{later.line}: the time of line {earlier.line}{whose} once more",
                hint="several replicas need a column `replica`" if not name else None,
            )
    return ordered


def _refuse_successors(path: str, replicas: Mapping[str, Sequence[_Moment]]) -> None:
    """Replicas that were never there at the same time are no fleet of their number."""
    spans = {
        name: [one.seconds for one in moments if one.seconds is not None]
        for name, moments in replicas.items()
    }
    timed = {name: (min(times), max(times)) for name, times in spans.items() if times}
    if not timed:
        return
    last_to_come = max(timed, key=lambda name: timed[name][0])
    first_to_go = min(timed, key=lambda name: timed[name][1])
    if timed[last_to_come][0] > timed[first_to_go][1]:
        raise DataError(
            f"{path}: `{last_to_come}` comes after `{first_to_go}` has gone: "
            "they were never replicas at the same time",
            hint="export a time in which the replicas stay the same",
        )


def _step(path: str, moments: Sequence[_Moment], row_seconds: float | None) -> float:
    """Time from row to row."""
    times = [one.seconds for one in moments if one.seconds is not None]
    if len(times) < 2:
        return _ROW_SECONDS if row_seconds is None else row_seconds
    step = statistics.median(later - earlier for earlier, later in pairwise(times))
    if row_seconds is not None and not 0.9 * step <= row_seconds <= 1.1 * step:
        raise UsageError(
            f"{path}: rows are {step:g} s apart by their times, and not {row_seconds:g} s",
            hint="leave out `--window`",
        )
    return step


def _observed(name: str, moments: Sequence[_Moment], row_seconds: float | None, path: str) -> Observed:
    step = _step(path, moments, row_seconds)
    rows = [one.values for one in moments]
    for needed in _NEEDED:
        fields = needed.split("|")
        if not any(field in row for field in fields for row in rows):
            wanted = " or ".join(f"`{field}`" for field in fields)
            raise DataError(f"{path}: no value of {wanted}" + (f" for replica `{name}`" if name else ""))

    def mean(field: str) -> float | None:
        known = [row[field] for row in rows if field in row]
        return sum(known) / len(known) if known else None

    def of_requests(field: str) -> float | None:
        """Latencies weigh as many requests as were finished, or tokens as were made."""
        known = [(row[field], row.get("requests_per_second", row.get("tokens_per_second"))) for row in rows
                 if field in row]  # fmt: skip
        weight = sum(rate or 0.0 for _, rate in known)
        return sum(value * (rate or 0.0) for value, rate in known) / weight if weight > 0 else None

    waits = [(number, one) for number, one in enumerate(moments) if "waiting" in one.values]
    (first_number, first), (last_number, last) = waits[0], waits[-1]
    rise = last.values["waiting"] - first.values["waiting"]
    if first.seconds is not None and last.seconds is not None:
        between, whole = last.seconds - first.seconds, (moments[-1].seconds or 0) - (moments[0].seconds or 0)
        seconds = whole + step
    else:
        between, seconds = (last_number - first_number) * step, step * len(moments)
    first_result, queue = of_requests("first_result_seconds"), of_requests("queue_seconds")
    computing = of_requests("computing_seconds")
    return Observed(
        source=name or path,
        seconds=seconds,
        running=mean("running") or 0.0,
        waiting=mean("waiting") or 0.0,
        # as if it had gone on so over the whole time
        waiting_rise=rise * seconds / between if between > 0 else 0.0,
        finished_per_second=mean("requests_per_second"),
        tokens_per_second=mean("tokens_per_second"),
        queue_seconds=queue,
        computing_seconds=computing,
        first_token_seconds=first_result,
        first_token_p95_seconds=max(
            (row["first_result_p95_seconds"] for row in rows if "first_result_p95_seconds" in row),
            default=None,
        ),
        kv_cache_share=max((row["kv_cache"] for row in rows if "kv_cache" in row), default=None),
        busy_share=mean("busy"),
    )
