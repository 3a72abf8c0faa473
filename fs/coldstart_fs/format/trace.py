"""`coldstart.trace` documents: what a start reads of an image and looks up in it, in time, by path."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, UsageError
from coldstart_cli.regular import NotRegularError, open_regular
from coldstart_cli.version import __version__
from coldstart_fs.format.names import digest_text, parse_digest

SCHEMA = "coldstart.trace"
VERSION = 2
LARGEST_BYTES = 256 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_LATEST_SECONDS = 1e12
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Read:
    """`length` bytes of a file from `offset`, first read `seconds` after the start; `path` from the root.

    `runs` is how many recordings saw it.
    """

    path: bytes
    offset: int
    length: int
    seconds: float
    runs: int = 1


class Kind(StrEnum):
    """What a start asked about a path; `MISSING`: whether it is there, and it was not."""

    FOUND = "found"
    MISSING = "missing"
    LISTED = "listed"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question about a path, first asked `seconds` after the start."""

    path: bytes
    kind: Kind
    seconds: float
    runs: int = 1


@dataclass(frozen=True)
class Trace:
    """What one workload reads of one image.

    `runs` recordings saw all that was read; `partial_runs` were made beside a replay, and saw only what it
    left to be read.
    """

    image: bytes
    workload: str
    reads: tuple[Read, ...]
    lookups: tuple[Lookup, ...] = ()
    runs: int = 1
    partial_runs: int = 0

    def in_time(self) -> list[Read]:
        """The reads by first access; those of one moment as they stand in the document."""
        return sorted(self.reads, key=lambda read: read.seconds)

    @property
    def size_bytes(self) -> int:
        """How many bytes are read; what several ranges have in common counts once."""
        total = end = 0
        path = b""
        for read in sorted(self.reads, key=lambda read: (own_path(read.path), read.offset)):
            if path != (path := own_path(read.path)):
                end = 0
            total += max(0, read.offset + read.length - max(end, read.offset))
            end = max(end, read.offset + read.length)
        return total

    @property
    def seconds(self) -> float:
        """When the last of it was first wanted."""
        return max(
            max((read.seconds for read in self.reads), default=0.0),
            max((lookup.seconds for lookup in self.lookups), default=0.0),
        )


def own_path(path: bytes) -> bytes:
    """A path as traces write it: without a leading slash, the root as `/`."""
    return b"/".join(part for part in path.split(b"/") if part) or b"/"


def encode_trace(trace: Trace, *, compressed: bool = False) -> bytes:
    """The document's bytes; paths that are not UTF-8 keep their bytes as escaped surrogates."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "image": digest_text(trace.image),
        "workload": trace.workload,
        "runs": trace.runs,
        "partial_runs": trace.partial_runs,
        "reads": [
            {
                "path": _text(read.path),
                "offset": read.offset,
                "length": read.length,
                "seconds": read.seconds,
                "runs": read.runs,
            }
            for read in trace.reads
        ],
        "lookups": [
            {
                "path": _text(lookup.path),
                "kind": lookup.kind.value,
                "seconds": lookup.seconds,
                "runs": lookup.runs,
            }
            for lookup in trace.lookups
        ],
    }
    content = json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"
    return gzip.compress(content, 6, mtime=0) if compressed else content


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def load_trace(path: Path) -> Trace:
    """The trace in a file; what cannot be one is refused with the file and the field."""
    return decode_trace(_content(path), str(path))


def decode_trace(content: bytes, place: str) -> Trace:
    """The trace in a document, plain or compressed by gzip; `place` names it in errors."""
    if content[:2] == _GZIP:
        content = _inflated(content, place)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"trace is not JSON: {place}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DataError(f"not a {SCHEMA} document: {place}")
    fields = _Fields(document, place, "")
    version = fields.number("version")
    if version > VERSION:
        raise DataError(
            f"trace has version {version}, coldstart {__version__} reads up to {VERSION}: {place}",
            hint="install a newer coldstart",
        )
    try:
        image = parse_digest(fields.text("image"))
    except UsageError:
        fields.malformed("image", "is not a digest")
    counted = version > 1
    reads = [_read(item, counted=counted) for item in fields.items("reads")]
    lookups = [_lookup(item) for item in fields.items("lookups")] if counted else []
    return Trace(
        image,
        fields.text("workload"),
        tuple(reads),
        tuple(lookups),
        fields.number("runs") if counted else 1,
        fields.number("partial_runs") if counted else 0,
    )


def _inflated(content: bytes, place: str) -> bytes:
    """What gzip compressed; a small file must not become an endless document."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(content, LARGEST_BYTES + 1)
    except zlib.error as error:
        raise DataError(f"trace is damaged: {place}: it cannot be decompressed") from error
    if len(plain) > LARGEST_BYTES:
        raise DataError(f"trace is larger than {LARGEST_BYTES} bytes: {place}")
    if not inflater.eof:
        raise DataError(f"trace is damaged: {place}: it is cut short")
    return plain


def _read(fields: _Fields, *, counted: bool) -> Read:
    return Read(
        fields.path("path"),
        fields.number("offset"),
        fields.number("length"),
        fields.time("seconds"),
        fields.runs() if counted else 1,
    )


def _lookup(fields: _Fields) -> Lookup:
    try:
        kind = Kind(fields.text("kind"))
    except ValueError:
        fields.malformed("kind", f"is none of {', '.join(Kind)}")
    return Lookup(fields.path("path"), kind, fields.time("seconds"), fields.runs())


class _Fields:
    """One object of a document; what is not as it must be is named."""

    __slots__ = ("_content", "_place", "_where")

    def __init__(self, content: dict[str, Any], place: str, where: str) -> None:
        self._content = content
        self._place = place
        self._where = where

    def items(self, key: str) -> list[_Fields]:
        """The objects of a list."""
        value = self._content.get(key)
        if not isinstance(value, list):
            self.malformed(key, "is not a list")
        found = []
        for number, item in enumerate(value):
            where = f"{self._where}{key}[{number}]"
            if not isinstance(item, dict):
                raise DataError(f"trace is malformed: {self._place}: {where} is not an object")
            found.append(_Fields(item, self._place, where + "."))
        return found

    def text(self, key: str) -> str:
        value = self._content.get(key)
        if not isinstance(value, str):
            self.malformed(key, "is not a text")
        return value

    def path(self, key: str) -> bytes:
        value = self.text(key)
        try:
            path = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            self.malformed(key, "holds a surrogate that stands for no byte")
        if not path or b"\0" in path:
            self.malformed(key, "is not a path")
        return path

    def number(self, key: str) -> int:
        value = self._content.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_NUMBER:
            self.malformed(key, "is not a number from 0 to 2^63-1")
        return value

    def runs(self) -> int:
        value = self.number("runs")
        if not value:
            self.malformed("runs", "is not a number from 1 to 2^63-1")
        return value

    def time(self, key: str) -> float:
        value = self._content.get(key)
        # a comparison that NaN fails too
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST_SECONDS:
            self.malformed(key, "is not a time since the start")
        return float(value)

    def malformed(self, key: str, why: str) -> NoReturn:
        raise DataError(f"trace is malformed: {self._place}: {self._where}{key} {why}")


def _content(path: Path) -> bytes:
    try:
        with open(open_regular(path), "rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except NotRegularError as error:
        raise UsageError(f"trace is {error.strerror}: {path}", hint="name the file of a trace") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"trace does not exist: {path}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read trace: {path}", hint="run as root") from error
    except IsADirectoryError as error:
        raise UsageError(f"trace is not a file but a folder: {path}", hint="name the trace in it") from error
    except OSError as error:
        raise IoFailure(f"cannot read trace: {path}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise DataError(f"trace is larger than {LARGEST_BYTES} bytes: {path}")
    return content
