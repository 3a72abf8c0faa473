"""Event by event: replicas take and give back GPUs; machines are ordered, come, fail, go."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from coldstart_pool.need.trace import NANOSECONDS, Trace
from coldstart_pool.replay.fleet import Draws, Fleet, Market
from coldstart_pool.replay.opening import pools_of_fleet
from coldstart_pool.replay.stock import Host, Pool, Totals
from coldstart_pool.replay.timeline import Recorder, Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NEVER = -1
"""A wait without end: the replica was stopped before it got GPUs, or no machine is large enough for it."""


@dataclass(frozen=True, eq=False)
class Played:
    """What happened: one wait for each scale-up of the trace, in its order, and what the machines did."""

    waits_ns: NDArray[np.int64]
    restarts: int
    """Replicas that lost their machine to a preemption and asked again."""
    restart_hits: int
    totals: dict[int, Totals]
    """By shelf."""
    below_floor_ns: int
    empty_ns: int
    """Of the pool that had it worst: classes with the same machines share one."""
    peak_busy_share: float | None
    """The most of all idle and busy GPUs that was busy at once; None when the trace has no stops."""
    timeline: Timeline


class _Kind(IntEnum):
    COMES = 0
    RELEASE = 1
    TAKEN_BACK = 2


class _Asking:
    """A replica that waits for GPUs, or holds them."""

    __slots__ = ("asked", "class_number", "host", "number", "owner", "pool", "since", "stopped")

    def __init__(self, number: int, class_number: int, owner: int, asked: int) -> None:
        self.number = number
        """Its place among the scale-ups; -1 for one that asks again."""
        self.class_number = class_number
        self.owner = owner
        self.asked = asked
        self.pool: Pool | None = None
        self.host: Host | None = None
        self.since = 0
        self.stopped = False


def play(trace: Trace, fleet: Fleet, market: Market, *, floor_share: float = 0.1) -> Played:
    """Replay a trace on a fleet that stands ready at its start; the same arguments give the same answer."""
    return _Play(trace, fleet, market, floor_share).run()


class _Play:
    def __init__(self, trace: Trace, fleet: Fleet, market: Market, floor_share: float) -> None:
        self.trace = trace
        self.fleet = fleet
        self.draws = Draws(market)
        self.keep_ns = round(market.keep_seconds * NANOSECONDS)
        self.now = trace.first_ns
        self.gpus = [entry.gpus_per_replica for entry in trace.classes]
        self.pools, self.pools_of = pools_of_fleet(fleet, floor_share, self.now)
        self.pool_of_shelf = {number: pool for pool in self.pools for number in pool.numbers}
        self.queues: list[deque[_Asking]] = [deque() for _ in trace.classes]
        self.queued = [0] * len(trace.classes)
        self.classes_of = {
            pool: [number for number, pools in enumerate(self.pools_of) if pool in pools]
            for pool in self.pools
        }
        self.waits = [NEVER] * trace.scale_ups
        self.running: dict[int, deque[_Asking]] = {}
        self.waiting_of: dict[int, deque[_Asking]] = {}
        self.keeps_count = trace.has_stops
        self.busy = self.standing = 0
        """GPUs of replicas, and of all machines that are there."""
        self.peak_busy_share = 0.0
        self.restarts = self.restart_hits = 0
        self.ahead: list[tuple[int, int, _Kind, object]] = []
        self.sequence = 0
        self.spot_hosts: dict[str, dict[Host, None]] = {}
        self.stopping = False
        self.recorder = Recorder(trace.first_ns, trace.end_ns)
        self._stand_ready(market)
        self.recorder.start()

    # --- the whole ---

    def run(self) -> Played:
        import numpy as np

        trace = self.trace
        scale_up = 0
        rows = zip(
            trace.times_ns.tolist(),
            trace.class_of.tolist(),
            trace.owners.tolist(),
            trace.starts.tolist(),
            strict=True,
        )
        ahead = self.ahead
        for time, class_number, owner, starts in rows:
            while ahead and ahead[0][0] <= time:
                self._next()
            self.now = time
            if starts:
                self._ask(_Asking(scale_up, class_number, owner, time))
                scale_up += 1
            else:
                self._stop(owner)
        while ahead and ahead[0][0] <= trace.end_ns:
            self._next()
        self.now = trace.end_ns
        timeline = self.recorder.close(trace, np.array(self.waits) == 0)
        totals = self._close()
        below, empty = max(p.below_floor for p in self.pools), max(p.empty for p in self.pools)
        self.stopping = True
        while any(self.queued) and ahead:  # whoever still waits gets to the end of its wait
            self._next()
        return Played(
            np.array(self.waits, dtype=np.int64),
            self.restarts,
            self.restart_hits,
            totals,
            below,
            empty,
            self.peak_busy_share if self.keeps_count else None,
            timeline,
        )

    def _stand_ready(self, market: Market) -> None:
        places: dict[str, None] = {}
        for number, shelf in enumerate(self.fleet.shelves):
            for _ in range(shelf.hosts):
                self._arrive(Host(number, shelf.gpus_per_host, self.now))
            if shelf.spot_place:
                places[shelf.spot_place] = None
        if market.preemptions_per_hour:
            for place in places:
                self._later(self.draws.until_preemption_ns(), _Kind.TAKEN_BACK, place)
        for owner, replicas in self.trace.running_at_start.items():
            class_number = owner // len(self.trace.applications)
            for _ in range(replicas):
                self._place_before(_Asking(-1, class_number, owner, self.now))

    def _place_before(self, asking: _Asking) -> None:
        """A replica that ran before the trace began, on a machine that the pool does not count."""
        gpus = self.gpus[asking.class_number]
        for pool in self.pools_of[asking.class_number]:
            for number in pool.numbers:
                if pool.sizes[number] >= gpus:
                    host = Host(number, gpus, self.now)
                    host.free = 0
                    self.standing += gpus
                    self.recorder.changed(self.now, gpus, 0)
                    self._run_on(asking, host)
                    return

    # --- replicas ---

    def _ask(self, asking: _Asking) -> None:
        class_number = asking.class_number
        gpus = self.gpus[class_number]
        for pool in self.pools_of[class_number]:
            host = pool.take(gpus, self.now)
            if host is not None:
                if asking.number >= 0:
                    self.waits[asking.number] = 0
                else:
                    self.restart_hits += 1
                self._run_on(asking, host)
                self._order(pool)
                return
        for pool in self.pools_of[class_number]:
            if pool.largest >= gpus:
                break
        else:
            return  # no machine of the plan is large enough: it waits for ever
        asking.pool = pool
        pool.waiting += gpus
        self.queues[class_number].append(asking)
        self.queued[class_number] += 1
        self.waiting_of.setdefault(asking.owner, deque()).append(asking)
        self._order(pool)
        if pool.smallest < gpus or gpus > 1:
            self._order_large(pool, class_number)

    def _run_on(self, asking: _Asking, host: Host) -> None:
        gpus = self.gpus[asking.class_number]
        self.recorder.changed(self.now, -gpus, gpus)
        if not self.keeps_count:
            return
        asking.host = host
        asking.since = self.now
        self.running.setdefault(asking.owner, deque()).append(asking)
        self.busy += gpus
        self.peak_busy_share = max(self.peak_busy_share, self.busy / self.standing)

    def _stop(self, owner: int) -> None:
        """The oldest replica of this application ends; if none runs, the one that waits longest gives up."""
        running = self.running.get(owner)
        if running:
            asking = running.popleft()
            host = self._leave(asking)
            pool = self.pool_of_shelf[host.shelf]
            pool.give_back(host, self.gpus[asking.class_number], self.now)
            self.recorder.changed(self.now, self.gpus[asking.class_number], 0)
            self._serve(pool)
            return
        waiting = self.waiting_of.get(owner)
        if waiting:
            asking = waiting.popleft()
            asking.stopped = True
            assert asking.pool is not None
            asking.pool.waiting -= self.gpus[asking.class_number]
            self.queued[asking.class_number] -= 1

    def _leave(self, asking: _Asking) -> Host:
        gpus = self.gpus[asking.class_number]
        host = asking.host
        assert host is not None
        self.busy -= gpus
        self.recorder.changed(self.now, 0, -gpus)
        self.pool_of_shelf[host.shelf].totals[host.shelf].busy += gpus * (self.now - asking.since)
        return host

    def _serve(self, pool: Pool) -> None:
        """Who waits longest and fits gets what has come free."""
        waiting = [number for number in self.classes_of[pool] if self.queued[number]]
        while waiting:
            first = min(waiting, key=self._oldest)
            host = pool.take(self.gpus[first], self.now)
            if host is None:
                waiting.remove(first)
                continue
            asking = self.queues[first].popleft()
            assert asking.pool is not None
            asking.pool.waiting -= self.gpus[first]
            self.queued[first] -= 1
            self.waiting_of[asking.owner].popleft()
            if asking.number >= 0:
                self.waits[asking.number] = self.now - asking.asked
            self._run_on(asking, host)
            if not self.queued[first]:
                waiting.remove(first)
        self._order(pool)
        self._watch(pool)

    def _oldest(self, class_number: int) -> tuple[int, int]:
        queue = self.queues[class_number]
        while queue[0].stopped:
            queue.popleft()
        return queue[0].asked, class_number

    # --- machines ---

    def _order(self, pool: Pool) -> None:
        while (number := pool.to_order()) is not None:
            self._launch(pool, number)

    def _order_large(self, pool: Pool, class_number: int) -> None:
        gpus = self.gpus[class_number]
        while (number := pool.to_order_for(gpus, self.queued[class_number])) is not None:
            self._launch(pool, number)

    def _launch(self, pool: Pool, number: int) -> None:
        size = pool.sizes[number]
        pool.on_order_of[number] += size
        pool.on_order += size
        pool.totals[number].launches += 1
        self._later(self.draws.lead_time_ns(), _Kind.COMES, Host(number, size, self.now))

    def _later(self, delay_ns: int, kind: _Kind, what: object) -> None:
        self.sequence += 1
        heapq.heappush(self.ahead, (self.now + delay_ns, self.sequence, kind, what))

    def _next(self) -> None:
        self.now, _, kind, what = heapq.heappop(self.ahead)
        if kind is _Kind.COMES:
            assert isinstance(what, Host)
            self._come(what)
        elif kind is _Kind.RELEASE:
            assert isinstance(what, Pool)
            self._release(what)
        else:
            assert isinstance(what, str)
            self._take_back(what)

    def _come(self, host: Host) -> None:
        pool = self.pool_of_shelf[host.shelf]
        totals = pool.totals[host.shelf]
        pool.on_order_of[host.shelf] -= host.size
        pool.on_order -= host.size
        if self.draws.launch_fails():
            totals.launch_failures += 1
        elif self.draws.health_rejects():
            totals.rejects += 1
            totals.booting += (self.now - host.ordered) * host.size
        else:
            totals.booting += (self.now - host.ordered) * host.size
            self._arrive(host)
            self._serve(pool)
        self._order(pool)
        for class_number in self.classes_of[pool]:
            if self.queued[class_number]:
                self._order_large(pool, class_number)

    def _arrive(self, host: Host) -> None:
        self.pool_of_shelf[host.shelf].add(host, self.now)
        self.standing += host.size
        self.recorder.changed(self.now, host.size, 0)
        place = self.fleet.shelves[host.shelf].spot_place
        if place:
            self.spot_hosts.setdefault(place, {})[host] = None

    def _watch(self, pool: Pool) -> None:
        """Machines above the plan are looked at again when they were spare long enough."""
        if not pool.watched and pool.has_surplus and not self.stopping:
            pool.watched = True
            pool.least_idle = pool.idle
            self._later(self.keep_ns, _Kind.RELEASE, pool)

    def _release(self, pool: Pool) -> None:
        unchanged = pool.idle == pool.least_idle
        for host in pool.surplus():
            unchanged = False
            self._remove(host, pool)
            pool.totals[host.shelf].releases += 1
            self.spot_hosts.get(self.fleet.shelves[host.shelf].spot_place, {}).pop(host, None)
        pool.watched = False
        if not unchanged:  # else it looks the same next time: who gives GPUs back has it watched again
            self._watch(pool)

    def _remove(self, host: Host, pool: Pool) -> None:
        pool.remove(host, self.now)
        self.standing -= host.size
        self.recorder.changed(self.now, -host.free, 0)

    def _take_back(self, place: str) -> None:
        """A place takes all its spot machines back; what ran there asks again at once."""
        lost = self.spot_hosts.pop(place, {})
        for host in lost:
            pool = self.pool_of_shelf[host.shelf]
            if host.free or self.keeps_count:
                pool.totals[host.shelf].preempted += 1
                self._remove(host, pool)
        self._later(self.draws.until_preemption_ns(), _Kind.TAKEN_BACK, place)
        again = []
        for replicas in self.running.values():
            hit = [asking for asking in replicas if asking.host is not None and asking.host.gone]
            for asking in hit:
                replicas.remove(asking)
                self._leave(asking)
                again.append(_Asking(-1, asking.class_number, asking.owner, self.now))
        for asking in again:
            self.restarts += 1
            self._ask(asking)
        for number in {host.shelf for host in lost}:
            self._order(self.pool_of_shelf[number])

    def _close(self) -> dict[int, Totals]:
        """Add up what is still there at the end."""
        for pool in self.pools:
            pool.pass_time(self.now)
        for replicas in self.running.values():
            for asking in replicas:
                self._leave(asking)
        for _, _, kind, what in self.ahead:
            if kind is _Kind.COMES:
                assert isinstance(what, Host)
                self.pool_of_shelf[what.shelf].totals[what.shelf].booting += (
                    self.now - what.ordered
                ) * what.size
        return {number: pool.totals[number] for pool in self.pools for number in pool.numbers}
