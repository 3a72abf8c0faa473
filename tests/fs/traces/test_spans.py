"""Ranges over recordings: checked byte by byte against the plain way."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coldstart_fs.traces.spans import Span, SpanSet, of_one_recording, of_several

SPANS = st.lists(
    st.builds(
        lambda start, length, seconds, runs: Span(start, start + length, float(seconds), runs),
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    max_size=12,
)


def _bytes(spans: list[Span]) -> dict[int, tuple[float, int]]:
    """Per byte the earliest time and the highest count."""
    found: dict[int, tuple[float, int]] = {}
    for span in spans:
        for place in range(span.start, span.end):
            seconds, runs = found.get(place, (span.seconds, span.runs))
            found[place] = min(seconds, span.seconds), max(runs, span.runs)
    return found


def _disjoint(spans: list[Span]) -> dict[int, tuple[float, int]]:
    found = {}
    for before, after in pairwise(spans):
        assert before.end <= after.start
    for span in spans:
        assert span.start < span.end
        for place in range(span.start, span.end):
            found[place] = span.seconds, span.runs
    return found


@given(SPANS)
def test_what_one_recording_read_twice_counts_once_and_at_its_first_time(spans: list[Span]) -> None:
    assert _disjoint(of_one_recording(spans)) == _bytes(spans)


@given(st.lists(SPANS, max_size=4))
def test_what_several_recordings_read_counts_for_each_at_the_earliest_time(
    recordings: list[list[Span]],
) -> None:
    wanted: dict[int, tuple[float, int]] = {}
    for spans in recordings:
        for place, (seconds, runs) in _bytes(spans).items():
            known = wanted.get(place, (seconds, 0))
            wanted[place] = min(known[0], seconds), known[1] + runs
    assert _disjoint(of_several(recordings)) == wanted


def test_ranges_that_touch_are_one_when_they_were_read_in_one_moment() -> None:
    spans = [Span(0, 4, 1.0), Span(4, 8, 1.05), Span(8, 12, 3.0)]
    assert of_one_recording(spans) == [Span(0, 8, 1.0), Span(8, 12, 3.0)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), st.integers(0, 60), st.integers(0, 60))
def test_a_set_of_ranges_is_the_set_of_its_bytes(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    spans, plain = SpanSet(), set[int]()
    for begin, finish in ranges:
        new = set(range(begin, finish)) - plain
        assert spans.add(begin, finish) == len(new)
        plain |= new
    assert spans.size_bytes == len(plain)

    def places(found: list[tuple[int, int]]) -> list[int]:
        return [place for begin, finish in found for place in range(begin, finish)]

    assert places(spans.common(start, end)) == sorted(plain & set(range(start, end)))
    assert places(spans.missing(start, end)) == sorted(set(range(start, end)) - plain)
