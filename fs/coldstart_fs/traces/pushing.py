"""Handing pages to the kernel, in threads that do nothing else."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread

from coldstart_fs.traces.coverage import Coverage

Content = bytes | bytearray | memoryview
_Piece = tuple[int, int, Content]


class Pushing:
    """Takes pieces at once and pushes them in their order.

    The kernel lets a push wait for a page that a reader waits for. Whoever brings pages must not wait with
    it: the reader may wait for what that thread has in hand. A file that the kernel does not know yet is
    tried again once the primer is through (`primed`).
    """

    def __init__(
        self,
        store_pages: Callable[[int, int, Content], bool],
        coverage: Coverage,
        primed: Event,
        stopped: Event,
    ) -> None:
        self.pushed_bytes = 0
        self.refused_bytes = 0
        self.waiting_bytes = 0
        self._store_pages = store_pages
        self._coverage = coverage
        self._primed = primed
        self._stopped = stopped
        self._lock = Lock()
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._too_early: list[_Piece] = []
        self._thread = Thread(target=self._push_all, name="push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, number: int, offset: int, data: Content) -> None:
        """Have bytes of an inode pushed; never waits."""
        with self._lock:
            self.waiting_bytes += len(data)
        self._pieces.put((number, offset, data))

    def finish(self) -> None:
        """Wait until everything that was added is pushed, or given up after a stop."""
        self._pieces.put(None)
        self._thread.join()

    def _push_all(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if self._too_early and self._primed.is_set():
                self._push_again()
            self._push(piece)
        self._primed.wait()
        self._push_again()

    def _push_again(self) -> None:
        pieces, self._too_early = self._too_early, []
        for piece in pieces:
            self._push(piece)

    def _push(self, piece: _Piece) -> None:
        number, offset, data = piece
        early = not self._primed.is_set()
        taken = not self._stopped.is_set() and self._store_pages(number, offset, data)
        if taken:
            self._coverage.prefetched(number, offset, offset + len(data))
        elif early:
            self._too_early.append(piece)
            return
        with self._lock:
            self.waiting_bytes -= len(data)
            if taken:
                self.pushed_bytes += len(data)
            else:
                self.refused_bytes += len(data)
