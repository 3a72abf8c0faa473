"""`coldstart.trace` documents: what a start reads of an image, in time, by path and range."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, UsageError
from coldstart_cli.version import __version__
from coldstart_fs.names import digest_text, parse_digest

SCHEMA = "coldstart.trace"
VERSION = 1
_LARGEST_BYTES = 256 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_LATEST_SECONDS = 1e12


@dataclass(frozen=True, slots=True)
class Read:
    """`length` bytes of a file from `offset`, first read `seconds` after the start; `path` from the root."""

    path: bytes
    offset: int
    length: int
    seconds: float


@dataclass(frozen=True)
class Trace:
    """What one workload reads of one image."""

    image: bytes
    workload: str
    reads: tuple[Read, ...]

    def in_time(self) -> list[Read]:
        """The reads by first access; those of one moment as they stand in the document."""
        return sorted(self.reads, key=lambda read: read.seconds)


def encode_trace(trace: Trace) -> bytes:
    """The document's bytes; paths that are not UTF-8 keep their bytes as escaped surrogates."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "image": digest_text(trace.image),
        "workload": trace.workload,
        "reads": [
            {
                "path": read.path.decode("utf-8", "surrogateescape"),
                "offset": read.offset,
                "length": read.length,
                "seconds": read.seconds,
            }
            for read in trace.reads
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def load_trace(path: Path) -> Trace:
    """The trace in a file; what cannot be one is refused with the file and the field."""
    return decode_trace(_content(path), str(path))


def decode_trace(content: bytes, place: str) -> Trace:
    """The trace in a document; `place` names it in errors."""
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
    reads = document.get("reads")
    if not isinstance(reads, list):
        fields.malformed("reads", "is not a list")
    return Trace(
        image,
        fields.text("workload"),
        tuple(_read(item, place, f"reads[{number}]") for number, item in enumerate(reads)),
    )


def _read(item: Any, place: str, where: str) -> Read:
    if not isinstance(item, dict):
        raise DataError(f"trace is malformed: {place}: {where} is not an object")
    fields = _Fields(item, place, where + ".")
    return Read(fields.path("path"), fields.number("offset"), fields.number("length"), fields.time("seconds"))


class _Fields:
    """One object of a document; what is not as it must be is named."""

    def __init__(self, content: dict[str, Any], place: str, where: str) -> None:
        self._content = content
        self._place = place
        self._where = where

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
        with path.open("rb") as stream:
            content = stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"trace does not exist: {path}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read trace: {path}", hint="run as root") from error
    except IsADirectoryError as error:
        raise UsageError(f"trace is not a file but a folder: {path}", hint="name the trace in it") from error
    except OSError as error:
        raise IoFailure(f"cannot read trace: {path}: {error.strerror}") from error
    if len(content) > _LARGEST_BYTES:
        raise DataError(f"trace is larger than {_LARGEST_BYTES} bytes: {path}")
    return content
