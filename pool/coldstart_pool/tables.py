"""CSV as it comes: byte-order marks, several delimiters, ragged rows; every row keeps its line number."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, near_matches_hint
from coldstart_pool.columns import Synonyms, map_columns, require_columns
from coldstart_pool.findings import Finding, Severity
from coldstart_pool.numbers import decimal_mark

_DELIMITERS = ",;\t|"
_LINE_END = re.compile(r"\r\n|\r|\n")  # a lone carriage return ends the lines of old Macs
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Row:
    """Cells by field name; an absent column is an empty cell."""

    line: int
    cells: dict[str, str]

    def text(self, field: str) -> str:
        return self.cells.get(field, "").strip()


@dataclass(frozen=True)
class Table:
    """One file: its usable rows, and what was found wrong while splitting it."""

    path: str
    digest: str
    headings: dict[str, str]
    rows: tuple[Row, ...]
    row_count: int
    mark: str
    findings: tuple[Finding, ...]


def read_table(path: Path, known: Synonyms, *needed: str, numeric: Sequence[str]) -> Table:
    """Split `path` into rows of known fields; `numeric` fields decide the file's decimal mark."""
    from blake3 import blake3  # base dependency, but not needed for help

    content = _read(path)
    name = str(path)
    text = _decode(name, content)
    text, delimiter = _delimiter(name, text, known)
    lines = _split(name, text, delimiter)
    if not lines:
        raise DataError(f"{name}: the file is empty", hint="the first line must name the columns")
    headings = [heading.strip() for heading in lines[0][1]]
    columns = map_columns(name, headings, known)
    require_columns(name, headings, columns, *needed)
    rows, findings = [], []
    for line, cells in lines[1:]:
        if len(cells) != len(headings):
            detail = f"{len(cells)} cells under {len(headings)} headings"
            findings.append(Finding(name, line, Severity.INVALID, "wrong number of cells", detail))
            continue
        rows.append(Row(line, {field: cells[number] for field, number in columns.items()}))
    mark = decimal_mark(name, (row.cells.get(field, "") for row in rows for field in numeric))
    return Table(
        name,
        "blake3:" + blake3(content).hexdigest(),
        {field: headings[number] for field, number in columns.items()},
        tuple(rows),
        len(lines) - 1,
        mark,
        tuple(findings),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        siblings = [str(path.parent / entry.name) for entry in path.parent.glob("*.csv")]
        hint = near_matches_hint(str(path), siblings)
        raise NotFoundError(f"table does not exist: {path}", hint=hint) from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read table: {path}") from error
    except OSError as error:
        raise IoFailure(f"cannot read table: {path}: {error.strerror}") from error


def _decode(name: str, content: bytes) -> str:
    encoding, skip = "utf-8", 0
    for mark, marked in _BOMS:
        if content.startswith(mark):
            encoding, skip = marked, len(mark)
            break
    try:
        return content[skip:].decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: the text is not {encoding.upper()}: byte {error.start + skip}",
            hint="convert it, for example with `iconv -f latin1 -t utf-8`",
        ) from error


def _delimiter(name: str, text: str, known: Synonyms) -> tuple[str, str]:
    first, *others = _LINE_END.split(text.lstrip("\r\n"), maxsplit=1)
    rest = "".join(others)
    if first.strip().lower().startswith("sep=") and len(first.strip()) == len("sep=;"):
        # Excel's own line; kept as an empty one so that line numbers stay true
        return "\n" + rest, first.strip()[-1]

    def known_columns(delimiter: str) -> int:
        try:
            headings = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error as error:
            raise DataError(f"{name}: not valid CSV in the first line: {error}") from error
        return len({heading for heading in headings if _is_known(heading, known)})

    return text, max(_DELIMITERS, key=lambda delimiter: (known_columns(delimiter), first.count(delimiter)))


def _is_known(heading: str, known: Synonyms) -> bool:
    return bool(map_columns("", [heading], known))


def _split(name: str, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines: list[tuple[int, list[str]]] = []
    start = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                lines.append((start, cells))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not valid CSV: {error}") from error
    return lines
