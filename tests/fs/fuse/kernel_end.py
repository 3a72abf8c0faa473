"""The kernel's end of a FUSE connection in the hands of a test: one packet a request, one an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.fuse.protocol import IN_HEADER, OUT_HEADER
from coldstart_fs.fuse.session import Ended, Handler, Session

_PATIENCE_SECONDS = 20.0
NEGOTIATED = Negotiated(
    minor=41,
    flags=0,
    max_readahead_bytes=131072,
    max_background=256,
    congestion_threshold=192,
    max_pages=256,
)


@dataclass(frozen=True)
class Answer:
    """`error` is a positive errno or 0; a notification has its code there, negative, and no `unique`."""

    unique: int
    error: int
    body: bytes


@dataclass
class KernelEnd:
    """Sends requests as the kernel does, and malformed ones as it never does."""

    socket: socket.socket
    session: Session
    ended: list[Ended] = field(default_factory=list)

    def ask(self, opcode: int, body: bytes = b"", *, unique: int = 2, node: int = 1, pid: int = 0) -> None:
        length = IN_HEADER.size + len(body)
        self.send(IN_HEADER.pack(length, opcode, unique, node, 0, 0, pid, 0, 0) + body)

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)

    def answer(self) -> Answer:
        frame = self.socket.recv(1 << 21)
        length, error, unique = OUT_HEADER.unpack_from(frame)
        assert length == len(frame)
        return Answer(unique, -error, frame[OUT_HEADER.size :])

    def nothing_came(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(_PATIENCE_SECONDS)
        return False


@contextmanager
def connection(log: list[str] | None = None) -> Iterator[KernelEnd]:
    """Both ends; the session is not running."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_PATIENCE_SECONDS)
    with ours, theirs:
        session = Session(theirs.fileno(), (lambda _: None) if log is None else log.append)
        try:
            yield KernelEnd(ours, session)
        finally:
            session.close()


@contextmanager
def serving(handlers: Mapping[int, Handler], log: list[str] | None = None) -> Iterator[KernelEnd]:
    """A session that answers with these handlers in a thread."""
    with connection(log) as kernel:
        kernel.session.resume(NEGOTIATED)
        loop = Thread(target=lambda: kernel.ended.append(kernel.session.run(handlers)))
        loop.start()
        try:
            yield kernel
        finally:
            kernel.session.stop()
            loop.join(_PATIENCE_SECONDS)
            assert not loop.is_alive()
