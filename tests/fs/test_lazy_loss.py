"""When lazy is said to lose: by round trips over a long link, never next door, never for a moment's wait."""

from __future__ import annotations

from coldstart_fs.content.lazy_loss import Figures, LazyLoss, Way

FAR = Way(0.050, 25e6, 100_000_000)  # whole in four seconds


def told(
    way: Way, *, misses_a_second: float, waiting: float, seconds: float = 20.0
) -> tuple[float, str] | None:
    """When it is said, and what, for readers who wait for so much of their time."""
    loss = LazyLoss()
    for step in range(1, int(seconds * 4) + 1):
        now = step / 4
        said = loss.saw(Figures(now, waiting * now, int(misses_a_second * now)), way)
        if said is not None:
            return now, said
    return None


def test_who_waits_for_one_round_trip_after_the_other_loses() -> None:
    found = told(FAR, misses_a_second=16, waiting=0.9)
    assert found is not None
    seconds, reason = found
    assert 4.0 <= seconds <= 6.0  # they have waited as long as a whole fetch takes
    assert "50 ms" in reason
    assert "100 MB take 4.0 s at 25 MB/s" in reason


def test_a_large_image_is_worth_longer_patience() -> None:
    assert told(Way(0.050, 25e6, 2_000_000_000), misses_a_second=16, waiting=0.9) is None


def test_next_door_lazy_does_not_lose() -> None:
    assert told(Way(0.001, 125e6, 100_000_000), misses_a_second=800, waiting=0.95) is None


def test_who_has_something_else_to_do_does_not_lose() -> None:
    assert told(FAR, misses_a_second=5, waiting=0.3) is None


def test_where_bytes_take_the_time_more_of_them_do_not_help() -> None:
    assert told(FAR, misses_a_second=4, waiting=0.95) is None


def test_a_few_requests_say_nothing() -> None:
    assert told(Way(0.5, 1e6, 1_000_000), misses_a_second=1, waiting=0.9, seconds=15) is None
