from __future__ import annotations

import pytest

from coldstart_launch.waterfall import Stage, Waterfall, draw


def test_stages_count_from_the_start_of_the_chain_and_come_back_in_order() -> None:
    waterfall = Waterfall(started=100.0)
    waterfall.add("ready", 102.0, 103.0)
    waterfall.add("mount", 100.5, 102.0)
    assert waterfall.stages == (Stage("mount", 0.5, 1.5), Stage("ready", 2.0, 1.0))
    assert waterfall.total_seconds == pytest.approx(3.0)


def test_a_stage_that_fails_is_recorded_and_the_failure_goes_on() -> None:
    waterfall = Waterfall()
    with pytest.raises(ValueError), waterfall.stage("restore"):
        raise ValueError
    assert [stage.name for stage in waterfall.stages] == ["restore"]


def test_a_drawing_shows_each_stage_at_its_place_with_its_seconds() -> None:
    lines = draw((Stage("mount", 0.0, 1.0), Stage("ready", 1.0, 1.0)))
    assert lines[0] == f"mount  |{'#' * 20}{' ' * 20}|    1.000 s"
    assert lines[1] == f"ready  |{' ' * 20}{'#' * 20}|    1.000 s"


def test_two_drawings_on_one_scale_can_be_compared() -> None:
    line = draw((Stage("ready", 0.0, 1.0),), scale_seconds=4.0)[0]
    assert line.count("#") == 10


def test_the_shortest_stage_is_still_visible_at_the_end_of_the_scale() -> None:
    line = draw((Stage("a", 0.0, 1.0), Stage("b", 1.0, 0.0)))[1]
    assert line.count("#") == 1
