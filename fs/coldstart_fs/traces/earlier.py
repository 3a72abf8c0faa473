"""The trace of an earlier version: of another image of this host, most of which this image has too."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.index import Index
from coldstart_fs.format.trace import Trace
from coldstart_fs.traces.fit import fit_trace
from coldstart_fs.traces.kept import KeptTraces

LEAST_COVERAGE = 0.8
"""The part of its bytes that has to be in the image: what only shares a distribution has less."""
# looking at one takes some 50 ms, in which nothing is replayed; a larger file is no start's
_MOST_TRACES = 8
_LARGEST_FILE_BYTES = 4 << 20


@dataclass(frozen=True)
class Earlier:
    """A trace as one of this image, and the image it was recorded of."""

    trace: Trace
    image: bytes
    coverage: float


def earlier_trace(kept: KeptTraces, index: Index, image: bytes, workload: str) -> Earlier | None:
    """Of the newest traces of the workload the one of which the image has the most bytes, if that is enough.

    Damaged ones, and those of unrelated images, are passed over.
    """
    best: Earlier | None = None
    looked_at = 0
    for other in kept.newest(workload):
        if looked_at == _MOST_TRACES:
            break
        with suppress(ColdstartError, OSError):
            if other == image or kept.path(other, workload).stat().st_size > _LARGEST_FILE_BYTES:
                continue
            trace = kept.load(other, workload)
            looked_at += 1
            if trace.workload != workload:
                continue
            fitted, fit = fit_trace(trace, index, image)
            more = best is None or fitted.size_bytes > best.trace.size_bytes
            if fitted.reads and fit.coverage >= LEAST_COVERAGE and more:
                best = Earlier(fitted, other, fit.coverage)
    return best
