"""A recording's file as a trace: paths in the place of inode numbers, times from its first request on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_cli.regular import open_regular
from coldstart_fs.format.index import Index
from coldstart_fs.format.names import parse_digest
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace
from coldstart_fs.traces.inode_paths import InodePaths
from coldstart_fs.traces.recorder import (
    LISTED,
    LOOKED_UP,
    PARTIAL,
    READ,
    RECORD,
    SCHEMA,
    VERSION,
)
from coldstart_fs.traces.spans import Span, of_one_recording

_LARGEST_HEADER_BYTES = 4096
_LARGEST_BYTES = 128 << 20


@dataclass(frozen=True)
class Recording:
    """A recording's header, and its records as bytes."""

    path: Path
    image: bytes
    workload: str
    records: bytes


def read_recording(path: Path) -> Recording:
    """The recording in a file; its end may be missing, as after a crash."""
    with open(open_regular(path), "rb") as stream:
        content = stream.read(_LARGEST_BYTES)
    header, newline, records = content.partition(b"\n")
    document = _header(header[:_LARGEST_HEADER_BYTES] if newline else b"")
    image = document.get("image")
    workload = document.get("workload")
    if (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        raise DataError(f"not a recording: {path}")
    if not isinstance(image, str) or not isinstance(workload, str):
        raise DataError(f"recording is damaged: {path}: its header")
    return Recording(path, parse_digest(image), workload, records)


def _header(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def trace_of(recording: Recording, index: Index) -> Trace | None:
    """The trace of one run; None when nothing was asked in it."""
    paths = InodePaths(index)
    reads: dict[int, list[Span]] = defaultdict(list)
    lookups: dict[tuple[bytes, Kind], float] = {}
    start: float | None = None
    partial = False
    for kind, number, offset, length, name, seconds in _records(recording.records):
        if kind == PARTIAL:
            partial = True
            continue
        start = seconds if start is None else min(start, seconds)
        if kind == READ:
            reads[number].append(Span(offset, offset + length, seconds))
            continue
        path = paths.path(number)
        if kind == LOOKED_UP:
            path = path + b"/" + name if path else name
            found = index.lookup(number, name)
            what = Kind.MISSING if found is None else Kind.FOUND
            if found is not None:
                paths.name(found, path)
        else:
            what = Kind.LISTED if kind == LISTED else Kind.LINK
        lookups.setdefault((path or b"/", what), seconds)
    if start is None:
        return None
    found_reads = [
        Read(paths.path(number), span.start, span.length, _since(start, span.seconds))
        for number, spans in reads.items()
        for span in of_one_recording(spans)
    ]
    found_lookups = [Lookup(path, kind, _since(start, seconds)) for (path, kind), seconds in lookups.items()]
    return Trace(
        recording.image,
        recording.workload,
        tuple(sorted(found_reads, key=lambda read: (read.seconds, read.path, read.offset))),
        tuple(sorted(found_lookups, key=lambda lookup: (lookup.seconds, lookup.path))),
        runs=0 if partial else 1,
        partial_runs=1 if partial else 0,
    )


def _since(start: float, seconds: float) -> float:
    return round(seconds - start, 4)


def _records(content: bytes) -> Iterator[tuple[int, int, int, int, bytes, float]]:
    position = 0
    while position + RECORD.size <= len(content):
        kind, number, offset, length, seconds = RECORD.unpack_from(content, position)
        position += RECORD.size
        name = b""
        if kind != READ:
            if position + length > len(content):
                return  # cut short by a crash
            name = content[position : position + length]
            position += length
        if kind > PARTIAL:
            return
        yield kind, number, offset, length, name, seconds
