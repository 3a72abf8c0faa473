"""Bars and sparklines in lines of text."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from coldstart_cli.printer import Printer
from coldstart_commands.plots import Plots


def plots(encoding: str = "utf-8") -> Plots:
    return Plots(Printer(stdout=io.TextIOWrapper(io.BytesIO(), encoding=encoding)))


def test_bars_are_as_long_as_their_share_and_what_is_not_nothing_is_seen() -> None:
    assert plots().bar(10, 10, 4) == "████"
    assert plots().bar(5, 10, 4) == "██"
    assert plots().bar(0.001, 10, 4) == "▏"
    assert plots().bar(0, 10, 4) == plots().bar(0, 0, 4) == ""
    assert plots("latin-1").bar(5, 10, 4) == "##"
    assert plots("latin-1").bar(0.001, 10, 4) == "#"


def test_sparklines_keep_the_extreme_of_each_stretch() -> None:
    assert plots().sparkline([0, 0, 8, 0, 4, 4], 3) == " █▄"
    assert plots().sparkline([1, 0, 8, 8, 4, 4], 3, min) == " █▄"
    assert plots().sparkline([0, 0, 8, 0, 4, 4], 3, sum) == " ██"
    assert plots("ascii").sparkline([0, 1, 100], 9) == " .@"
    assert plots().sparkline([], 9) == ""


@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(1, 80))
def test_a_sparkline_is_never_wider_than_it_may_be_and_blank_only_where_nothing_is(
    values: list[int], width: int
) -> None:
    line = plots().sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert (line.strip() == "") == (not any(values))
