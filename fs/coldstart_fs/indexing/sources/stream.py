"""Bytes of a layer on their way to a parser: read ahead by a thread, taken exactly."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

_BLOCKS_AHEAD = 8


class Ahead:
    """Runs an iterator of blocks in a thread, a few blocks ahead; hashing and inflating release the GIL."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_BLOCKS_AHEAD)
        self._stopped = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(blocks,), name="blob reader", daemon=True)
        self._thread.start()

    def _run(self, blocks: Iterator[bytes]) -> None:
        last: BaseException | None = None
        try:
            for block in blocks:
                if not self._put(block):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the blocks are used
            last = error
        self._put(last)

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, bytes):
            return item
        self._ended = True
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()


class ByteStream:
    """Takes exact numbers of bytes from an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._position = 0

    def take(self, length: int) -> bytes:
        """`length` bytes, fewer only at the end of the stream."""
        end = self._position + length
        if end <= len(self._block):
            data = self._block[self._position : end]
            self._position = end
            return data
        return b"".join(self.pieces(length))

    def pieces(self, length: int) -> Iterator[bytes | memoryview]:
        """`length` bytes in pieces as they come, fewer only at the end of the stream."""
        while length:
            if self._position == len(self._block):
                self._block, self._position = next(self._blocks, b""), 0
                if not self._block:
                    return
            piece = memoryview(self._block)[self._position : self._position + length]
            self._position += len(piece)
            length -= len(piece)
            yield piece

    def skip(self, length: int) -> int:
        """Pass over `length` bytes; how many there were."""
        return sum(len(piece) for piece in self.pieces(length))

    def drain(self) -> None:
        """Read to the end, where digests are checked."""
        for _ in self._blocks:
            pass
