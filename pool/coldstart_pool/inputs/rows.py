"""The one reader of rows: cells become values, and what cannot is found by file and line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from fractions import Fraction
from operator import attrgetter
from typing import TypeVar

from coldstart_pool.inputs.columns import DURATIONS, RATES
from coldstart_pool.inputs.fields import PLACE_FIELDS
from coldstart_pool.inputs.findings import Finding, Severity, TableReport
from coldstart_pool.inputs.gpu_names import BARE_BOARD_MODELS, UnclearGpuError, canonical_gpu, is_known_gpu
from coldstart_pool.inputs.numbers import BadNumberError, is_missing, parse_count, parse_number
from coldstart_pool.inputs.offers import canonical_market
from coldstart_pool.inputs.places import Selector, canonical_provider, is_total
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, Table
from coldstart_pool.inputs.times import BadTimeError, Clock

T = TypeVar("T")


class UnusableRow(Exception):  # noqa: N818 - carries a finding, it is no failure of the program
    """Why a row gives no value."""

    def __init__(self, severity: Severity, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.severity, self.reason, self.detail = severity, reason, detail


class OtherRow(Exception):  # noqa: N818 - no failure either
    """The row speaks of something else; it is counted, with the reason."""


class RowReader:
    """Reads the rows of one table; `findings` and `decisions` grow meanwhile."""

    def __init__(self, table: Table, rules: ReadingRules) -> None:
        self.table = table
        self.rules = rules
        self.findings = list(table.findings)
        self.decisions = list(table.decisions)
        self.other_rows = 0
        self._clock: Clock | None = None
        self._bare_boards: set[str] = set()
        self._selectors: dict[tuple[object, ...], Selector] = {}
        self._factors: dict[str, Fraction] = {}
        self._gpus: dict[tuple[str, tuple[Fraction, ...], int | None, str], str] = {}

    def values(self, read: Callable[[Row], T]) -> Iterator[tuple[Row, T]]:
        """What `read` makes of each row; rows it cannot use become findings."""
        for row in self.table.rows:
            try:
                value = read(row)
            except UnusableRow as problem:
                self.find(row.line, problem.severity, problem.reason, problem.detail)
            except OtherRow as other:
                self.other_rows += 1
                self.find(row.line, Severity.NOTED, str(other))
            except BadNumberError as error:
                self.find(row.line, Severity.INVALID, "unreadable number", str(error))
            except UnclearGpuError as error:
                self.find(row.line, Severity.REFUSED, str(error))
            except BadTimeError as error:
                self._find_time(row.line, error)
            else:
                yield row, value

    def find(self, line: int, severity: Severity, reason: str, detail: str = "") -> None:
        self.findings.append(Finding(self.table.path, line, severity, reason, detail))

    def question(self, line: int, reason: str, detail: str = "") -> bool:
        """Record a suspicion; whether the value may be used all the same."""
        self.find(line, Severity.QUESTIONED, reason, detail)
        return self.rules.accept_suspicious

    def doubt(self, line: int, reason: str, detail: str = "") -> None:
        """Record a suspicion, and go on with the row only when suspicious values are accepted."""
        if not self.rules.accept_suspicious:
            raise UnusableRow(Severity.QUESTIONED, reason, detail)
        self.question(line, reason, detail)

    def question_all(self, lines: Iterable[int], reason: str, detail: str = "") -> bool:
        """The same suspicion of several lines."""
        for line in lines:
            self.question(line, reason, detail)
        return self.rules.accept_suspicious

    def decide(self, topic: str, decision: str) -> None:
        self.decisions.append((topic, decision))

    def count(self, row: Row, field: str, default: int = 0) -> int:
        """A whole number, not negative; `default` where the cell says nothing."""
        text = row.text(field)
        return default if is_missing(text) else parse_count(text, self.table.mark)

    def machines(self, row: Row, field: str, selector: Selector, default: int = 0) -> int:
        """A count of what the selector names; refused where the heading counts GPUs of machines."""
        if selector.names_machine and self.table.unit(field).of_gpu and row.text(field):
            heading = self.table.headings[field]
            raise UnusableRow(
                Severity.REFUSED, "the heading counts GPUs, and the row names a machine", f"`{heading}`"
            )
        return self.count(row, field, default)

    def number(self, row: Row, field: str) -> Fraction | None:
        """An exact number, not negative; None where the cell says nothing. In seconds, or per second."""
        text = row.text(field)
        if is_missing(text):
            return None
        value = parse_number(text, self.table.mark)
        if value < 0:
            raise BadNumberError(f"`{text}` is negative")
        factor = self.factor(field)
        return value if factor == 1 else value * factor

    def factor(self, field: str) -> Fraction:
        """What turns numbers of a duration or a rate into seconds, where the heading states another unit."""
        if field not in self._factors:
            seconds = self.table.unit(field).seconds if field in DURATIONS | RATES else ()
            stated = seconds[0] if seconds else Fraction(1)
            self._factors[field] = stated if field in DURATIONS else 1 / stated
            if stated != 1:
                self.decide("unit", f"`{self.table.headings[field]}`: {field} times {self._factors[field]}")
        return self._factors[field]

    def gpu(
        self, name: str, memory_gb: tuple[Fraction, ...] = (), count: int | None = None, board: str = ""
    ) -> str:
        """The one name of a GPU, remembered; raises `UnclearGpuError`."""
        key = name, memory_gb, count, board
        if (found := self._gpus.get(key)) is None:
            if is_total(name):
                raise UnusableRow(Severity.REFUSED, "a row of sums names no GPU", f"`{name}`")
            found = self._gpus[key] = canonical_gpu(name, memories_gb=memory_gb, gpu_count=count, board=board)
            if found.partition("-")[0] in BARE_BOARD_MODELS and "-PCIe" not in found and "-NVL" not in found:
                self._bare_boards.add(found)
            if not is_known_gpu(found):
                self.find(0, Severity.NOTED, "unknown GPU, its name is kept as it is written", f"`{found}`")
        return found

    def selector(self, row: Row, *, needs_machine: bool = True) -> Selector:
        """The offers that a row speaks of, by the place columns."""
        # a table of attempts names the same places again and again
        key = (needs_machine, *map(row.text, PLACE_FIELDS))
        if (found := self._selectors.get(key)) is None:
            found = self._selectors[key] = self._selector(row, needs_machine=needs_machine)
        return found

    def _selector(self, row: Row, *, needs_machine: bool) -> Selector:
        market = canonical_market(text) if (text := row.text("market")) else ""
        if market is None:
            raise UnusableRow(Severity.REFUSED, "unknown market", f"`{text}`")
        gpu_count = self.count(row, "gpu_count")
        if row.text("gpu_count") and gpu_count == 0:
            raise UnusableRow(Severity.INVALID, "no GPUs in the instance")
        selector = Selector(
            canonical_provider(row.text("provider")),
            row.text("region").lower(),
            row.text("zone").lower(),
            row.text("instance_type").casefold(),
            self.gpu(row.text("gpu"), count=gpu_count or None) if row.text("gpu") else "",
            gpu_count,
            market,
        )
        if needs_machine and not selector.provider:
            raise UnusableRow(Severity.REFUSED, "no provider")
        if needs_machine and not selector.instance_type and not selector.gpu:
            raise UnusableRow(Severity.REFUSED, "neither an instance type nor a GPU")
        if is_total(selector.provider):
            raise UnusableRow(Severity.REFUSED, "a row of sums names no provider", f"`{selector.provider}`")
        return selector

    def clock(self, *fields: str, ordered: bool = False, dates: bool = False) -> Clock:
        """The clock of this file, decided from the cells of `fields`; `ordered` rows go forward in time.

        `dates` are never counted from the start of a trace.
        """
        if self._clock is None:
            cells = (row.text(field) for row in self.table.rows for field in fields)
            units = self.table.unit(fields[0]).seconds
            self._clock = Clock(
                cells,
                self.rules.time_zone,
                accept_ambiguous=self.rules.accept_suspicious,
                ordered=ordered,
                dates=dates,
                unit_seconds=units[0] if units else None,
            )
        return self._clock

    def report(self, used_lines: Collection[int]) -> TableReport:
        """What became of the file."""
        if not self.table.row_count:
            self.find(0, Severity.QUESTIONED, "the table has no rows")
        elif self.other_rows == self.table.row_count:
            self.find(0, Severity.QUESTIONED, "every row is about something else")
        if self._clock is not None and self._clock.decision:
            self.decide("times", self._clock.decision)
        if self._bare_boards:
            self.decide("boards", f"{', '.join(sorted(self._bare_boards))}: SXM where no board is stated")
        return TableReport(
            self.table.path,
            self.table.digest,
            self.table.row_count,
            len(used_lines),
            tuple(sorted(self.findings, key=attrgetter("place"))),
            self.table.kind or "",
            self.other_rows,
            tuple(self.decisions),
        )

    def time_finding(self, line: int, error: BadTimeError) -> Finding:
        """What is wrong with a time, in the words and with the severity it deserves."""
        _, _, detail = str(error).partition(": `")
        if error.zoneless:
            return Finding(
                self.table.path,
                line,
                Severity.REFUSED,
                "time without offset: pass `--tz ZONE`",
                f"`{detail}",
            )
        severity = Severity.QUESTIONED if error.questioned else Severity.INVALID
        return Finding(self.table.path, line, severity, str(error))

    def _find_time(self, line: int, error: BadTimeError) -> None:
        self.findings.append(self.time_finding(line, error))
