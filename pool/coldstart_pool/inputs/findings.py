"""What was found wrong in a table, by file and line, so that no row ever disappears silently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter


class Severity(StrEnum):
    """How bad a finding is; only `NOTED` leaves the value in use without a flag."""

    INVALID = "invalid"  # no price or count can be like this: stops the run unless told to go on
    REFUSED = "refused"  # readable, but cannot be used: ambiguous, another currency, nothing to sell
    QUESTIONED = "questioned"  # suspicious: used only when told to accept it
    NOTED = "noted"  # used, or repeated by another row that is used


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One complaint about one line; `line` 0 stands for the whole file."""

    path: str
    line: int
    severity: Severity
    reason: str
    detail: str = ""

    @property
    def place(self) -> tuple[str, int, str, str, str]:
        """Sorts findings as they sort themselves, faster where there are many."""
        return (self.path, self.line, self.severity, self.reason, self.detail)

    def sentence(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.reason}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class TableReport:
    """What became of one input file."""

    path: str
    digest: str
    rows: int
    used_rows: int
    findings: tuple[Finding, ...]
    table: str = ""
    """Which table it is: `prices`, `supply`, ..."""
    other_rows: int = 0
    """Rows about something else, such as machines without a GPU: understood, and not for a plan."""
    decisions: tuple[tuple[str, str], ...] = ()
    """What was decided for the whole file, and how: encoding, delimiter, columns, currency, time zone."""

    @property
    def refused_rows(self) -> int:
        return self.rows - self.used_rows - self.other_rows

    @property
    def clean(self) -> bool:
        """Whether nothing was refused or questioned."""
        return all(finding.severity is Severity.NOTED for finding in self.findings)

    def of_severity(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]


def grouped_sentences(findings: Iterable[Finding]) -> list[str]:
    """One sentence for each file, severity and reason, with all its lines as ranges."""
    groups: dict[tuple[str, Severity, str], list[Finding]] = {}
    for finding in sorted(findings, key=attrgetter("place")):
        groups.setdefault((finding.path, finding.severity, finding.reason), []).append(finding)
    sentences = []
    for (path, severity, reason), members in groups.items():
        lines = sorted({finding.line for finding in members if finding.line})
        where = f"line {lines[0]}" if len(lines) == 1 else f"lines {line_ranges(lines)}" if lines else ""
        details = sorted({finding.detail for finding in members if finding.detail})
        shown = "; ".join(details[:3]) + (f"; and {len(details) - 3} more" if len(details) > 3 else "")
        sentences.append(
            f"{path}: {severity.value}: {reason}"
            + (f" ({shown})" if shown else "")
            + (f": {where}" if where else "")
        )
    return sentences


def line_ranges(lines: Sequence[int]) -> str:
    """`2-4, 9` for 2, 3, 4, 9; the lines are sorted and distinct."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
