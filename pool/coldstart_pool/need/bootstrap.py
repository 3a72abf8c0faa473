"""How sure a need or a hit rate is: whole days (hours, of a short trace) are redrawn, bursts and all."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from coldstart_pool.need.trace import NANOSECONDS, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DRAWS = 500
_FEWEST_BLOCKS = 5
_BLOCK_SECONDS = (86_400, 3_600)
_SEED = 20_240_229  # any fixed number: the same trace must give the same plan


def block_seconds(trace: Trace, lead_time_seconds: Fraction) -> int | None:
    """Days, or hours where there are fewer than five days; None when even those are too few or too short."""
    for seconds in _BLOCK_SECONDS:
        if seconds >= lead_time_seconds and trace.span_seconds >= _FEWEST_BLOCKS * seconds:
            return seconds
    return None


def interval(
    trace: Trace, counts: NDArray[np.int64], level: Fraction, lead_time_seconds: Fraction
) -> tuple[int, int] | None:
    """The 2.5 % and 97.5 % points of the quantile of `counts`, one for each scale-up of the trace."""
    import numpy as np

    blocks = _blocks(trace, lead_time_seconds)
    if blocks is None:
        return None
    values, position = np.unique(counts, return_inverse=True)
    table = np.zeros((int(blocks.max()) + 1, len(values)))
    np.add.at(table, (blocks, position), 1)
    cumulative = np.cumsum(_draws(len(table)) @ table, axis=1)
    reached = cumulative >= np.ceil(float(level) * cumulative[:, -1:] - 1e-9)
    found = values[np.argmax(reached, axis=1)]
    low, high = np.quantile(found, [0.025, 0.975], method="inverted_cdf")
    return int(low), int(high)


def share_interval(
    trace: Trace, hits: NDArray[np.bool_], lead_time_seconds: Fraction
) -> tuple[float, float] | None:
    """The 2.5 % and 97.5 % points of the share of hits, one value for each scale-up of the trace."""
    import numpy as np

    blocks = _blocks(trace, lead_time_seconds)
    if blocks is None:
        return None
    count = int(blocks.max()) + 1
    arrivals = np.bincount(blocks, minlength=count)
    served = np.bincount(blocks, weights=hits.astype(np.float64), minlength=count)
    draws = _draws(count)
    total = draws @ arrivals
    shares = (draws @ served)[total > 0] / total[total > 0]
    low, high = np.quantile(shares, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def _blocks(trace: Trace, lead_time_seconds: Fraction) -> NDArray[np.int64] | None:
    """The number of the block of each scale-up."""
    seconds = block_seconds(trace, lead_time_seconds)
    if seconds is None:
        return None
    times = trace.times_ns[trace.starts]
    blocks: NDArray[np.int64] = (times - trace.first_ns) // (seconds * NANOSECONDS)
    return blocks


@cache
def _draws(blocks: int) -> NDArray[np.float64]:
    """How often each block is taken in each redrawn trace."""
    import numpy as np

    source = np.random.default_rng(_SEED)
    return source.multinomial(blocks, np.full(blocks, 1 / blocks), size=_DRAWS).astype(np.float64)
