"""How far an indexing is: counters that it moves, and that whoever shows them looks at."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerRead:
    """A layer that was read whole and verified; `size_bytes` as it was stored."""

    digest: str
    size_bytes: int
    seconds: float


@dataclass
class Progress:
    """Calling it with a sentence begins a phase; the counters go on.

    The threads that work write to it, each to counters of its own; others may read it at any time.
    """

    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    """Of the work at hand, as the source or the packs have it; 0 while nobody knows."""
    files: int = 0
    content_bytes: int = 0
    read_bytes: int = 0
    """Of the source, compressed or not, over the whole indexing."""
    layers: list[LayerRead] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        self.phase = text

    def expect(self, total_bytes: int) -> None:
        """The work at hand is done when this many bytes are."""
        self.done_bytes, self.total_bytes = 0, total_bytes
        self._since = time.monotonic()

    def advance(self, size_bytes: int) -> None:
        """So much more of the work at hand is done."""
        self.done_bytes += size_bytes

    def counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Blocks of the source, counted as they are taken."""
        for block in blocks:
            self.done_bytes += len(block)
            self.read_bytes += len(block)
            yield block

    def describe(self) -> str:
        """One line: phase, share, files, rate, time left."""
        parts = [self.phase]
        seconds = time.monotonic() - self._since
        done, total = self.done_bytes, self.total_bytes
        if total:
            parts.append(f"{_megabytes(min(done, total))} of {_megabytes(total)} MB")
        if self.files:
            parts.append(f"{self.files} files")
        if done and seconds >= 1:
            parts.append(f"{_megabytes(int(done / seconds))} MB/s")
            if total > done:
                parts.append(f"{_time_left((total - done) * seconds / done)} left")
        return ", ".join(parts)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}" if size_bytes < 10_000_000 else f"{size_bytes / 1e6:.0f}"


def _time_left(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02} h"
    )
