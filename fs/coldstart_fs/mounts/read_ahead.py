"""Bringing what a stream wants next: large requests, pushed into the page cache before anybody asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from typing import Any

from coldstart_cli.errors import ColdstartError
from coldstart_fs.content.fetch import Content
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.workers import Workers
from coldstart_fs.foresight import folders
from coldstart_fs.foresight.folders import Folders
from coldstart_fs.foresight.libraries import Libraries
from coldstart_fs.fuse.protocol import PAGE_BYTES
from coldstart_fs.fuse.session import Session
from coldstart_fs.mounts import weights
from coldstart_fs.mounts.streams import SMALLEST_FILE_BYTES, Order, Stream, Streams

_ORDERS = 4
# what comes so fast, also on a busy host, was in memory
_FAST_BYTES_A_SECOND = 150e6
# on their way into the page cache, of all streams; what does not fit is in the local cache all the same
_ORDERED_BYTES = 96 << 20
_PUSHED_BYTES = 64 << 20


class ReadAhead:
    """`saw` is for the request loop; the rest happens in threads."""

    def __init__(self, reader: ImageReader, session: Session, may_push: Callable[[], bool]) -> None:
        self._reader = reader
        self._session = session
        self._may_push = may_push
        self._streams = Streams()
        self._libraries = Libraries(reader, self._take_foreseen)
        self._folders = Folders(reader)
        self._orders = Workers("read ahead", _ORDERS)
        # one that does nothing else: the kernel lets a push wait for a page that a reader waits for
        self._pushes = Workers("push", 1)
        self._lock = Lock()
        self._stopped = False
        self._ordered_bytes = 0
        self._waiting_bytes = 0
        self._counters = {"orders": 0, "pushed_bytes": 0, "dropped_bytes": 0, "overtaken_bytes": 0}

    def saw(self, number: int, offset: int, length: int, file_bytes: int, *, at_hand: bool) -> None:
        """Hear of a read, and whether it could be answered at once; never waits."""
        if not offset:
            self._libraries.opened(number, file_bytes)
        if not at_hand and file_bytes <= folders.LARGEST_FILE_BYTES:
            self._folders.missed(number)
        if file_bytes < SMALLEST_FILE_BYTES:
            return
        is_new = self._streams.is_new(number)
        step = self._streams.saw(number, offset, length, file_bytes, at_hand=at_hand)
        if is_new and not offset and file_bytes >= weights.SMALLEST_FILE_BYTES:
            self._orders.submit(partial(self._look_into, number, file_bytes))
        if step is None:
            return
        stream, used_offset, used_bytes = step
        if used_bytes:
            self._reader.was_read(number, used_offset, used_bytes)
        if not stream.slow:  # the kernel's own read-ahead does as well, with one copy less
            return
        while order := self._streams.order(stream, number, _ORDERED_BYTES - self._ordered_bytes):
            with self._lock:
                self._ordered_bytes += order.length
                self._counters["orders"] += 1
            self._orders.submit(partial(self._bring, order, stream))

    def stop(self) -> None:
        """Push nothing more: a server that ends must not wait for the kernel."""
        self._stopped = True

    def counters(self) -> dict[str, Any]:
        """What was done since the start; `overtaken`: the reader was there first."""
        foreseen_bytes = self._libraries.foreseen_bytes + self._folders.foreseen_bytes
        return self._counters | {"foreseen_bytes": foreseen_bytes}

    def _bring(self, order: Order, stream: Stream) -> None:
        began, fetched_bytes = time.monotonic(), self._fetched_bytes()
        try:
            hand = partial(self._take, order, stream)
            self._reader.prefetch(order.number, order.offset, order.length, into=hand)
            is_fast = order.length >= _FAST_BYTES_A_SECOND * (time.monotonic() - began)
            if is_fast and self._fetched_bytes() == fetched_bytes:
                stream.is_fast()
        except Exception as error:  # noqa: BLE001 - nobody has asked for it yet
            self._session.log(f"read-ahead failed: {error}")
        finally:
            self._streams.brought(order)
            with self._lock:
                self._ordered_bytes -= order.length

    def _look_into(self, number: int, file_bytes: int) -> None:
        """See whether a file has tensors; its first chunk is on its way already."""
        try:
            places = weights.tensor_places(partial(self._read, number), file_bytes)
        except ColdstartError:  # whoever reads it hears why
            return
        if places:
            self._streams.know_sections(number, places)

    def _read(self, number: int, offset: int, length: int) -> bytes:
        return bytes(self._reader.read(number, offset, length))

    def _fetched_bytes(self) -> int:
        return int(self._reader.counters()["prefetched_bytes"])

    def _take(self, order: Order, stream: Stream, offset: int, data: Content) -> None:
        """In a thread of the reader, which must not wait for the kernel."""
        if self._has_room(data):
            self._pushes.submit(partial(self._push, order, stream, offset, data))

    def _take_foreseen(self, number: int, offset: int, data: Content) -> None:
        """As `_take`. A replay pushes by itself, and an audit of it wants to see what is read."""
        if self._may_push() and self._has_room(data):
            self._pushes.submit(partial(self._push_foreseen, number, offset, data))

    def _push_foreseen(self, number: int, offset: int, data: Content) -> None:
        try:
            if not self._stopped and self._session.store(number + 1, offset, data):
                self._counters["pushed_bytes"] += len(data)
                # nobody will ask us for it, and most of it is read
                self._reader.was_read(number, offset, len(data))
        finally:
            self._is_pushed(data)

    def _has_room(self, data: Content) -> bool:
        """Whether so much more may wait for the kernel."""
        with self._lock:
            if self._waiting_bytes + len(data) > _PUSHED_BYTES:
                self._counters["dropped_bytes"] += len(data)
                return False
            self._waiting_bytes += len(data)
        return True

    def _is_pushed(self, data: Content) -> None:
        with self._lock:
            self._waiting_bytes -= len(data)

    def _push(self, order: Order, stream: Stream, offset: int, data: Content) -> None:
        view = memoryview(data)
        try:
            if self._stopped:
                return
            if stream.is_beyond(offset, len(view)):
                self._counters["overtaken_bytes"] += len(view)
                return
            for begin, end in _without_marks(offset, offset + len(view), order.marks):
                if self._session.store(order.number + 1, begin, view[begin - offset : end - offset]):
                    self._counters["pushed_bytes"] += end - begin
        finally:
            self._is_pushed(data)


def _without_marks(begin: int, end: int, marks: Iterable[int]) -> list[tuple[int, int]]:
    """A range less the pages that the reader is to ask for."""
    pieces = []
    for page in sorted(mark // PAGE_BYTES * PAGE_BYTES for mark in marks):
        if begin <= page < end:
            pieces.append((begin, page))
            begin = page + PAGE_BYTES
    pieces.append((begin, end))
    return [(start, stop) for start, stop in pieces if start < stop]
