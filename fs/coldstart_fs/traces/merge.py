"""Several recordings of one workload as one trace: the union, with how often each part was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from coldstart_cli.errors import UsageError
from coldstart_fs.format.names import digest_text
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace, own_path
from coldstart_fs.traces.spans import Span, of_one_recording, of_several

# counts are halved there: a workload that changes outgrows what it once read
MOST_RUNS = 64


def merge_traces(traces: Sequence[Trace], *, workload: str | None = None, add_runs: bool = True) -> Trace:
    """The union. A recording made beside a replay takes nothing away: it saw only what the replay missed.

    Without `add_runs` the traces may share recordings: counts are the highest, and the union of a trace
    with itself is that trace.
    """
    images = sorted({digest_text(trace.image) for trace in traces})
    if len(images) != 1:
        raise UsageError(
            f"traces are of different images: {', '.join(images)}",
            hint="`--image NAME` takes what one image has of all of them",
        )
    return Trace(
        traces[0].image,
        traces[0].workload if workload is None else workload,
        tuple(_reads(traces, add_runs=add_runs)),
        tuple(_lookups(traces, add_runs=add_runs)),
        (sum if add_runs else max)(trace.runs for trace in traces),
        (sum if add_runs else max)(trace.partial_runs for trace in traces),
    )


def _reads(traces: Iterable[Trace], *, add_runs: bool) -> list[Read]:
    files: dict[bytes, list[list[Span]]] = defaultdict(list)
    for trace in traces:
        spans: dict[bytes, list[Span]] = defaultdict(list)
        for read in trace.reads:
            end = read.offset + read.length
            spans[own_path(read.path)].append(Span(read.offset, end, read.seconds, read.runs))
        for path, found in spans.items():
            files[path].append(found)
    reads = [
        Read(path, span.start, span.length, span.seconds, span.runs)
        for path, recordings in files.items()
        for span in (of_several(recordings) if add_runs else of_one_recording(chain(*recordings)))
    ]
    return sorted(reads, key=lambda read: (read.seconds, read.path, read.offset))


def _lookups(traces: Iterable[Trace], *, add_runs: bool) -> list[Lookup]:
    found: dict[tuple[bytes, Kind], Lookup] = {}
    for trace in traces:
        mine: dict[tuple[bytes, Kind], Lookup] = {}
        for lookup in trace.lookups:
            _put(mine, lookup, max)
        for lookup in mine.values():
            _put(found, lookup, _sum if add_runs else max)
    return sorted(found.values(), key=lambda lookup: (lookup.seconds, lookup.path, lookup.kind))


def _sum(one: int, other: int) -> int:
    return one + other


def _put(
    found: dict[tuple[bytes, Kind], Lookup], lookup: Lookup, combined: Callable[[int, int], int]
) -> None:
    key = own_path(lookup.path), lookup.kind
    known = found.get(key)
    if known is None:
        found[key] = replace(lookup, path=key[0])
    else:
        runs = combined(known.runs, lookup.runs)
        found[key] = replace(known, seconds=min(known.seconds, lookup.seconds), runs=runs)


def disjoint(trace: Trace) -> Trace:
    """The same, every byte of a file in one range at most; a trace that is so already comes back as it is."""
    if trace.size_bytes == sum(read.length for read in trace.reads):
        return trace
    return replace(trace, reads=tuple(_reads([trace], add_runs=False)))


def aged(trace: Trace) -> Trace:
    """The trace, with its counts halved when they are high; what was seen once among many is dropped."""
    if trace.runs < MOST_RUNS:  # a partial recording cannot see again what was replayed: it counts nobody out
        return trace
    return replace(
        trace,
        reads=tuple(replace(read, runs=read.runs // 2) for read in trace.reads if read.runs > 1),
        lookups=tuple(replace(item, runs=item.runs // 2) for item in trace.lookups if item.runs > 1),
        runs=trace.runs // 2,
        partial_runs=trace.partial_runs // 2,
    )


def certain(trace: Trace, least: float) -> Trace:
    """What at least this part of the complete recordings saw; all where there are none."""
    bound = least * trace.runs
    return replace(
        trace,
        reads=tuple(read for read in trace.reads if read.runs >= bound),
        lookups=tuple(lookup for lookup in trace.lookups if lookup.runs >= bound),
    )
