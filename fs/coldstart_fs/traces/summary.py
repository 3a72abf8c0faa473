"""A trace in a few numbers: totals, the biggest files, and how it went over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from coldstart_fs.format.trace import Kind, Trace, own_path
from coldstart_fs.traces.merge import disjoint

_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True)
class Step:
    """A stretch of a start's time: bytes and files first read in it, and paths first looked up."""

    seconds: float
    size_bytes: int
    files: int
    lookups: int


@dataclass(frozen=True)
class TracedFile:
    """One file: how much of it was read, in how many ranges, when first."""

    path: bytes
    size_bytes: int
    ranges: int
    seconds: float
    runs: int


@dataclass(frozen=True)
class Summary:
    size_bytes: int
    ranges: int
    files: int
    lookups: dict[str, int]
    seconds: float
    step_seconds: float
    steps: tuple[Step, ...]
    biggest: tuple[TracedFile, ...]


def summarize(trace: Trace, *, listed: int, most_steps: int = 20) -> Summary:
    """`listed` files, and at most `most_steps` steps of one length."""
    trace = disjoint(trace)
    files = _files(trace)
    kinds = Counter(lookup.kind for lookup in trace.lookups)
    step_seconds = next((step for step in _STEPS if trace.seconds < step * most_steps), _STEPS[-1])
    biggest = sorted(files, key=lambda file: (-file.size_bytes, file.path))[:listed]
    return Summary(
        size_bytes=trace.size_bytes,
        ranges=len(trace.reads),
        files=len(files),
        lookups={kind.value: kinds[kind] for kind in Kind},
        seconds=trace.seconds,
        step_seconds=step_seconds,
        steps=tuple(_steps(trace, files, step_seconds)),
        biggest=tuple(biggest),
    )


def _files(trace: Trace) -> list[TracedFile]:
    found: dict[bytes, list[tuple[int, float, int]]] = defaultdict(list)
    for read in trace.reads:
        found[own_path(read.path)].append((read.length, read.seconds, read.runs))
    return [
        TracedFile(
            path,
            sum(length for length, _, _ in reads),
            len(reads),
            min(seconds for _, seconds, _ in reads),
            max(runs for _, _, runs in reads),
        )
        for path, reads in found.items()
    ]


def _steps(trace: Trace, files: list[TracedFile], step_seconds: float) -> list[Step]:
    size_bytes: Counter[int] = Counter()
    for read in trace.reads:
        size_bytes[int(read.seconds / step_seconds)] += read.length
    opened = Counter(int(file.seconds / step_seconds) for file in files)
    asked = Counter(int(lookup.seconds / step_seconds) for lookup in trace.lookups)
    return [
        Step(round(number * step_seconds, 3), size_bytes[number], opened[number], asked[number])
        for number in sorted({*size_bytes, *asked})
    ]
