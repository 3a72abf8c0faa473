"""A replay over time, in intervals few enough to draw: the least free GPUs, the most busy ones, misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldstart_pool.need.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_INTERVALS = 480
_NEVER = 1 << 63


@dataclass(frozen=True)
class Timeline:
    """One value for each interval, from `first_ns` on; extremes are kept, however long an interval is."""

    first_ns: int
    interval_ns: int
    least_free_gpus: tuple[int, ...]
    most_busy_gpus: tuple[int, ...] | None
    """None when the trace does not say when replicas stop."""
    scale_ups: tuple[int, ...]
    misses: tuple[int, ...]


class Recorder:
    """Notes extremes while a replay goes on; what it costs does not grow with the intervals."""

    def __init__(self, first_ns: int, end_ns: int) -> None:
        self.first_ns = first_ns
        self.interval_ns = (end_ns - first_ns) // MOST_INTERVALS + 1
        self._ends = first_ns + self.interval_ns
        self._free = self._least = 0
        self._busy = self._most = 0
        self._least_free: list[int] = []
        self._most_busy: list[int] = []

    def changed(self, now: int, free_gpus: int, busy_gpus: int) -> None:
        """So many GPUs more are free, and busy, from now on; negative where it is less."""
        if now >= self._ends:
            self._pass(now)
        self._free += free_gpus
        self._busy += busy_gpus
        if self._free < self._least:  # noqa: PLR1730 - a year has millions of changes
            self._least = self._free
        if self._busy > self._most:  # noqa: PLR1730
            self._most = self._busy

    def start(self) -> None:
        """The fleet stands ready: extremes count from here."""
        self._least, self._most = self._free, self._busy

    def close(self, trace: Trace, hits: NDArray[np.bool_]) -> Timeline:
        """Up to the end of the trace; `hits` are its scale-ups', in their order."""
        import numpy as np

        self._pass(trace.end_ns)
        self._ends = _NEVER  # who still waits at the end of the trace is replayed on, far beyond it
        intervals = (trace.end_ns - self.first_ns) // self.interval_ns + 1
        number_of = (trace.times_ns[trace.starts] - self.first_ns) // self.interval_ns
        return Timeline(
            self.first_ns,
            self.interval_ns,
            (*self._least_free, self._least),
            (*self._most_busy, self._most) if trace.has_stops else None,
            tuple(np.bincount(number_of, minlength=intervals).tolist()),
            tuple(np.bincount(number_of[~hits], minlength=intervals).tolist()),
        )

    def _pass(self, now: int) -> None:
        """End the interval; in those that pass without a change, all stays as it is."""
        while now >= self._ends:
            self._least_free.append(self._least)
            self._most_busy.append(self._most)
            self._least, self._most = self._free, self._busy
            self._ends += self.interval_ns
