"""Ranges of files: put together over recordings, and as sets that grow."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

# ranges that touch, first read this close to each other, are one
SAME_MOMENT_SECONDS = 0.1


class Span(NamedTuple):
    """Bytes from `start` to before `end`, first read after `seconds`, seen by `runs` recordings."""

    start: int
    end: int
    seconds: float
    runs: int = 1

    @property
    def length(self) -> int:
        return self.end - self.start


def of_one_recording(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans in order: what is read twice in one recording counts once, at its first time."""
    return _swept(spans, summed=False)


def of_several(recordings: Iterable[Iterable[Span]]) -> list[Span]:
    """Disjoint spans in order: what several recordings read counts that often, at its earliest time."""
    return _swept(
        (span for recording in recordings for span in of_one_recording(recording)),
        summed=True,
    )


def _swept(spans: Iterable[Span], *, summed: bool) -> list[Span]:
    ordered = sorted(span for span in spans if span.start < span.end)
    bounds = sorted({span.start for span in ordered} | {span.end for span in ordered})
    # what is open at a bound, by time, by runs and by end; those that ended are dropped when they surface
    times: list[tuple[float, int]] = []
    counts: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    total, position = 0, 0
    found: list[Span] = []
    for start, end in pairwise(bounds):
        while position < len(ordered) and ordered[position].start == start:
            span = ordered[position]
            heappush(times, (span.seconds, span.end))
            heappush(counts, (-span.runs, span.end))
            heappush(ends, (span.end, span.runs))
            total += span.runs
            position += 1
        while ends and ends[0][0] <= start:
            total -= heappop(ends)[1]
        if not ends:
            continue
        while times[0][1] <= start:
            heappop(times)
        while counts[0][1] <= start:
            heappop(counts)
        _append(found, Span(start, end, times[0][0], total if summed else -counts[0][0]))
    return found


def _append(found: list[Span], span: Span) -> None:
    last = found[-1] if found else None
    if (
        last is not None
        and (last.end, last.runs) == (span.start, span.runs)
        and abs(last.seconds - span.seconds) <= SAME_MOMENT_SECONDS
    ):
        found[-1] = Span(last.start, span.end, min(last.seconds, span.seconds), span.runs)
    else:
        found.append(span)


class SpanSet:
    """A growing set of byte ranges of one file."""

    __slots__ = ("_ends", "_starts", "size_bytes")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size_bytes = 0

    def add(self, start: int, end: int) -> int:
        """Add a range; how many of its bytes are new."""
        if start >= end:
            return 0
        # those that touch it: from the first that ends at or after its start
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        held = sum(self._ends[n] - self._starts[n] for n in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.size_bytes += end - start - held
        return end - start - held

    def common(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are in the set."""
        found = []
        for number in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[number] >= end:
                break
            found.append((max(start, self._starts[number]), min(end, self._ends[number])))
        return found

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in the set."""
        found = []
        for begin, finish in self.common(start, end):
            if start < begin:
                found.append((start, begin))
            start = finish
        if start < end:
            found.append((start, end))
        return found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from zip(self._starts, self._ends, strict=True)
