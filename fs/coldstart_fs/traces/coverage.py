"""What a replay was worth: prefetched and used, prefetched in vain, demanded and missed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from coldstart_fs.traces.spans import SpanSet


def _sets() -> defaultdict[int, SpanSet]:
    return defaultdict(SpanSet)


@dataclass
class Coverage:
    """Counts what the server sees: reads that the kernel answers from pushed pages never reach it.

    So `used` and `in vain` are known only where the replay stopped at the local cache (`cache_only`);
    `missed` is what readers demanded that nothing had brought before, and is known always.
    """

    cache_only: bool = False
    _prefetched: defaultdict[int, SpanSet] = field(default_factory=_sets)
    _used: defaultdict[int, SpanSet] = field(default_factory=_sets)
    _missed: defaultdict[int, SpanSet] = field(default_factory=_sets)
    _late: defaultdict[int, SpanSet] = field(default_factory=_sets)
    _lock: Lock = field(default_factory=Lock)
    replays: bool = False
    prefetched_bytes: int = 0
    used_bytes: int = 0
    missed_bytes: int = 0
    asked_again_bytes: int = 0
    demanded_reads: int = 0

    def prefetched(self, number: int, start: int, end: int) -> None:
        """These bytes were brought: into the page cache, or with `cache_only` into the local one."""
        with self._lock:
            self.prefetched_bytes += self._prefetched[number].add(start, end)

    def demanded(self, number: int, start: int, end: int) -> None:
        """These bytes were asked of the server."""
        with self._lock:
            self.demanded_reads += 1
            known = self._prefetched.get(number)
            for begin, finish in known.common(start, end) if known is not None else ():
                if self.cache_only:
                    self.used_bytes += self._used[number].add(begin, finish)
                else:
                    # on its way when it was asked for, or given up by the kernel since
                    self.asked_again_bytes += self._late[number].add(begin, finish)
            for begin, finish in known.missing(start, end) if known is not None else [(start, end)]:
                self.missed_bytes += self._missed[number].add(begin, finish)

    def report(self) -> dict[str, Any]:
        """The counters; None: not visible from where the server stands."""
        with self._lock:
            visible = self.cache_only and self.replays
            return {
                "prefetched_bytes": self.prefetched_bytes,
                "used_bytes": self.used_bytes if visible else None,
                "in_vain_bytes": self.prefetched_bytes - self.used_bytes if visible else None,
                "missed_bytes": self.missed_bytes if self.replays else None,
                "asked_again_bytes": self.asked_again_bytes if self.replays and not self.cache_only else None,
                "demanded_reads": self.demanded_reads,
            }
