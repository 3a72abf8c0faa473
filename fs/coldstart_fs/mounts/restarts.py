"""How soon a server that died is started again, and when that is given up."""

from __future__ import annotations

from collections import deque

# at once, since readers wait; then slower, so that a server that cannot live does not eat a core
_DELAYS_SECONDS = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
# one that served so long died of something else than those before it, as on a host that lacks memory
_HEALTHY_SECONDS = 3.0
# but one that dies of the same request every time must not make its reader wait for ever
_MOST_DEATHS = 40
_LATELY_SECONDS = 600.0


class Restarts:
    """Deaths of one mount's servers. One that lived three seconds makes those before it forgotten.

    It is given up after eight deaths in a row, or forty within ten minutes.
    """

    def __init__(self) -> None:
        self._deaths = 0
        self._lately: deque[float] = deque(maxlen=_MOST_DEATHS - 1)
        self.total = 0

    @property
    def deaths(self) -> int:
        """Deaths in a row."""
        return self._deaths

    @property
    def words(self) -> str:
        """How many deaths it were that ended it."""
        if self._deaths > len(_DELAYS_SECONDS):
            return f"{self._deaths} times in a row"
        return f"{_MOST_DEATHS} times within {_LATELY_SECONDS / 60:g} minutes"

    def delay_seconds(self, lived_seconds: float, *, now_seconds: float) -> float | None:
        """How long to wait after a death; None: it has died too often."""
        if lived_seconds >= _HEALTHY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        before = self._lately
        too_often = len(before) == before.maxlen and now_seconds - before[0] < _LATELY_SECONDS
        self._lately.append(now_seconds)
        if self._deaths > len(_DELAYS_SECONDS) or too_often:
            return None
        self.total += 1
        return _DELAYS_SECONDS[self._deaths - 1]
