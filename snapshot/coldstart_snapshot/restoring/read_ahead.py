"""Reading memory images beside criu, which has one read in flight: only where that is measured to help.

criu 4.2 reads pages one after the other. On storage with parallelism more readers are several times as
fast; on others, and where CPUs are short, they take from criu what they give. So: only cold images, only
with CPUs to spare, only when a probe on the very file says so, and never after criu is done.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coldstart_snapshot.restoring.page_cache import chunks, cold_bytes, fetch, resident_bytes

_CHUNK_BYTES = 4 << 20
# below this criu is done before a probe is
_LEAST_COLD_BYTES = 128 << 20
_LEAST_CPUS = 4
_MOST_READERS = 8
# how much faster several readers must be than one
_LEAST_GAIN = 1.5
_PROBE_CHUNKS = 8

Chunk = tuple[int, int, int]


@dataclass
class ReadAhead:
    """What was decided and why; `bytes_per_second` is the faster of the probe's two figures."""

    decision: str
    cold_bytes: int
    readers: int = 0
    bytes_per_second: float | None = None
    read_bytes: int = 0


@contextmanager
def reading_ahead(images: Sequence[Path], *, processes: int) -> Iterator[ReadAhead]:
    """Read ahead while the block runs, if that pays; `processes` are how many criu restores."""
    with ExitStack() as stack:
        try:
            outcome = decide(cold_bytes(tuple(images)), len(os.sched_getaffinity(0)), processes)
        except OSError as error:
            # an answer that a file system does not give is no reason not to restore
            outcome = ReadAhead(f"off: {error.strerror}", 0)
        if outcome.readers:
            stack.enter_context(_Readers(images, outcome))
        yield outcome


def decide(cold: int, cpus: int, processes: int) -> ReadAhead:
    """What is known before a byte is read: is there something to read, and are there CPUs to spare?"""
    if cold < _LEAST_COLD_BYTES:
        return ReadAhead("off: the page cache has the images", cold)
    spare = cpus - processes - 1
    if cpus < _LEAST_CPUS or spare < 2:
        return ReadAhead(f"off: no CPUs to spare, of {cpus} criu wants {processes + 1}", cold)
    return ReadAhead("probing", cold, readers=min(_MOST_READERS, spare))


class _Readers:
    """Threads that probe, and then read in file order until all is read or criu is done."""

    def __init__(self, images: Sequence[Path], outcome: ReadAhead) -> None:
        self._outcome = outcome
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._descriptors = [os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) for path in images]
        self._left = (
            (descriptor, *chunk)
            for descriptor in self._descriptors
            for chunk in chunks(descriptor, _CHUNK_BYTES)
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # each reader is within one chunk of its end
        self._thread.join()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _run(self) -> None:
        outcome = self._outcome
        try:
            one = self._rate(1)
            many = self._rate(outcome.readers)
            if one is None or many is None:
                outcome.decision = "off: criu was done before the probe"
                return
            outcome.bytes_per_second = max(one, many)
            figures = f"one reader {one / 1e6:.0f} MB/s, {outcome.readers} readers {many / 1e6:.0f} MB/s"
            if many < _LEAST_GAIN * one:
                outcome.decision = f"off: {figures}"
                return
            outcome.decision = f"on: {figures}"
            self._read(outcome.readers, None)
        except OSError as error:
            # criu reads for itself, and says what is wrong with the file
            outcome.decision = f"off: {error.strerror}"

    def _rate(self, readers: int) -> float | None:
        """Bytes a second of so many readers on the next cold chunks; None where there are none left."""
        before, started = self._outcome.read_bytes, time.monotonic()
        self._read(readers, _PROBE_CHUNKS)
        read = self._outcome.read_bytes - before
        if self._over.is_set() or read < _PROBE_CHUNKS // 2 * _CHUNK_BYTES:
            return None
        return read / max(1e-6, time.monotonic() - started)

    def _read(self, readers: int, count: int | None) -> None:
        """Let `readers` threads fetch the next `count` chunks that are not there, or all of them."""
        left = [count if count is not None else 1 << 62]

        def work() -> None:
            while not self._over.is_set():
                with self._lock:
                    chunk = self._next_cold() if left[0] > 0 else None
                    left[0] -= 1
                if chunk is None:
                    return
                fetch(*chunk)
                with self._lock:
                    self._outcome.read_bytes += chunk[2]

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(readers) as pool:
            for future in [pool.submit(work) for _ in range(readers)]:
                future.result()

    def _next_cold(self) -> Chunk | None:
        for chunk in self._left:
            if resident_bytes(*chunk) < chunk[2] // 2:
                return chunk
        return None
