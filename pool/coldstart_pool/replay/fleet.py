"""What a replay runs on: machines that are kept ready, who may use them, and how the market behaves."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from coldstart_cli.errors import UsageError
from coldstart_pool.need.trace import NANOSECONDS

# more failures than these leave nothing to replay: machines would hardly ever come
_MOST_FAILURES = 0.95


@dataclass(frozen=True)
class Shelf:
    """Machines of one offer, `hosts` of which are kept idle; a price of None is not known."""

    name: str
    gpus_per_host: int
    hosts: int
    usd_per_host_hour: float | None
    spot_place: str = ""
    """Where spot machines stand, which are taken back together; empty for those that stay."""


@dataclass(frozen=True)
class Fleet:
    """Shelves, and for each class of the trace, by number, those that it may use, preferred ones first."""

    shelves: tuple[Shelf, ...]
    allowed: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Market:
    """How machines come and go. Times are seconds; shares are of attempts; every draw comes from the seed."""

    lead_time_seconds: float
    lead_time_spread: float = 0.0
    """Standard deviation of the lead time over its mean; 0 is a constant."""
    launch_failure_share: float = 0.0
    """Attempts that give no machine; known, and tried again, after their lead time; not paid."""
    health_reject_share: float = 0.0
    """Machines that came, were paid for and failed the health check; tried again."""
    preemptions_per_hour: float = 0.0
    """How often a place takes all its spot machines back."""
    keep_seconds: float = 1200.0
    """Machines above the plan are released after they were spare for this long."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no market has, by the name of the option."""
        _require("--lead-time", self.lead_time_seconds, 1e-3, 1e8)
        _require("--lead-time-spread", self.lead_time_spread, 0, 10)
        _require("--launch-failures", self.launch_failure_share, 0, _MOST_FAILURES)
        _require("--health-rejects", self.health_reject_share, 0, _MOST_FAILURES)
        _require("--preemptions-per-hour", self.preemptions_per_hour, 0, 60)
        _require("--keep", self.keep_seconds, 0, 1e8)


class Draws:
    """The market's luck, from its seed: the same calls give the same answers."""

    def __init__(self, market: Market) -> None:
        self._source = random.Random(market.seed)  # noqa: S311 - a simulation, no secret
        self._market = market
        self._constant_ns = math.ceil(market.lead_time_seconds * NANOSECONDS)
        variance = math.log1p(market.lead_time_spread**2)
        self._mu = math.log(market.lead_time_seconds) - variance / 2
        self._sigma = math.sqrt(variance)

    def lead_time_ns(self) -> int:
        if not self._sigma:
            return self._constant_ns
        return max(1, round(self._source.lognormvariate(self._mu, self._sigma) * NANOSECONDS))

    def launch_fails(self) -> bool:
        share = self._market.launch_failure_share
        return bool(share) and self._source.random() < share

    def health_rejects(self) -> bool:
        share = self._market.health_reject_share
        return bool(share) and self._source.random() < share

    def until_preemption_ns(self) -> int:
        """How long until a place takes its spot machines back; asked only where that happens at all."""
        rate = self._market.preemptions_per_hour
        return max(1, round(self._source.expovariate(rate) * 3600 * NANOSECONDS))


def _require(option: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise UsageError(f"{option} must be at least {least:g} and at most {most:g}: {value}")
