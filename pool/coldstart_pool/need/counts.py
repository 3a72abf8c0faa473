"""How many GPUs were taken within a lead time, as the arriving scale-up sees it; exact, without simulation.

In a pool of S whose every take is refilled after a lead time L, an arriving replica finds its GPUs exactly
when the GPUs taken in (t - L, t], its own included, are at most S. So the need is a quantile of that count
over the *arrivals*: a gauge over time would let the quiet hours vote on the bursts.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from coldstart_pool.need.trace import NANOSECONDS, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def counts_in_lead_time(trace: Trace, lead_seconds: Fraction, *, returns: bool = False) -> NDArray[np.int64]:
    """For each scale-up the GPUs taken in the lead time before it, its own included.

    With `returns`, GPUs of stopped replicas come back: the most that takes exceed returns by, over every
    part of the lead time that ends with this arrival. That is the safe side for a pool that releases only
    what it holds above S.
    """
    import numpy as np

    lead_ns = nanoseconds(lead_seconds)
    if not returns or not trace.has_stops:
        trace = trace.rows(trace.starts)
        total = np.cumsum(trace.gpus)
        before = np.concatenate((np.zeros(1, np.int64), total))
        return total - before[_first_inside(trace, lead_ns)]
    level = np.concatenate(
        (np.zeros(1, np.int64), np.cumsum(np.where(trace.starts, trace.gpus, -trace.gpus)))
    )
    number = np.arange(len(trace.times_ns))
    # the level just before each row that may begin the part: rows `first` to the arrival's own
    lowest = _lowest(level, _first_inside(trace, lead_ns), number + 1)
    found: NDArray[np.int64] = (level[1:] - lowest)[trace.starts]
    return found


def quantile(counts: NDArray[np.int64], level: Fraction) -> int:
    """The smallest count that at least a share `level` of all does not exceed; 0 of none."""
    import numpy as np

    if not len(counts) or not level:
        return 0
    position = math.ceil(level * len(counts)) - 1
    return int(np.partition(counts, position)[position])


def peak_busy_gpus(trace: Trace) -> int | None:
    """The most GPUs in use at once, of replicas from before the trace too; None when nothing stops in it."""
    import numpy as np

    if not trace.has_stops:
        return None
    sizes = [entry.gpus_per_replica for entry in trace.classes]
    before = sum(
        sizes[owner // len(trace.applications)] * replicas
        for owner, replicas in trace.running_at_start.items()
    )
    level = np.cumsum(np.where(trace.starts, trace.gpus, -trace.gpus))
    return before + int(level.max(initial=0))


def nanoseconds(seconds: Fraction) -> int:
    return math.ceil(seconds * NANOSECONDS)


def _first_inside(trace: Trace, lead_ns: int) -> NDArray[np.int64]:
    """For each row the first one inside (t - lead, t]."""
    import numpy as np

    return np.searchsorted(trace.times_ns, trace.times_ns - lead_ns, side="right").astype(np.int64)


def _lowest(values: NDArray[np.int64], first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The minimum of values[first:end] for many ranges at once: two overlapping blocks of 2^n cover each."""
    import numpy as np

    found = np.empty(len(first), np.int64)
    block = np.frexp((end - first).astype(np.float64))[1] - 1
    minima = values
    for power in range(int(block.max(initial=0)) + 1):
        asked = block == power
        found[asked] = np.minimum(minima[first[asked]], minima[end[asked] - 2**power])
        if len(minima) > 2**power:
            minima = np.minimum(minima[: -(2**power)], minima[2**power :])
    return found
