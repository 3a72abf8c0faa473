"""Instants in tables."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from coldstart_pool.inputs.times import BadTimeError, Clock

BERLIN = ZoneInfo("Europe/Berlin")


def utc(*parts: int) -> Fraction:
    return Fraction(int(datetime(*parts, tzinfo=UTC).timestamp()))  # type: ignore[misc,arg-type]


def one(text: str, zone: ZoneInfo | None = None) -> Fraction:
    return Clock([text], zone).seconds(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-29T01:30:00Z",
        "2026-03-29 03:30:00+02:00",
        "2026-03-29 01:30:00 UTC",
        "1774747800",
        "1774747800000",
        "1774747800000000",
        "1774747800000000000",
        "1774747800.000",
        "1.7747478e9",
    ],
)
def test_an_absolute_time_is_read_whatever_its_form(text: str) -> None:
    assert one(text) == utc(2026, 3, 29, 1, 30)


def test_a_time_without_offset_needs_a_zone_and_the_zone_is_said() -> None:
    with pytest.raises(BadTimeError, match="time without offset") as caught:
        one("2026-01-10 12:00:00")
    assert caught.value.zoneless
    clock = Clock(["2026-01-10 12:00:00"], BERLIN)
    assert clock.seconds("2026-01-10 12:00:00") == utc(2026, 1, 10, 11)
    assert clock.decision == "times without offset read as Europe/Berlin"


def test_an_hour_that_the_clocks_left_out_does_not_exist() -> None:
    with pytest.raises(BadTimeError, match=r"does not exist in Europe/Berlin") as caught:
        one("2026-03-29 02:30:00", BERLIN)
    assert not caught.value.questioned


def test_an_hour_that_came_twice_is_questioned_and_read_as_the_first_when_accepted() -> None:
    text = "2026-10-25 02:30:00"
    with pytest.raises(BadTimeError, match="happened twice in Europe/Berlin") as caught:
        one(text, BERLIN)
    assert caught.value.questioned
    assert Clock([text], BERLIN, accept_ambiguous=True).seconds(text) == utc(2026, 10, 25, 0, 30)


def test_rows_in_order_of_time_tell_the_hour_that_came_twice_apart() -> None:
    texts = [
        f"2026-10-25 0{hour}:{minute}:00"
        for hour, minute in ((1, 30), (2, 15), (2, 45), (2, 15), (2, 45), (3, 15))
    ]
    clock = Clock(texts, BERLIN, ordered=True)
    seconds = [clock.seconds(text) for text in texts]
    assert [int(later - earlier) for earlier, later in pairwise(seconds)] == [2700, 1800, 1800, 1800, 1800]
    assert "told apart by the order of rows" in clock.decision


def test_day_and_month_are_told_apart_by_the_whole_file() -> None:
    german = Clock(["03/04/2026", "25/04/2026 10:00"], BERLIN)
    assert german.seconds("03/04/2026") == utc(2026, 4, 2, 22)
    american = Clock(["03/04/2026", "04/25/2026"], BERLIN)
    assert american.seconds("03/04/2026 1:05") == utc(2026, 3, 4, 0, 5)
    with pytest.raises(BadTimeError, match="may be day/month or month/day"):
        one("03/04/2026", BERLIN)
    with pytest.raises(BadTimeError, match="change places"):
        Clock(["25/04/2026", "04/25/2026"], BERLIN).seconds("25/04/2026")
    assert one("25.4.2026", BERLIN) == utc(2026, 4, 24, 22)


def test_small_numbers_count_from_the_start_of_a_trace_and_do_not_mix_with_dates() -> None:
    clock = Clock(["12.5", "1774747800"], None)
    assert clock.seconds("12.5") == Fraction(25, 2)
    assert not clock.since_1970
    assert not clock.mixed
    clock.seconds("1774747800")
    assert clock.mixed


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01T00:00Z", "nan", "-5", "12:30", "0001-01-01", "9" * 30, "٣"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadTimeError):
        one(text, ZoneInfo("America/New_York") if text != "0001-01-01" else ZoneInfo("Asia/Tokyo"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5/14/2026 3:30 PM", "2026-05-14T15:30:00"),
        ("5/14/2026 12:05:07 am", "2026-05-14T00:05:07"),
        ("2026-05-14 3:30\u202fPM", "2026-05-14T15:30:00"),
        ("14.05.2026 12:30 p.m.", "2026-05-14T12:30:00"),
        ("2026-05-14 3:30", "2026-05-14T03:30:00"),
    ],
)
def test_half_days_are_read(text: str, wanted: str) -> None:
    seconds = Clock([text], UTC).seconds(text)
    assert datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S") == wanted


@pytest.mark.parametrize("text", ["5/14/2026 15:30 PM", "5/14/2026 0:30 AM"])
def test_hours_that_no_half_day_has_are_refused(text: str) -> None:
    with pytest.raises(BadTimeError, match="is not a time"):
        Clock([text], UTC).seconds(text)


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1e20", "99999999999999999999"]
)
def test_times_out_of_any_range_are_refused_where_they_stand(text: str) -> None:
    with pytest.raises(BadTimeError, match="out of any sensible range"):
        Clock([text], UTC).seconds(text)


DAYS = ["46123.5", "46124.25", "46125"]


def test_days_of_a_spreadsheet_are_questioned_where_they_might_be_seconds() -> None:
    with pytest.raises(BadTimeError, match=r"spreadsheet's day \(2026-04-11 12:00\) or seconds") as caught:
        Clock(DAYS, UTC).seconds(DAYS[0])
    assert caught.value.questioned
    assert Clock(DAYS, UTC, accept_ambiguous=True).seconds(DAYS[0]) == Fraction("46123.5")
    assert Clock(DAYS, UTC, unit_seconds=Fraction(1)).seconds(DAYS[0]) == Fraction("46123.5")
    assert Clock([*DAYS, "3"], UTC).seconds(DAYS[0]) == Fraction("46123.5")


def test_days_of_a_spreadsheet_are_dates_where_only_dates_stand() -> None:
    clock = Clock(DAYS, ZoneInfo("Europe/Berlin"), dates=True)
    assert (
        datetime.fromtimestamp(float(clock.seconds(DAYS[0])), UTC).isoformat() == "2026-04-11T10:00:00+00:00"
    )
    assert "days as spreadsheets count them" in clock.decision
    with pytest.raises(BadTimeError, match="without offset"):
        Clock(DAYS, None, dates=True).seconds(DAYS[0])
