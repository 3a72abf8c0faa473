"""What a larger pool buys: hits by its GPUs, the price of the next hit, and the size that money says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from coldstart_cli.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HOURS_A_YEAR = 8_760


@dataclass(frozen=True)
class Step:
    """A larger pool: `usd_per_avoided_cold_start` is what each further hit costs in idle GPUs."""

    from_gpus: int
    to_gpus: int
    from_hit_rate: float
    to_hit_rate: float
    usd_per_avoided_cold_start: float


@dataclass(frozen=True, eq=False)
class HitCurve:
    """How many of `replicas` scale-ups find their GPUs in pools of `gpus`, which ascend."""

    gpus: NDArray[np.int64]
    hits: NDArray[np.int64]
    replicas: int
    span_hours: float

    def hit_rate(self, gpus: int) -> float:
        """The share of hits in a pool of this size."""
        return self.hits_in(gpus) / self.replicas

    def gpus_for_level(self, level: Fraction) -> int:
        """The smallest pool with at least this share of hits."""
        import numpy as np

        wanted = max(1, math.ceil(level * self.replicas))
        return int(self.gpus[np.searchsorted(self.hits, wanted)])

    def gpus_for_value(self, value_usd: float, idle_usd_per_gpu_hour: float) -> int:
        """The pool in which idle GPUs, and cold starts at `value_usd` each, cost least; of equals the least.

        Where the curve has no dents this is the newsvendor's rule: grow while the next GPU's hits are worth
        more than its idle hours. With dents the rule would stop in front of a burst that is worth its GPUs.
        """
        import numpy as np

        require_money(value_usd, idle_usd_per_gpu_hour)
        starts_per_hour = self.replicas / self.span_hours
        gpus = np.concatenate((np.zeros(1, np.int64), self.gpus))
        missed = 1 - np.concatenate((np.zeros(1), self.hits)) / self.replicas
        cost = idle_usd_per_gpu_hour * gpus + starts_per_hour * value_usd * missed
        return int(gpus[np.argmin(cost)])

    def implied_value_usd(self, gpus: int, idle_usd_per_gpu_hour: float) -> float:
        """The least worth of an avoided cold start at which money chooses a pool no smaller than this."""
        steps = self.steps(idle_usd_per_gpu_hour)
        reached = [step.usd_per_avoided_cold_start for step in steps if step.from_gpus < gpus]
        return max(reached, default=0.0)

    def steps(self, idle_usd_per_gpu_hour: float) -> tuple[Step, ...]:
        """The price of the next hit, from nothing to all, without the sizes that money would never choose."""
        require_money(0.0, idle_usd_per_gpu_hour)
        corners = [(0, 0)]
        for corner in zip(self.gpus.tolist(), self.hits.tolist(), strict=True):
            while len(corners) > 1 and _dented(corners[-2], corners[-1], corner):
                corners.pop()
            corners.append(corner)
        found = []
        for (gpus, hits), (more_gpus, more_hits) in pairwise(corners):
            idle_usd = idle_usd_per_gpu_hour * (more_gpus - gpus) * self.span_hours
            found.append(
                Step(
                    gpus,
                    more_gpus,
                    hits / self.replicas,
                    more_hits / self.replicas,
                    idle_usd / (more_hits - hits),
                )
            )
        return tuple(found)

    def hits_in(self, gpus: int) -> int:
        """How many scale-ups find their GPUs in a pool of this size."""
        import numpy as np

        position = int(np.searchsorted(self.gpus, gpus, side="right"))
        return int(self.hits[position - 1]) if position else 0


def hit_curve(counts: NDArray[np.int64], span_seconds: float) -> HitCurve:
    """The curve of a trace's counts in a lead time; `span_seconds` is how long it took them to come."""
    import numpy as np

    gpus, replicas = np.unique(counts, return_counts=True)
    return HitCurve(gpus, np.cumsum(replicas), len(counts), span_seconds / 3600)


def joint_hit_rate(pools: Iterable[tuple[HitCurve, int]]) -> float:
    """The share of all scale-ups that hit, over pools of these sizes."""
    counted = [(curve.hits_in(gpus), curve.replicas) for curve, gpus in pools]
    return sum(hits for hits, _ in counted) / sum(replicas for _, replicas in counted)


def milestones(curve: HitCurve, idle_usd_per_gpu_hour: float) -> tuple[Step, ...]:
    """The curve for people: from one usual service level to the next."""
    require_money(0.0, idle_usd_per_gpu_hour)
    found: list[Step] = []
    gpus = hits = 0
    for level in ("0.5", "0.8", "0.9", "0.95", "0.98", "0.99", "0.995", "0.999", "1"):
        more = curve.gpus_for_level(Fraction(level))
        more_hits = round(curve.hit_rate(more) * curve.replicas)
        if more_hits <= hits:
            continue
        price = idle_usd_per_gpu_hour * (more - gpus) * curve.span_hours / (more_hits - hits)
        found.append(Step(gpus, more, hits / curve.replicas, more_hits / curve.replicas, price))
        gpus, hits = more, more_hits
    return tuple(found)


def require_money(value_usd: float, idle_usd_per_gpu_hour: float) -> None:
    """Refuse amounts that are negative, missing or not finite; idle GPUs are never free."""
    if not (math.isfinite(value_usd) and value_usd >= 0):
        raise UsageError(f"the worth of an avoided cold start must be a number of dollars: {value_usd}")
    if not (math.isfinite(idle_usd_per_gpu_hour) and idle_usd_per_gpu_hour > 0):
        raise UsageError(f"the price of an idle GPU-hour must be above 0: {idle_usd_per_gpu_hour}")


def _dented(before: tuple[int, int], middle: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether the middle one lies on or below the line from before to after; exact."""
    return (middle[1] - before[1]) * (after[0] - before[0]) <= (after[1] - before[1]) * (
        middle[0] - before[0]
    )
