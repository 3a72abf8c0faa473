"""When fetching on demand loses to fetching everything: a rule over figures, without input or output."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

LEAST_MISSES = 20
LEAST_WAITED_SECONDS = 0.5
# of the time that a whole fetch takes: who has waited that long has lost to it, and may lose as much again
WAITED_OF_WHOLE = 1.0
# of the last seconds: who has something else to do does not lose by waiting now and then
WAITING_SHARE = 0.5
RECENT_SECONDS = 2.0
# next door a whole fetch never wins: readers get what they ask for as fast as a prefetch would
FAR_SECONDS = 0.01
# of the waiting: where bytes are what takes the time, more of them help nobody
ROUND_TRIPS_SHARE = 0.5


@dataclass(frozen=True)
class Figures:
    """As counted at one moment since the start: how long readers have waited, and for how many requests."""

    at_seconds: float
    waited_seconds: float
    misses: int


@dataclass(frozen=True)
class Way:
    """What the link is like, and what is not on this host yet."""

    round_trip_seconds: float
    bytes_per_second: float
    missing_bytes: int

    @property
    def whole_seconds(self) -> float:
        """What fetching everything takes."""
        return self.round_trip_seconds + self.missing_bytes / self.bytes_per_second


class LazyLoss:
    """Looks at the figures from time to time."""

    def __init__(self) -> None:
        self._seen: deque[Figures] = deque()

    def saw(self, now: Figures, way: Way) -> str | None:
        """Why everything should be fetched, in figures; None while lazy does well, or it cannot be told."""
        while len(self._seen) > 1 and self._seen[1].at_seconds <= now.at_seconds - RECENT_SECONDS:
            self._seen.popleft()
        self._seen.append(now)
        first = self._seen[0]
        seconds = now.at_seconds - first.at_seconds
        waited = now.waited_seconds - first.waited_seconds
        misses = now.misses - first.misses
        whole = way.whole_seconds
        if (
            way.round_trip_seconds < FAR_SECONDS
            or seconds < RECENT_SECONDS / 2
            or now.misses < LEAST_MISSES
            or now.waited_seconds < max(LEAST_WAITED_SECONDS, WAITED_OF_WHOLE * whole)
            or waited < WAITING_SHARE * seconds
            or misses * way.round_trip_seconds < ROUND_TRIPS_SHARE * waited
        ):
            return None
        return (
            f"reads waited {waited:.1f} of the last {seconds:.1f} s, {now.waited_seconds:.1f} s in all for "
            f"{now.misses} requests of {way.round_trip_seconds * 1000:.0f} ms; "
            f"the missing {way.missing_bytes / 1e6:.0f} MB take {whole:.1f} s at "
            f"{way.bytes_per_second / 1e6:.0f} MB/s"
        )
