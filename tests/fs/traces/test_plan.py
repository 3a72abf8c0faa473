"""The plan of a replay: whole pages, first access first, the biggest of a moment first, nothing foreign."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart_cli.errors import DataError
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.options import TraceOptions
from coldstart_fs.traces.plan import Range, in_windows, plan_replay
from fs.traces.conftest import PAGE, Small


def trace(small: Small, *reads: Read, lookups: tuple[Lookup, ...] = ()) -> Trace:
    return Trace(small.digest, "start", reads, lookups)


def test_ranges_are_whole_pages_up_to_the_files_end_and_each_once(small: Small) -> None:
    plan = plan_replay(
        trace(
            small,
            Read(b"/lib/python", 10, 20, 0.0),
            Read(b"bin/alias", 100, PAGE, 0.01),
            Read(b"lib/python", 20 * PAGE + 50, 1 << 40, 5.0),
        ),
        small.index,
        small.digest,
    )
    number = small.number("lib/python")
    assert plan.ranges == (Range(number, 0, 2 * PAGE, 0.0), Range(number, 20 * PAGE, 100, 5.0))
    assert plan.skipped_paths == 0


def test_a_path_that_is_not_there_or_no_file_is_counted_and_passed_over(small: Small) -> None:
    plan = plan_replay(
        trace(small, Read(b"gone", 0, 1, 0.0), Read(b"lib", 0, 1, 0.0), Read(b"lib/link", 0, 1, 0.0)),
        small.index,
        small.digest,
    )
    assert (plan.ranges, plan.skipped_paths) == ((), 3)


def test_a_trace_of_another_image_is_refused_with_the_way_out(small: Small) -> None:
    with pytest.raises(DataError, match="trace is of another image: blake3:7878") as caught:
        plan_replay(Trace(b"\x78" * 32, "start", ()), small.index, small.digest)
    assert caught.value.hint is not None
    assert "trace merge" in caught.value.hint


@given(
    st.lists(
        st.builds(Range, st.integers(0, 5), st.integers(0, 9), st.integers(1, 99), st.floats(0, 2, width=16))
    )
)
def test_the_order_is_first_access_and_within_a_moment_size(ranges: list[Range]) -> None:
    ordered = list(in_windows(ranges))
    assert sorted(ordered) == sorted(ranges)
    for before, after in pairwise(ordered):
        assert after.seconds > before.seconds - 0.15 - 1e-9
        if before.seconds == after.seconds:
            assert before.length >= after.length


def test_a_directory_is_listed_when_that_answers_many_questions(small: Small) -> None:
    reads = [Read(b"lib/deep/m%02d.py" % number, 0, 1, float(number)) for number in (3, 7, 9)]
    primer = plan_replay(trace(small, *reads, Read(b"zz", 0, 1, 9.0)), small.index, small.digest).primer
    assert primer.list == (b"lib/deep",)
    assert primer.look_up == (b"zz",)


def test_the_primer_is_asked_only_what_the_index_says_too(small: Small) -> None:
    lookups = (
        Lookup(b"lib/absent", Kind.MISSING, 0.2),
        Lookup(b"lib/python", Kind.MISSING, 0.2),  # it is there in this image
        Lookup(b"lib/link/absent", Kind.MISSING, 0.2),  # would leave the tree by a symlink
        Lookup(b"../etc/passwd", Kind.MISSING, 0.1),
        Lookup(b"lib/..", Kind.MISSING, 0.1),
        Lookup(b"lib/" + b"n" * 256, Kind.MISSING, 0.1),
        Lookup(b"/../etc", Kind.FOUND, 0.1),
        Lookup(b"lib/link", Kind.LINK, 0.3),
        Lookup(b"lib/python", Kind.LINK, 0.3),
        Lookup(b"/", Kind.LISTED, 0.4),
        Lookup(b"bin/run", Kind.LISTED, 0.4),
        Lookup(b"empty", Kind.FOUND, 0.5),
    )
    plan = plan_replay(trace(small, lookups=lookups), small.index, small.digest)
    assert plan.primer.list == (b"/",)
    assert plan.primer.look_up == (b"lib/absent",)  # `empty` comes with the listing of the root
    assert plan.primer.read_link == (b"lib/link",)
    assert plan.skipped_paths == 8


def test_options_that_another_version_wrote_are_read_as_far_as_they_are_known() -> None:
    options = TraceOptions("/state", workload="w", replay=Mode.CACHE)
    assert TraceOptions.from_json(options.to_json()) == options
    later = options.to_json() | {"replay": "everywhere", "newer": 5}
    assert TraceOptions.from_json(later) == TraceOptions("/state", workload="w", replay=Mode.OFF)
