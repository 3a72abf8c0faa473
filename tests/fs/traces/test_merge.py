"""Several recordings as one trace."""

from __future__ import annotations

import pytest

from coldstart_cli.errors import UsageError
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace, own_path
from coldstart_fs.traces.fit import fit_trace
from coldstart_fs.traces.merge import MOST_RUNS, aged, certain, merge_traces
from coldstart_fs.traces.summary import summarize
from fs.traces.conftest import Small

IMAGE = b"\x12" * 32


def trace(*reads: Read, lookups: tuple[Lookup, ...] = (), runs: int = 1, partial: int = 0) -> Trace:
    return Trace(IMAGE, "start", reads, lookups, runs, partial)


def test_the_union_keeps_the_earliest_time_and_counts_the_recordings() -> None:
    merged = merge_traces(
        [
            trace(Read(b"/a", 0, 8192, 1.0), lookups=(Lookup(b"x", Kind.MISSING, 0.5),)),
            trace(Read(b"a", 4096, 8192, 0.2), lookups=(Lookup(b"/x", Kind.MISSING, 0.7),)),
        ]
    )
    assert merged.reads == (
        Read(b"a", 4096, 4096, 0.2, 2),
        Read(b"a", 8192, 4096, 0.2, 1),
        Read(b"a", 0, 4096, 1.0, 1),
    )
    assert merged.lookups == (Lookup(b"x", Kind.MISSING, 0.5, 2),)
    assert (merged.runs, merged.partial_runs) == (2, 0)


def test_a_recording_made_beside_a_replay_takes_nothing_away() -> None:
    known = trace(Read(b"a", 0, 4096, 0.1), Read(b"b", 0, 4096, 0.2))
    merged = merge_traces([known, trace(Read(b"c", 0, 4096, 0.0), runs=0, partial=1)])
    assert {read.path for read in merged.reads} == {b"a", b"b", b"c"}
    assert (merged.runs, merged.partial_runs) == (1, 1)
    assert set(certain(merged, 1.0).reads) == set(merged.reads)


def test_traces_that_share_recordings_do_not_count_them_twice() -> None:
    one = merge_traces([trace(Read(b"a", 0, 4096, 0.1)), trace(Read(b"a", 0, 4096, 0.3))])
    assert merge_traces([one, one], add_runs=False) == one
    assert merge_traces([one, one]).runs == 4


def test_a_file_and_the_same_path_looked_up_are_different_facts() -> None:
    lookups = (Lookup(b"a", Kind.FOUND, 0.1), Lookup(b"a", Kind.LINK, 0.2))
    assert merge_traces([trace(lookups=lookups)]).lookups == lookups


def test_traces_of_two_images_are_not_merged() -> None:
    with pytest.raises(UsageError, match=r"traces are of different images: blake3:1212.*, blake3:3434"):
        merge_traces([trace(), Trace(b"\x34" * 32, "start", ())])


def test_what_was_seen_once_among_many_runs_is_forgotten() -> None:
    often, once = Read(b"often", 0, 1, 0.0, MOST_RUNS), Read(b"once", 0, 1, 0.0, 1)
    assert aged(trace(often, once, runs=MOST_RUNS - 1)).reads == (often, once)
    old = aged(trace(often, once, runs=MOST_RUNS, partial=10))
    assert old.reads == (Read(b"often", 0, 1, 0.0, MOST_RUNS // 2),)
    assert (old.runs, old.partial_runs) == (MOST_RUNS // 2, 5)


def test_only_what_enough_runs_saw_is_certain() -> None:
    reads = Read(b"a", 0, 1, 0.0, 10), Read(b"b", 0, 1, 0.0, 1)
    assert certain(trace(*reads, runs=20), 0.1).reads == reads[:1]
    assert certain(trace(*reads, runs=0), 0.1).reads == reads


@pytest.mark.parametrize(
    ("path", "own"), [(b"/usr//lib/", b"usr/lib"), (b"/", b"/"), (b"a", b"a"), (b"//", b"/")]
)
def test_paths_have_one_spelling(path: bytes, own: bytes) -> None:
    assert own_path(path) == own


def test_ranges_that_overlap_make_no_trace_fit_or_fail(small: Small) -> None:
    size = small.index.inode(small.number("bin/run")).size
    reads = tuple(Read(b"bin/run", 0, 2 * size, 0.1 * number) for number in range(50))
    overlapping = Trace(small.digest, "w", (*reads, Read(b"gone", 0, 100, 0.1), Read(b"/gone", 50, 100, 0.2)))
    _, fit = fit_trace(overlapping, small.index, small.digest)
    assert (fit.size_bytes, fit.fitting_bytes) == (2 * size + 150, size)
    assert fit.gone == ((b"gone", 150),)
    summary = summarize(overlapping, listed=5)
    assert {file.path: file.size_bytes for file in summary.biggest} == {b"bin/run": 2 * size, b"gone": 150}
    assert sum(step.size_bytes for step in summary.steps) == summary.size_bytes == 2 * size + 150
