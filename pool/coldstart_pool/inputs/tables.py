"""CSV as it comes: encodings, delimiters, preambles, ragged rows; every row keeps its line number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.columns import Synonyms, map_columns, require_columns
from coldstart_pool.inputs.encodings import decode, read_bytes
from coldstart_pool.inputs.fields import FIELDS, WHOLE_NUMBERS, TableKind
from coldstart_pool.inputs.findings import Finding, Severity
from coldstart_pool.inputs.heading_units import HeadingUnit, heading_unit
from coldstart_pool.inputs.layout import DELIMITERS, find_layout, split_lines
from coldstart_pool.inputs.numbers import decimal_mark
from coldstart_pool.inputs.rules import ReadingRules

COLUMNS_NOT_READ = "columns not read"
# cells repeat: of the first so many different ones a single copy is kept
_MOST_COPIES = 1 << 17


class Row:
    """Cells by field name, without blanks around them; an absent column is an empty cell."""

    __slots__ = ("_columns", "_values", "line")

    def __init__(self, line: int, columns: Mapping[str, int], values: Sequence[str]) -> None:
        self.line = line
        self._columns = columns
        self._values = values

    def text(self, field: str) -> str:
        number = self._columns.get(field)
        return "" if number is None else self._values[number]

    @property
    def cells(self) -> dict[str, str]:
        return {field: self._values[number] for field, number in self._columns.items()}

    def changed(self, cells: Mapping[str, str]) -> Row:
        """The same line with other cells."""
        found = {**self.cells, **cells}
        return Row(self.line, {field: number for number, field in enumerate(found)}, tuple(found.values()))


@dataclass(frozen=True)
class Table:
    """One file: its usable rows, what was found wrong while splitting it, and what was decided."""

    path: str
    kind: TableKind | None
    digest: str
    headings: dict[str, str]
    rows: tuple[Row, ...]
    row_count: int
    mark: str
    findings: tuple[Finding, ...]
    decisions: tuple[tuple[str, str], ...]
    series: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = ()
    """Columns that are no field, as (heading, ((line, cell), ...)): only where they were asked for."""

    def unit(self, field: str) -> HeadingUnit:
        """What the heading of a field says of its unit; two units of time in one heading are refused."""
        heading = self.headings.get(field, "")
        found = heading_unit(heading)
        if len(found.seconds) > 1:
            raise DataError(
                f"{self.path}: the heading `{heading}` states two units of time", hint="rename the column"
            )
        return found


def read_table(
    path: Path,
    fields: TableKind | Synonyms,
    *needed: str,
    numeric: Sequence[str],
    rules: ReadingRules | None = None,
    defaults: Mapping[str, str] | None = None,
    with_series: bool = False,
    content: bytes | None = None,
) -> Table:
    """Split `path` into rows of known fields; `numeric` fields decide the file's decimal mark.

    `fields` are those of one of the plan's tables, or given as synonyms; then no rules of columns apply.
    `defaults` are values of fields that have neither a column nor a value given by the operator; `content`
    is what the file holds, where that was read already.
    """
    from blake3 import blake3  # base dependency, but not needed for help

    rules = rules or ReadingRules()
    kind = fields if isinstance(fields, TableKind) else None
    name = str(path)
    content = read_bytes(path) if content is None else content
    constants = {field: value for (table, field), value in rules.constants.items() if table is kind}
    given = {**(defaults or {}), **constants}
    digest = "blake3:" + blake3(content).hexdigest()
    text, encoding, guessed = decode(name, content)
    del content  # a long table is in memory once, not twice
    known = FIELDS[fields] if isinstance(fields, TableKind) else fields
    opened = _Opened(name, text, kind, known, rules, needed, given, constants)
    constants = {field: value for field, value in given.items() if field not in opened.columns}
    reader = _Reader(opened, constants, with_series=with_series)
    if guessed:
        reader.findings.insert(0, Finding(name, 0, Severity.NOTED, f"read as {encoding}"))
    numbers = [field for field in numeric if field not in WHOLE_NUMBERS]
    mark = decimal_mark(
        name,
        reader.cells(numbers, others=True),
        whole=reader.cells([field for field in opened.columns if field in WHOLE_NUMBERS]),
        delimiter=opened.delimiter,
    )
    return Table(
        name,
        kind,
        digest,
        {field: opened.headings[number] for field, number in opened.columns.items()}
        | {field: f"--set {kind}.{field}" for field in constants},
        tuple(reader.rows),
        reader.row_count,
        mark,
        tuple(reader.findings),
        (("encoding", encoding), *opened.decisions, ("decimal mark", "comma" if mark == "," else "point")),
        reader.series,
    )


class _Opened:
    """A file whose columns are known and whose rows are still to be read."""

    def __init__(
        self,
        name: str,
        text: str,
        kind: TableKind | None,
        known: Synonyms,
        rules: ReadingRules,
        needed: Sequence[str],
        given: Mapping[str, str],
        constants: Mapping[str, str],
    ) -> None:
        self.name = name
        named = {field: heading for (table, field), heading in rules.headings.items() if table is kind}
        start, line, self.delimiter = find_layout(name, text, known, named, needed, given)
        self.lines = split_lines(name, text, start, line, self.delimiter)
        first, titles, _ = next(self.lines, (1, [], False))
        if not titles:
            raise DataError(f"{name}: the file is empty", hint="the first line must name the columns")
        while len(titles) > 1 and not titles[-1].strip():
            titles.pop()  # a delimiter at the end of every line
        self.headings = [_one_line(heading) for heading in titles]
        self.columns = map_columns(name, self.headings, known, named, table=kind)
        if clash := sorted(constants.keys() & self.columns.keys()):
            raise DataError(
                f"{name}: `{clash[0]}` has a column already: `{self.headings[self.columns[clash[0]]]}`",
                hint=f"leave out `--set {kind}.{clash[0]}`",
            )
        require_columns(name, self.headings, self.columns, *needed, given=given)
        self.others = [number for number in range(len(titles)) if number not in self.columns.values()]
        unused = [self.headings[number] for number in self.others]
        self.decisions = [
            ("delimiter", DELIMITERS.get(self.delimiter, f"`{self.delimiter}`")),
            (
                "columns",
                ", ".join(f"{field}=`{self.headings[number]}`" for field, number in self.columns.items()),
            ),
            *([(COLUMNS_NOT_READ, ", ".join(unused[:40]))] if unused else []),
            *(
                ("no column", f"{field} is `{value}` in every row")
                for field, value in given.items()
                if field not in self.columns
            ),
        ]
        if before := first - 1:
            self.decisions.append(("headings", f"in line {first}; {before} lines before it are a preamble"))


def _one_line(cell: str) -> str:
    return " ".join(cell.split()) if "\n" in cell or "\r" in cell else cell.strip()


class _Reader:
    """The rows of an opened file."""

    def __init__(self, opened: _Opened, constants: Mapping[str, str], *, with_series: bool) -> None:
        self.rows: list[Row] = []
        self.findings: list[Finding] = []
        self.row_count = 0
        self._fields = {field: place for place, field in enumerate((*opened.columns, *constants))}
        fixed = tuple(constants.values())
        width, numbers = len(opened.headings), tuple(opened.columns.values())
        copies: dict[str, str] = {}
        series: list[list[tuple[int, str]]] = [[] for _ in opened.others] if with_series else []
        broken = []
        for line, cells, several_lines in opened.lines:
            self.row_count += 1
            if len(cells) != width and (len(cells) < width or any(map(str.strip, cells[width:]))):
                detail = f"{len(cells)} cells under {width} headings"
                self._find(opened.name, line, Severity.INVALID, "wrong number of cells", detail)
                continue
            # a name in two lines is the same name in one: nobody sees the difference
            if several_lines:
                broken.append(line)
                values = [_one_line(cells[number]) for number in numbers]
            else:
                values = [cells[number].strip() for number in numbers]
            if len(copies) < _MOST_COPIES:
                values = [copies.setdefault(value, value) for value in values]
            else:
                values = [copies.get(value, value) for value in values]
            self.rows.append(Row(line, self._fields, (*values, *fixed)))
            for column, number in zip(series, opened.others, strict=False):
                column.append((line, cells[number].strip()))
        for line in broken:
            self._find(opened.name, line, Severity.NOTED, "a cell over several lines: read as one line")
        self.series = tuple(
            (opened.headings[number], tuple(column))
            for number, column in zip(opened.others, series, strict=False)
        )

    def cells(self, fields: Sequence[str], *, others: bool = False) -> Iterator[str]:
        """All cells of these fields, and of the columns that are no field."""
        known = [field for field in fields if field in self._fields]
        for row in self.rows if known else ():
            for field in known:
                yield row.text(field)
        for _, column in self.series if others else ():
            for _, cell in column:
                yield cell

    def _find(self, name: str, line: int, severity: Severity, reason: str, detail: str = "") -> None:
        self.findings.append(Finding(name, line, severity, reason, detail))
