"""Whether more GPUs help: a batching, a model or a capacity problem, or none; with the evidence.

More replicas shorten the wait in the queue and nothing else. So the order of the questions: is anything
answered; are answers late at all; is the computing alone already later than wanted (no number of replicas
changes that); do requests wait beside idle replicas, or beside half-empty batches (the same GPUs could do
more); only then are there too few replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coldstart_cli.errors import DataError
from coldstart_pool.advise.window import EngineLoad, Observed

# a queue that grows by this share of what arrives never ends
_GROWING_SHARE = 0.05
_ROOM_IN_KV_CACHE = 0.9
_FULL_KV_CACHE = 0.95
# of the wanted time to the first result: a shorter wait is not what makes it late
_SHORT_WAIT = 0.1


class Cause(StrEnum):
    """What stands between the traffic and the wanted latency."""

    NONE = "none"
    STALLED = "stalled"
    BATCHING = "batching"
    MODEL = "model"
    ROUTING = "routing"
    CAPACITY = "capacity"


@dataclass(frozen=True)
class Wanted:
    """`first_result_seconds` for 95 of 100 requests; batches count as full from `full_batch` requests on.

    `peak_utilisation` is the share of a replica's throughput that a plan may use.
    """

    first_result_seconds: float = 2.0
    full_batch: int = 8
    peak_utilisation: float = 0.8


@dataclass(frozen=True)
class Advice:
    """The cause, why, what to do; `needed_replicas` is None where their number is not the question."""

    cause: Cause
    evidence: tuple[str, ...]
    remedies: tuple[str, ...]
    replicas: int
    needed_replicas: int | None


@dataclass(frozen=True)
class _Fleet:
    """All replicas as one: sums of rates and queues, means over requests.

    Engines that share an address are replicas of their own, each with its queue and its batches.
    """

    loads: tuple[EngineLoad, ...]
    addresses: int
    seconds: float
    running: float  # in each replica that has a queue, or in each where none has
    waiting: float  # in all
    rise_per_second: float
    finished: float | None
    arrivals: float | None
    tokens: float | None
    queue: float | None
    queue_p95: float | None
    computing: float | None
    first_result: float | None
    first_result_p95: float | None
    first_result_p95_beyond: float | None
    kv_cache: float | None
    preemptions: float
    busy: float | None

    @property
    def replicas(self) -> int:
        return len(self.loads)

    @property
    def growing(self) -> bool:
        """Whether the queue would grow for ever."""
        if self.waiting <= self.replicas:
            return False
        if self.arrivals is not None:
            return self.rise_per_second > _GROWING_SHARE * self.arrivals
        # without requests per second: it grew by more than all batches hold
        return self.rise_per_second * self.seconds > max(1.0, self.running) * self.replicas

    @property
    def stalled(self) -> bool:
        """Whether requests wait and nothing whatever comes out."""
        return self.waiting >= 1 and not (self.finished or self.tokens or self.first_result is not None)

    def named(self, number: int) -> str:
        noun = "replica" if self.addresses == self.replicas else "engine"
        return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def diagnose(observed: Sequence[Observed], wanted: Wanted) -> Advice:
    """One advice for the replicas of one model; several models are refused."""
    _refuse_several_models(observed)
    fleet = _fleet(observed)
    evidence = [_load(fleet)]
    if fleet.stalled:
        return _stalled(fleet, evidence)
    late = _late(fleet, wanted, evidence)
    if fleet.growing:
        evidence.append(f"the queue grows by {fleet.rise_per_second:.2f} requests/s")
    if not late and not fleet.growing:
        return _enough(fleet, wanted, evidence)
    if (advice := _model(fleet, wanted, evidence)) is not None:
        return advice
    if (advice := _routing(fleet, evidence)) is not None:
        return advice
    if (advice := _batching(fleet, wanted, evidence)) is not None:
        return advice
    return _capacity(fleet, wanted, evidence)


def _refuse_several_models(observed: Sequence[Observed]) -> None:
    first: dict[str, str] = {}
    for item in observed:
        if item.model is not None:
            first.setdefault(item.model, item.source)
    if len(first) > 1:
        shown = ", ".join(f"{model} ({source})" for model, source in sorted(first.items()))
        raise DataError(
            f"replicas of {len(first)} models cannot be added up: {shown}",
            hint="name the replicas of one model at a time",
        )


def _fleet(observed: Sequence[Observed]) -> _Fleet:
    def mean(value: Callable[[Observed], float | None]) -> float | None:
        known = [(found, item.weight) for item in observed if (found := value(item)) is not None]
        weight = sum(rate for _, rate in known)
        return sum(found * rate for found, rate in known) / weight if weight > 0 else None

    def peak(value: Callable[[Observed], float | None]) -> float | None:
        return max((found for item in observed if (found := value(item)) is not None), default=None)

    def total(value: Callable[[Observed], float | None]) -> float | None:
        known = [value(item) for item in observed]
        return None if None in known else sum(found for found in known if found is not None)

    loads = tuple(load for item in observed for load in item.loads)
    queued = [load for load in loads if load.waiting >= 1] or loads
    busy = [item.busy_share for item in observed if item.busy_share is not None]
    queue = mean(lambda item: item.queue_seconds)
    first = mean(lambda item: item.first_token_seconds)
    computing = mean(lambda item: item.computing_seconds)
    if first is not None and queue is not None:
        computing = max(0.0, first - queue)
    return _Fleet(
        loads=loads,
        addresses=len(observed),
        seconds=sum(item.seconds for item in observed) / len(observed),
        running=sum(load.running for load in queued) / len(queued),
        waiting=sum(item.waiting for item in observed),
        rise_per_second=sum(item.waiting_rise / item.seconds for item in observed),
        finished=total(lambda item: item.finished_per_second),
        arrivals=total(lambda item: item.arrivals_per_second),
        tokens=total(lambda item: item.tokens_per_second),
        queue=queue,
        queue_p95=peak(lambda item: item.queue_p95_seconds),
        computing=computing,
        first_result=first,
        first_result_p95=peak(lambda item: item.first_token_p95_seconds),
        first_result_p95_beyond=peak(lambda item: item.first_token_p95_beyond_seconds),
        kv_cache=peak(lambda item: item.kv_cache_share),
        preemptions=sum(item.preemptions_per_second or 0.0 for item in observed),
        busy=sum(busy) / len(busy) if busy else None,
    )


def _load(fleet: _Fleet) -> str:
    at = "" if fleet.addresses == fleet.replicas else f" at {fleet.addresses} addresses"
    if fleet.arrivals is None or fleet.finished is None:
        traffic = f"{fleet.tokens or 0.0:.2f} tokens/s are made"
    else:
        traffic = f"{fleet.arrivals:.2f} requests/s arrive, {fleet.finished:.2f} are answered"
    return (
        f"over {fleet.seconds:.0f} s, {traffic} by {fleet.named(fleet.replicas)}{at}; "
        f"{fleet.waiting:.1f} wait, {fleet.running:.1f} run in each"
    )


def _stalled(fleet: _Fleet, evidence: list[str]) -> Advice:
    evidence.append(f"nothing was answered in {fleet.seconds:.0f} s, while {fleet.waiting:.1f} requests wait")
    remedies = (
        "look again with a `--window` longer than a request takes; "
        "if nothing comes then either, the engine hangs: see its log",
    )
    return Advice(Cause.STALLED, tuple(evidence), remedies, fleet.replicas, None)


def _late(fleet: _Fleet, wanted: Wanted, evidence: list[str]) -> bool:
    limit = wanted.first_result_seconds
    first, p95, beyond = fleet.first_result, fleet.first_result_p95, fleet.first_result_p95_beyond
    if first is None and p95 is None and beyond is None:
        if fleet.queue is not None:
            evidence.append(
                "the metrics give no time to the first result: "
                f"the wait before it is {fleet.queue:.2f} s; wanted {limit:g} s"
            )
            return fleet.queue > limit
        evidence.append("the metrics give no latency: only the queue says whether answers are late")
        return fleet.waiting > fleet.replicas * max(1.0, fleet.running)
    shown = [f"mean {first:.2f} s"] if first is not None else []
    if p95 is not None:
        shown.append(f"95 % within {p95:.2f} s")
    if beyond is not None:
        tells = "" if beyond >= limit else ", which does not tell"
        shown.append(f"95 % beyond the last bucket, {beyond:g} s{tells}")
    if p95 is None and beyond is None:
        shown.append("the 95th percentile is not known")
    evidence.append(f"first result: {', '.join(shown)}; wanted {limit:g} s")
    return (first or 0.0) > limit or (p95 or 0.0) > limit or (beyond is not None and beyond >= limit)


def _enough(fleet: _Fleet, wanted: Wanted, evidence: list[str]) -> Advice:
    needed = None
    if fleet.busy is not None:
        needed = max(1, math.ceil(fleet.replicas * fleet.busy / wanted.peak_utilisation - 1e-9))
        evidence.append(f"replicas are busy {fleet.busy:.0%} of the time")
    remedies = []
    if needed is not None and needed < fleet.replicas:
        remedies.append(f"{fleet.named(needed)} would do at {wanted.peak_utilisation:.0%} utilisation")
    return Advice(Cause.NONE, tuple(evidence), tuple(remedies), fleet.replicas, needed)


def _model(fleet: _Fleet, wanted: Wanted, evidence: list[str]) -> Advice | None:
    limit = wanted.first_result_seconds
    remedies: list[str]
    if fleet.computing is not None and fleet.computing > limit:
        evidence.append(
            f"computing alone takes {fleet.computing:.2f} s to the first result, without any wait: "
            "no number of replicas brings that below what is wanted"
        )
        remedies = ["a smaller or quantised model, a faster GPU, or the model split over several"]
        if fleet.running >= 2:
            remedies.append(f"a lower batch limit, if batches of {fleet.running:.0f} are what makes it slow")
    elif (
        (fleet.kv_cache or 0.0) >= _FULL_KV_CACHE
        and fleet.preemptions > 0
        and fleet.running < wanted.full_batch
    ):
        evidence.append(
            f"the KV cache is {fleet.kv_cache:.0%} full with {fleet.running:.1f} requests, "
            f"and {fleet.preemptions:.2f} requests/s are thrown out of it: "
            "the model leaves it too little memory"
        )
        remedies = ["a smaller or quantised model or KV cache, a shorter context, or a GPU with more memory"]
    elif (wait := _short_wait(fleet, limit)) is not None:
        evidence.append(
            f"hardly anybody waits ({wait}): the late ones are late by computing, "
            "and replicas would shorten nothing but the wait"
        )
        remedies = [
            "look at long prompts and at the batch limit (vLLM: --max-num-batched-tokens, "
            "SGLang: --chunked-prefill-size), or take a smaller model or a faster GPU"
        ]
    else:
        return None
    return Advice(Cause.MODEL, tuple(evidence), tuple(remedies), fleet.replicas, None)


def _short_wait(fleet: _Fleet, limit: float) -> str | None:
    """How short the wait in the queue is; None where it may be what makes answers late."""
    if fleet.growing or fleet.waiting >= fleet.replicas:
        return None
    if fleet.queue_p95 is not None:
        return f"95 % for at most {fleet.queue_p95:.2f} s" if fleet.queue_p95 < _SHORT_WAIT * limit else None
    wait = fleet.queue
    if wait is None and fleet.arrivals:
        wait = fleet.waiting / fleet.arrivals  # Little's law
    return f"{wait:.2f} s in the mean" if wait is not None and wait < _SHORT_WAIT * limit else None


def _routing(fleet: _Fleet, evidence: list[str]) -> Advice | None:
    idle = [load.name for load in fleet.loads if load.waiting < 1 and load.running < 1]
    if not idle or fleet.waiting < 1:
        return None
    evidence.append(
        f"{fleet.waiting:.1f} requests wait elsewhere while hardly anything runs at {', '.join(idle)}"
    )
    remedies = ("let the router send requests where the fewest run",)
    return Advice(Cause.ROUTING, tuple(evidence), remedies, fleet.replicas, None)


def _batching(fleet: _Fleet, wanted: Wanted, evidence: list[str]) -> Advice | None:
    waiting = fleet.waiting / fleet.replicas
    has_room = fleet.kv_cache is None or fleet.kv_cache < _ROOM_IN_KV_CACHE
    if not has_room or fleet.running > wanted.full_batch / 2 or waiting < max(1.0, fleet.running):
        return None
    memory = "" if fleet.kv_cache is None else f", and the KV cache is only {fleet.kv_cache:.0%} full"
    evidence.append(
        f"{waiting:.1f} requests wait at each replica while its batches hold {fleet.running:.1f}{memory}"
    )
    remedies = (
        "raise the batch limit (vLLM: --max-num-seqs, SGLang: --max-running-requests), "
        "or let the server wait some milliseconds for a batch",
        "look again afterwards: only then is the number of replicas the question",
    )
    return Advice(Cause.BATCHING, tuple(evidence), remedies, fleet.replicas, None)


def _capacity(fleet: _Fleet, wanted: Wanted, evidence: list[str]) -> Advice:
    if fleet.computing is not None and fleet.queue is not None:
        evidence.append(
            f"computing takes {fleet.computing:.2f} s, the wait before it {fleet.queue:.2f} s: "
            "batches are full, and replicas would shorten the wait"
        )
    needed = None
    if fleet.finished and fleet.arrivals is not None:
        work = fleet.replicas * fleet.arrivals / fleet.finished
        needed = max(fleet.replicas + 1, math.ceil(work / wanted.peak_utilisation - 1e-9))
        remedies = [f"{fleet.named(needed)} at {wanted.peak_utilisation:.0%} utilisation"]
    elif fleet.finished is None and not fleet.growing:
        # what arrives is what is made
        needed = max(fleet.replicas + 1, math.ceil(fleet.replicas / wanted.peak_utilisation - 1e-9))
        remedies = [f"{fleet.named(needed)} at {wanted.peak_utilisation:.0%} utilisation"]
    else:
        why = "without requests per second" if fleet.finished is None else "while none was finished"
        remedies = [f"more than {fleet.named(fleet.replicas)}; how many cannot be told {why}"]
    return Advice(Cause.CAPACITY, tuple(evidence), tuple(remedies), fleet.replicas, needed)
