"""What a mount is asked, written down as it happens: a note in memory for each request, a file behind it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from threading import Event, Lock, Thread, current_thread

from coldstart_cli.files import make_directory
from coldstart_cli.regular import open_own
from coldstart_fs.format.names import digest_text
from coldstart_fs.traces.coverage import Coverage
from coldstart_fs.traces.spans import SpanSet

SCHEMA = "coldstart.recording"
VERSION = 1
# kind, inode, offset, length, time; after it, for a name, that many bytes as the length says
RECORD = Struct("<BxxxIQQd")
READ, LOOKED_UP, LISTED, LINK, PARTIAL = range(5)
_WRITE_EVERY_SECONDS = 1.0
_LARGEST_FILE_BYTES = 64 << 20
_Event = tuple[int, int, int, int | bytes, float]


class Recorder:
    """Takes what a server was asked. The taking is a time and an append; all else is done in a thread.

    The file under `path` is complete up to a second ago whatever happens to this process; a successor with
    the same path goes on in it. It is locked while somebody records. `on_end` is called in that thread when
    a recording ends before it is stopped.
    """

    def __init__(
        self,
        path: Path,
        *,
        image: bytes,
        workload: str,
        limit_seconds: float,
        file_bytes: Callable[[int], int] = lambda _: 1 << 62,
        coverage: Coverage | None = None,
        on_end: Callable[[], None] = lambda: None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.coverage = coverage or Coverage()
        self.is_open = True
        self._events: deque[_Event] = deque()
        self._note = self._events.append
        self._limit_seconds = limit_seconds
        self._file_bytes_of = file_bytes
        self._deadline: float | None = None
        self._on_end = on_end
        self._log = log
        self._seen: dict[int, SpanSet] = {}
        self._asked: set[tuple[int, int, bytes]] = set()
        self._ignored = -1
        self._draining = Lock()
        self._ending = Event()
        self._file_bytes = 0
        self._descriptor = self._open(image, workload)
        self._thread = Thread(target=self._write_on, name="recorder", daemon=True)
        self._thread.start()

    # --- called for every request ---

    def read(self, number: int, offset: int, length: int) -> None:
        if self.is_open:
            self._note((READ, number, offset, length, time.monotonic()))

    def looked_up(self, directory: int, name: bytes, pid: int = 0) -> None:
        """A name, there or not: the image says which."""
        if self.is_open and pid != self._ignored:
            self._note((LOOKED_UP, directory, 0, name, time.monotonic()))

    def listed(self, number: int, pid: int = 0) -> None:
        if self.is_open and pid != self._ignored:
            self._note((LISTED, number, 0, 0, time.monotonic()))

    def link_read(self, number: int, pid: int = 0) -> None:
        if self.is_open and pid != self._ignored:
            self._note((LINK, number, 0, 0, time.monotonic()))

    # --- the rest ---

    def ignore(self, pid: int) -> None:
        """A process of our own, whose questions are none of the workload's; one at a time."""
        self._ignored = pid

    def mark_partial(self) -> None:
        """From now on a replay answers in our place: this recording is no complete one."""
        if self.is_open:
            self._note((PARTIAL, 0, 0, 0, time.monotonic()))

    def flush(self) -> None:
        """Write down what was taken so far."""
        with self._draining:
            content = self._drained()
            if not content or self._descriptor < 0:
                return
            if self._file_bytes + len(content) > _LARGEST_FILE_BYTES:
                self._give_up(f"recording has {_LARGEST_FILE_BYTES >> 20} MiB, nothing is added")
                return
            try:
                written = os.write(self._descriptor, content)
            except OSError as error:  # no recording is worth a mount
                self._give_up(f"recording ends: {self.path}: {error.strerror}")
                return
            self._file_bytes += written
            if written < len(content):
                self._give_up(f"recording ends: {self.path}: no space left")

    def stop(self) -> None:
        """Take no more; what was taken is on disk when this returns. The lock is let go with `close`."""
        self.is_open = False
        self._ending.set()
        if current_thread() is not self._thread:
            self._thread.join()
        self.flush()

    def close(self) -> None:
        self.stop()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, image: bytes, workload: str) -> int:
        try:
            make_directory(self.path.parent, mode=0o700)
            descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file_bytes = os.fstat(descriptor).st_size
            if not self._file_bytes:
                header = {
                    "schema": SCHEMA,
                    "version": VERSION,
                    "image": digest_text(image),
                    "workload": workload,
                }
                os.write(descriptor, json.dumps(header).encode("ascii") + b"\n")
        except Exception as error:  # noqa: BLE001 - no recording is worth a mount
            self.is_open = False
            self._log(f"reads are not recorded: {error}")
            return -1
        return descriptor

    def _write_on(self) -> None:
        while self.is_open and not self._ending.wait(_WRITE_EVERY_SECONDS):
            self.flush()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.is_open = False
        if not self._ending.is_set():
            self._on_end()

    def _give_up(self, reason: str) -> None:
        self.is_open = False
        self._log(reason)

    def _drained(self) -> bytes:
        """What was not written yet as records: each byte and each question once, neighbours as one."""
        parts: list[bytes] = []
        events = self._events
        while events:
            kind, number, offset, value, seconds = events.popleft()
            if self._deadline is None and kind != PARTIAL:
                self._deadline = seconds + self._limit_seconds
            if kind == READ:
                assert isinstance(value, int)
                end = offset + value
                while events and (more := events[0])[:2] == (READ, number) and more[2] == end:
                    end += more[3]  # type: ignore[operator]
                    events.popleft()
                end = min(end, self._file_bytes_of(number))  # the kernel asks for whole pages
                self.coverage.demanded(number, offset, end)
                seen = self._seen.get(number)
                if seen is None:
                    seen = self._seen[number] = SpanSet()
                for start, finish in seen.missing(offset, end):
                    parts.append(RECORD.pack(READ, number, start, finish - start, seconds))
                seen.add(offset, end)
                continue
            name = value if isinstance(value, bytes) else b""
            key = kind, number, name
            if key not in self._asked:
                self._asked.add(key)
                parts.append(RECORD.pack(kind, number, 0, len(name), seconds) + name)
        return b"".join(parts)
