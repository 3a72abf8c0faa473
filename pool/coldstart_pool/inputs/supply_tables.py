"""Tables of observed supply: counts, or attempts that become counts and keep their times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.numbers import is_missing
from coldstart_pool.inputs.observations import Attempt, Observation, ObservedSupply
from coldstart_pool.inputs.places import Selector
from coldstart_pool.inputs.rows import RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, read_table
from coldstart_pool.inputs.times import BadTimeError

# of ten attempts, nine obtained at least this many
_ATTEMPT_QUANTILE = 10


@dataclass(frozen=True)
class _Read:
    """One row: a stated count, or an attempt; `attempt` is None where its time is not known."""

    selector: Selector
    count: int
    stated: bool
    attempt: Attempt | None


def read_supply(path: Path, rules: ReadingRules) -> tuple[ObservedSupply, TableReport]:
    """Observations, the timed attempts behind them, and what became of every row."""
    table = read_table(
        path,
        TableKind.SUPPLY,
        "provider",
        "instance_type|gpu",
        "obtainable|obtained|advertised|placement_score",
        numeric=("obtainable", "requested", "obtained", "lead"),
        rules=rules,
    )
    rows = RowReader(table, rules)
    reader = _SupplyReader(rows)
    read = list(rows.values(reader.read))
    observations = _observations([(row.line, value) for row, value in read])
    attempts = [value.attempt for _, value in read if value.attempt is not None]
    _describe(rows, attempts)
    attempts.sort(key=attrgetter("order"))
    return ObservedSupply(observations, tuple(attempts)), rows.report({row.line for row, _ in read})


class _SupplyReader:
    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self._clock = rows.clock("time", dates=True)

    def read(self, row: Row) -> _Read:
        selector = self._rows.selector(row)
        if not is_missing(row.text("obtainable")):
            return _Read(selector, self._rows.machines(row, "obtainable", selector), True, None)
        if is_missing(row.text("obtained")):
            return _Read(selector, self._advertised(row), True, None)
        obtained = self._rows.machines(row, "obtained", selector)
        requested = self._rows.machines(row, "requested", selector, obtained)
        if obtained > requested:
            raise UnusableRow(Severity.REFUSED, f"obtained {obtained} of {requested} requested")
        if requested == 0:
            raise UnusableRow(Severity.INVALID, "an attempt to obtain nothing")
        return _Read(selector, obtained, False, self._attempt(row, selector, requested, obtained))

    def _advertised(self, row: Row) -> int:
        """SpotLake's T3: the largest request that still had the best score; -1 where nobody knows."""
        text = row.text("advertised")
        if is_missing(text) or text == "-1":
            if not is_missing(row.text("placement_score")):
                reason = "a placement score is advice and no observation: nothing was asked for"
                raise UnusableRow(Severity.REFUSED, reason)
            raise UnusableRow(Severity.REFUSED, "no count")
        self._rows.doubt(row.line, "advertised capacity, which nobody obtained")
        return self._rows.count(row, "advertised")

    def _attempt(self, row: Row, selector: Selector, requested: int, obtained: int) -> Attempt | None:
        """The attempt with its time; where the time is unclear only the count is used, a failure's too."""
        if is_missing(row.text("time")):
            return None
        lead = self._rows.number(row, "lead")
        try:
            seconds = self._clock.seconds(row.text("time"))
        except BadTimeError as error:
            finding = self._rows.time_finding(row.line, error)
            reason = f"{finding.reason} (its count is used)"
            self._rows.find(row.line, Severity.QUESTIONED, reason, finding.detail)
            return None
        if not self._clock.since_1970:
            raise UnusableRow(Severity.REFUSED, "an attempt needs a date", f"`{row.text('time')}`")
        lead = lead if obtained else None
        return Attempt(seconds, selector, requested, obtained, lead, row.text("reason"), row.line)


def _observations(read: Sequence[tuple[int, _Read]]) -> tuple[Observation, ...]:
    """The smallest of stated counts counts; where there is none, what nine of ten attempts reached."""
    stated: dict[Selector, list[tuple[int, int]]] = {}
    attempted: dict[Selector, list[tuple[int, int]]] = {}
    for line, value in read:
        (stated if value.stated else attempted).setdefault(value.selector, []).append((value.count, line))
    observations = [
        _observation(selector, min(count for count, _ in members), members)
        for selector, members in stated.items()
    ]
    for selector, members in attempted.items():
        if selector not in stated:
            obtained = sorted(count for count, _ in members)
            count = obtained[len(obtained) // _ATTEMPT_QUANTILE]
            observations.append(_observation(selector, count, members))
    return tuple(sorted(observations))


def _observation(selector: Selector, count: int, members: Sequence[tuple[int, int]]) -> Observation:
    lines = tuple(sorted(line for _, line in members))
    return Observation(selector, count, not selector.names_machine, lines)


def _describe(rows: RowReader, attempts: Sequence[Attempt]) -> None:
    if not attempts:
        return
    times = [float(attempt.time_seconds) for attempt in attempts]
    if any(later < earlier for earlier, later in itertools.pairwise(times)):
        rows.decide("order", "rows are not in order of time: sorted")
    span = (max(times) - min(times)) / 3600
    rows.decide("attempts", f"{len(attempts)} with a time, over {span:.1f} hours")
