"""What a replica did between two looks at its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.advise.scrape import Histogram, Scrape

_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True)
class EngineLoad:
    """Requests in one engine, as means over the window."""

    name: str
    running: float
    waiting: float


@dataclass(frozen=True)
class Quantile:
    """A quantile, or that it lies beyond the last bound that is known."""

    seconds: float
    beyond: bool = False


@dataclass(frozen=True)
class Observed:
    """One replica over a window. None: its metrics do not say.

    Rates are per second; `running` and `waiting` are means over the window; `queue_seconds`,
    `computing_seconds` (to the first result, without the wait), `first_token_seconds` are means over the
    requests that finished in it.
    The 95th percentile is `first_token_p95_seconds`, or somewhere beyond `first_token_p95_beyond_seconds`,
    the bound of the last bucket. `engines` are those that share the replica's queue gauges out.
    """

    source: str
    seconds: float
    running: float
    waiting: float
    waiting_rise: float
    finished_per_second: float | None
    tokens_per_second: float | None = None
    queue_seconds: float | None = None
    queue_p95_seconds: float | None = None
    computing_seconds: float | None = None
    latency_seconds: float | None = None
    first_token_seconds: float | None = None
    first_token_p95_seconds: float | None = None
    first_token_p95_beyond_seconds: float | None = None
    kv_cache_share: float | None = None
    preemptions_per_second: float | None = None
    busy_share: float | None = None
    model: str | None = None
    engines: tuple[EngineLoad, ...] = ()

    @property
    def arrivals_per_second(self) -> float | None:
        """What came: what was answered, and what the queue grew by."""
        if self.finished_per_second is None:
            return None
        return max(0.0, self.finished_per_second + self.waiting_rise / self.seconds)

    @property
    def weight(self) -> float:
        """What its means weigh beside those of other replicas: what it did."""
        return self.tokens_per_second or 0.0 if self.finished_per_second is None else self.finished_per_second

    @property
    def loads(self) -> tuple[EngineLoad, ...]:
        """Its engines; the replica itself where it is one."""
        return self.engines or (EngineLoad(self.source, self.running, self.waiting),)


def between(scrapes: Sequence[Scrape], *, seconds: float | None = None) -> Observed:
    """The window from the first scrape of one replica to the last; `seconds` overrules their times."""
    first, last = scrapes[0], scrapes[-1]
    length = _length(first, last, seconds)
    if first.model and last.model and first.model != last.model:
        raise DataError(f"the two looks show different models: {last.source}: {first.model}, {last.model}")
    for name, value in first.counters.items():
        if last.counters.get(name, 0.0) < value:
            raise _restarted(last, name)
    deltas = {name: _delta(first, last, name) for name in last.histograms}
    finished = _rate(first, last, "finished", length)
    if finished is None:
        known = deltas.get("latency") or deltas.get("first_token")
        if known is None:
            raise DataError(f"metrics do not say how many requests were finished: {last.source}")
        finished = known.count / length
    latency, queue = _mean(deltas.get("latency")), _mean(deltas.get("queue"))
    first_token, p95 = _mean(deltas.get("first_token")), quantile(deltas.get("first_token"), 0.95)
    prefill = _mean(deltas.get("prefill"))
    if first_token is None and queue is not None and prefill is not None:
        first_token = queue + prefill
    if first_token is None and last.answers_whole:
        first_token = latency
    # what else computes for a request comes after its first token, where tokens are streamed
    computing = _mean(deltas.get("inference")) if last.answers_whole else None
    if first_token is not None and queue is not None:
        computing = max(0.0, first_token - queue)
    queue_p95 = quantile(deltas.get("queue"), 0.95)
    return Observed(
        source=last.source,
        seconds=length,
        # Little's law over the window says more than gauges of two moments
        running=_known(
            last, "running", _little(deltas.get("inference"), length), _average(scrapes, "running")
        ),
        waiting=_known(last, "waiting", _average(scrapes, "waiting"), _little(deltas.get("queue"), length)),
        waiting_rise=last.gauges.get("waiting", 0.0) - first.gauges.get("waiting", 0.0),
        finished_per_second=finished,
        tokens_per_second=_rate(first, last, "tokens", length) or _average(scrapes, "tokens_per_second"),
        queue_seconds=queue,
        queue_p95_seconds=None if queue_p95 is None else queue_p95.seconds,
        computing_seconds=computing,
        latency_seconds=latency,
        first_token_seconds=first_token,
        first_token_p95_seconds=None if p95 is None or p95.beyond else p95.seconds,
        first_token_p95_beyond_seconds=p95.seconds if p95 is not None and p95.beyond else None,
        kv_cache_share=_peak(scrapes, "kv_cache_share"),
        preemptions_per_second=_rate(first, last, "preemptions", length),
        busy_share=_average(scrapes, "busy_share"),
        model=last.model,
        engines=_engines(scrapes),
    )


def quantile(histogram: Histogram | None, share: float) -> Quantile | None:
    """As Prometheus interpolates it inside its bucket; None without observations or without buckets."""
    if histogram is None or histogram.count <= 0:
        return None
    rank = share * histogram.count
    lower = below = 0.0
    bounds = sorted(bound for bound in histogram.buckets if math.isfinite(bound))
    for bound in bounds:
        count = histogram.buckets[bound]
        if count >= rank:
            part = (rank - below) / (count - below) if count > below else 1.0
            return Quantile(lower + (bound - lower) * part)
        lower, below = bound, count
    return Quantile(lower, beyond=True) if bounds else None


def _length(first: Scrape, last: Scrape, seconds: float | None) -> float:
    length = last.time - first.time if seconds is None else seconds
    # files that were copied have the times of the copy; counters over such an instant make any rate
    if not length >= _SHORTEST_SECONDS:
        raise UsageError(
            f"no time passes between the two looks at: {last.source}",
            hint="pass `--window SECONDS`, the time between them",
        )
    return length


def _known(last: Scrape, name: str, *values: float | None) -> float:
    """The first that is known: a metric that is not there is not a queue of 0."""
    for value in values:
        if value is not None:
            return value
    # of an engine that only counts what it has finished, and has finished nothing, nothing is known to run
    if name == "running" and "inference" in last.histograms:
        return 0.0
    raise DataError(
        f"metrics do not say how many requests are {name}: {last.source}",
        hint="a rule that drops metrics must leave the engine's queue and batch",
    )


def _engines(scrapes: Sequence[Scrape]) -> tuple[EngineLoad, ...]:
    """Means of each engine where there are several; one that was not always there counts from where it is."""
    names = dict.fromkeys(name for scrape in scrapes for name in scrape.engines)
    if len(names) < 2:
        return ()
    loads = []
    for name in names:
        seen = [scrape.engines[name] for scrape in scrapes if name in scrape.engines]
        running, waiting = (sum(one.get(key, 0.0) for one in seen) for key in ("running", "waiting"))
        loads.append(EngineLoad(f"{scrapes[-1].source} {name}", running / len(seen), waiting / len(seen)))
    return tuple(loads)


def _restarted(last: Scrape, name: str) -> DataError:
    return DataError(
        f"counter went back, the server was started anew in between: {last.source}: {name}",
        hint="look twice within one life of the server",
    )


def _delta(first: Scrape, last: Scrape, name: str) -> Histogram:
    new, old = last.histograms[name], first.histograms.get(name, Histogram())
    if new.count < old.count:
        raise _restarted(last, name)
    buckets = {bound: count - old.buckets.get(bound, 0.0) for bound, count in new.buckets.items()}
    return Histogram(new.count - old.count, new.sum_seconds - old.sum_seconds, buckets)


def _rate(first: Scrape, last: Scrape, name: str, seconds: float) -> float | None:
    if name not in last.counters:
        return None
    return (last.counters[name] - first.counters.get(name, 0.0)) / seconds


def _mean(histogram: Histogram | None) -> float | None:
    return None if histogram is None or histogram.count <= 0 else histogram.sum_seconds / histogram.count


def _little(histogram: Histogram | None, seconds: float) -> float | None:
    return None if histogram is None or histogram.count <= 0 else histogram.sum_seconds / seconds


def _values(scrapes: Sequence[Scrape], name: str) -> list[float]:
    gauges: list[Mapping[str, float]] = [scrape.gauges for scrape in scrapes]
    return [found[name] for found in gauges if name in found]


def _average(scrapes: Sequence[Scrape], name: str) -> float | None:
    values = _values(scrapes, name)
    return sum(values) / len(values) if values else None


def _peak(scrapes: Sequence[Scrape], name: str) -> float | None:
    return max(_values(scrapes, name), default=None)
