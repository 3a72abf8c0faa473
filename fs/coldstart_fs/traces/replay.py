"""Replaying a trace: questions first, then the bytes, into the page cache while memory lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from coldstart_cli.errors import ColdstartError
from coldstart_fs.traces.coverage import Coverage
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.plan import Range, ReplayPlan
from coldstart_fs.traces.priming import run_primer
from coldstart_fs.traces.pushing import Content, Pushing

_PRIMER_SECONDS = 10.0
# what was brought and is not in the page cache yet: beyond it nothing more is brought
_WAITING_BYTES = 64 << 20
_POLL_SECONDS = 0.002


class Prefetching(Protocol):
    """What a replay needs of an image's reader, which lets readers who wait go first."""

    def prefetch_all(
        self,
        ranges: Iterable[tuple[int, int, int]],
        *,
        into: Callable[[int, int, Content], None] | None = None,
        stop: Callable[[], bool] = ...,
    ) -> Any: ...


@dataclass(frozen=True)
class Target:
    """Where a replay goes: `store_pages` puts bytes of an inode into the page cache, false when it cannot.

    `mountpoint` waits until the mount answers; None when it never will.
    """

    reader: Prefetching
    store_pages: Callable[[int, int, Content], bool]
    mountpoint: Callable[[], Path | None]
    on_primer: Callable[[int], None] = lambda _: None


class Replay:
    """One replay in a thread of its own. Whatever goes wrong in it is logged, and costs speed only."""

    def __init__(
        self,
        plan: ReplayPlan,
        target: Target,
        coverage: Coverage,
        *,
        mode: Mode,
        budget_bytes: int,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.state = "waiting"
        self.seconds = self.primed_seconds = self.brought_seconds = 0.0
        self.failed_bytes = 0
        self.primed: bool | None = None
        self._target = target
        self._coverage = coverage
        self._mode = mode
        self._budget_bytes = budget_bytes
        self._log = log
        self._started = 0.0
        self._stopped = Event()
        self._primed = Event()
        self._pushing = Pushing(target.store_pages, coverage, self._primed, self._stopped)
        self._thread = Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more and ask nothing more, at once; what is fetched ends with its own deadline."""
        self._stopped.set()
        self._primed.set()

    def status(self) -> dict[str, Any]:
        return {
            "mode": self._mode.value,
            "state": self.state,
            "primed": self.primed,
            "primed_seconds": round(self.primed_seconds, 3),
            "brought_seconds": round(self.brought_seconds, 3),
            "planned_bytes": self.plan.size_bytes,
            "planned_ranges": len(self.plan.ranges),
            "skipped_paths": self.plan.skipped_paths,
            "budget_bytes": self._budget_bytes,
            "pushed_bytes": self._pushing.pushed_bytes,
            "refused_bytes": self._pushing.refused_bytes,
            "failed_bytes": self.failed_bytes,
            "seconds": round(self.seconds, 3),
        }

    def _run(self) -> None:
        self._started = started = time.monotonic()
        try:
            self.state = "running"
            self._replay()
            self.state = "stopped" if self._stopped.is_set() else "done"
        except Exception as error:  # noqa: BLE001 - a replay is never worth a mount
            self.state = "failed"
            self._log(f"replay of the trace failed: {error}")
        finally:
            self.seconds = time.monotonic() - started

    def _replay(self) -> None:
        reader, stop = self._target.reader, self._stopped.is_set
        pages = self._mode is Mode.PAGES
        into_pages, into_cache = _divided(self.plan.ranges, self._budget_bytes if pages else 0)
        asking = Thread(target=self._prime, name="primer", daemon=True)
        if pages:
            asking.start()
            self._pushing.start()
        for ranges, into in ((into_pages, self._pushing.add), (into_cache, self._cached)):
            if ranges:
                brought = reader.prefetch_all(self._as_memory_allows(ranges), into=into, stop=stop)
                self.failed_bytes += brought.failed_bytes
        self.brought_seconds = time.monotonic() - self._started
        if pages:
            asking.join()
            self._pushing.finish()

    def _as_memory_allows(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int, int]]:
        for item in ranges:
            while self._pushing.waiting_bytes > _WAITING_BYTES and not self._stopped.is_set():
                time.sleep(_POLL_SECONDS)
            yield item.number, item.offset, item.length

    def _prime(self) -> None:
        try:
            mountpoint = self._target.mountpoint()
            if mountpoint is None:
                self._stopped.set()
                return
            self.primed = run_primer(
                self.plan.primer,
                mountpoint,
                deadline_seconds=_PRIMER_SECONDS,
                on_start=self._target.on_primer,
                stop=self._stopped.is_set,
            )
            if not self.primed and not self._stopped.is_set():
                self._log("primer was not through in time: the mount answers slowly")
        except (ColdstartError, OSError) as error:
            self.primed = False
            self._log(f"primer did not run: {error}")
        finally:
            self.primed_seconds = time.monotonic() - self._started
            self._target.on_primer(-1)
            self._primed.set()

    def _cached(self, number: int, offset: int, data: Content) -> None:
        self._coverage.prefetched(number, offset, offset + len(data))


def _divided(ranges: Iterable[Range], budget_bytes: int) -> tuple[list[Range], list[Range]]:
    """Those that the budget covers, in order, and the rest."""
    inside: list[Range] = []
    rest: list[Range] = []
    for item in ranges:
        if not rest and item.length <= budget_bytes:
            inside.append(item)
            budget_bytes -= item.length
        else:
            rest.append(item)
    return inside, rest
