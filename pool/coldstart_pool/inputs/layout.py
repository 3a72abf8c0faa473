"""Where the headings of a file stand and what separates its cells; its lines, with their numbers."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.columns import Synonyms, fields_of

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_LINE_END = re.compile(r"\r\n|\r|\n")  # a lone carriage return ends the lines of old Macs
# the headings stand in one of the first lines: price lists begin with lines about themselves
_LONGEST_PREAMBLE = 30
_MOST_ROWS = 5_000_000


def find_layout(
    name: str,
    text: str,
    known: Synonyms,
    named: Mapping[str, str],
    needed: Sequence[str],
    constants: Mapping[str, str],
) -> tuple[int, int, str]:
    """Where in the text the headings start, the number of that line, and the delimiter."""
    line_ends = itertools.islice(_LINE_END.finditer(text), _LONGEST_PREAMBLE)
    starts = [0, *(match.end() for match in line_ends)]
    first = _line(text, starts[0])
    if first.strip().lower().startswith("sep=") and len(first.strip()) == len("sep=;"):
        # Excel's own line
        return (starts[1] if len(starts) > 1 else len(text)), 2, first.strip()[-1]
    wanted = {heading.casefold() for heading in named.values()}
    has_all = _satisfied(known, named, needed, constants)
    fallback: str | None = None
    for number, start in enumerate(starts, 1):
        line = _line(text, start)
        if not line.strip():
            continue
        ranks = {}
        for delimiter in DELIMITERS:
            cells = _cells(name, line, delimiter, required=fallback is None)
            fields = sum(
                bool(fields_of(cell, known)) or cell.strip().casefold() in wanted for cell in set(cells)
            )
            ranks[delimiter] = (has_all(cells), fields, line.count(delimiter))
        delimiter = max(ranks, key=lambda mark: ranks[mark])
        if ranks[delimiter][0]:
            return start, number, delimiter
        fallback = fallback or delimiter
    # without a line that has all the fields, the first one is taken for the headings, to be complained of
    return 0, 1, fallback or ","


def split_lines(
    name: str, text: str, start: int, first_line: int, delimiter: str
) -> Iterator[tuple[int, list[str], bool]]:
    """Line number, cells, and whether the row goes over several lines; rows without content are left out."""
    reader = csv.reader(_lines(text, start), delimiter=delimiter, strict=True)
    before = first_line - 1
    count = 0
    line = first_line
    try:
        for cells in reader:
            end = before + reader.line_num
            if any(cells) and any(cell.strip() for cell in cells):
                yield line, cells, end > line
                count += 1
                if count > _MOST_ROWS:
                    raise DataError(
                        f"{name}: more than {_MOST_ROWS} rows", hint="split or aggregate the table"
                    )
            line = end + 1
    except csv.Error as error:
        raise DataError(f"{name}:{before + reader.line_num}: not valid CSV: {error}") from error


def _lines(text: str, start: int) -> Iterator[str]:
    """Lines with their ends; a stream over the text would take four times its size."""
    if "\r" not in text:
        while (end := text.find("\n", start)) >= 0:
            yield text[start : end + 1]
            start = end + 1
    else:
        for match in _LINE_END.finditer(text, start):
            yield text[start : match.end()]
            start = match.end()
    if start < len(text):
        yield text[start:]


def _satisfied(
    known: Synonyms, named: Mapping[str, str], needed: Sequence[str], constants: Mapping[str, str]
) -> Callable[[Sequence[str]], bool]:
    """Whether a line of cells could be the headings: every needed field is there."""

    def test(cells: Sequence[str]) -> bool:
        found = {field for cell in cells for field in fields_of(cell, known)} | constants.keys()
        folded = {cell.strip().casefold() for cell in cells}
        found |= {field for field, heading in named.items() if heading.casefold() in folded}
        return all(found & set(alternatives.split("|")) for alternatives in needed)

    return test


def _line(text: str, start: int) -> str:
    match = _LINE_END.search(text, start)
    return text[start : match.start() if match else len(text)]


def _cells(name: str, line: str, delimiter: str, *, required: bool) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error as error:
        if required:
            raise DataError(f"{name}: not valid CSV in the first line: {error}") from error
        return []
