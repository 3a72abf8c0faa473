"""Machines on their shelves: idle, busy, on order; GPU-time of each kind is added up as it passes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coldstart_pool.replay.fleet import Shelf


class Host:
    """One machine; `free` of its `size` GPUs are idle."""

    __slots__ = ("free", "gone", "ordered", "shelf", "size")

    def __init__(self, shelf: int, size: int, ordered: int) -> None:
        self.shelf = shelf
        self.size = size
        self.free = size
        self.ordered = ordered
        self.gone = False


class Totals:
    """What one shelf's machines did, in GPU-nanoseconds and counts."""

    __slots__ = ("booting", "busy", "idle", "launch_failures", "launches", "preempted", "rejects", "releases")

    def __init__(self) -> None:
        self.idle = self.busy = self.booting = 0
        self.launches = self.launch_failures = self.rejects = self.releases = self.preempted = 0

    @property
    def paid(self) -> int:
        """A machine is paid for while it boots and while it is there: every GPU of it is idle or busy."""
        return self.booting + self.idle + self.busy


class Pool:
    """Shelves that the same classes may use, as one stock with one target.

    Its position, idle and on order less what waits, is kept at the target or above: every take orders.
    """

    def __init__(self, shelves: list[tuple[int, Shelf]], floor_share: float, started: int) -> None:
        self.numbers = [number for number, _ in shelves]
        self.sizes = {number: shelf.gpus_per_host for number, shelf in shelves}
        self.targets = {number: shelf.gpus_per_host * shelf.hosts for number, shelf in shelves}
        self.target = sum(self.targets.values())
        self.smallest = min(self.sizes.values())
        self.largest = max(self.sizes.values())
        self.buckets: list[dict[Host, None]] = [{} for _ in range(self.largest + 1)]
        """Hosts by how many of their GPUs are idle, the longest idle first."""
        self.idle_of = dict.fromkeys(self.numbers, 0)
        self.on_order_of = dict.fromkeys(self.numbers, 0)
        self.idle = self.on_order = self.waiting = 0
        self.totals = {number: Totals() for number in self.numbers}
        self.floor = math.ceil(floor_share * self.target) or min(1, self.target)
        self.below_floor = self.empty = 0
        self.least_idle = 0
        """The least idle since surplus is watched."""
        self.watched = False
        self._since = started

    def pass_time(self, now: int) -> None:
        """Add up what was idle until now; called before idle GPUs change."""
        passed = now - self._since
        if not passed:
            return
        self._since = now
        for number, idle in self.idle_of.items():
            self.totals[number].idle += idle * passed
        if self.idle < self.floor:
            self.below_floor += passed
            if not self.idle:
                self.empty += passed

    def take(self, gpus: int, now: int) -> Host | None:
        """GPUs on one host, the fullest that has enough, so that whole hosts stay whole; None if none has."""
        for free in range(gpus, self.largest + 1):
            if self.buckets[free]:
                break
        else:
            return None
        self.pass_time(now)
        host, _ = self.buckets[free].popitem()
        host.free = left = free - gpus
        if left:
            self.buckets[left][host] = None
        self.idle_of[host.shelf] -= gpus
        self.idle -= gpus
        self.least_idle = min(self.least_idle, self.idle)
        return host

    def give_back(self, host: Host, gpus: int, now: int) -> None:
        """GPUs of a replica that ended."""
        self.pass_time(now)
        if host.free:
            del self.buckets[host.free][host]
        host.free += gpus
        self.buckets[host.free][host] = None
        self.idle_of[host.shelf] += gpus
        self.idle += gpus

    def add(self, host: Host, now: int) -> None:
        """A machine that has come, is healthy, and has nothing to do yet."""
        self.pass_time(now)
        self.buckets[host.size][host] = None
        self.idle_of[host.shelf] += host.size
        self.idle += host.size

    def remove(self, host: Host, now: int) -> None:
        """A machine that goes, with what is idle on it."""
        self.pass_time(now)
        if host.free:
            del self.buckets[host.free][host]
        self.idle_of[host.shelf] -= host.free
        self.idle -= host.free
        host.gone = True

    def to_order(self) -> int | None:
        """The shelf that the next machine is ordered for; None when nothing needs to be."""
        if self.idle + self.on_order - self.waiting >= self.target:
            return None
        if len(self.numbers) == 1:
            return self.numbers[0]
        return max(self.numbers, key=self._deficit)

    def to_order_for(self, gpus: int, replicas: int) -> int | None:
        """A shelf of large hosts, when those on order cannot hold the `replicas` that wait; else None."""
        large = [number for number in self.numbers if self.sizes[number] >= gpus]
        held = sum(
            self.on_order_of[number] // self.sizes[number] * (self.sizes[number] // gpus) for number in large
        )
        return max(large, key=self._deficit) if large and held < replicas else None

    def surplus(self) -> Iterator[Host]:
        """Whole hosts that were spare for as long as surplus was watched, of shelves that hold too many."""
        spare = self.least_idle - self.target
        for size in range(min(spare, self.largest), 0, -1):
            for host in list(self.buckets[size]):
                over = self.idle_of[host.shelf] - self.targets[host.shelf]
                if host.size == size <= min(spare, over):
                    spare -= size
                    yield host

    @property
    def has_surplus(self) -> bool:
        return self.idle - self.smallest >= self.target

    def _deficit(self, number: int) -> int:
        return self.targets[number] - self.idle_of[number] - self.on_order_of[number]
