"""One FUSE connection: requests are read in one thread, answered from any, and no handler can end it."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum

from coldstart_fs.fuse.journal import Journal
from coldstart_fs.fuse.negotiation import Negotiated, negotiate
from coldstart_fs.fuse.protocol import (
    IN_HEADER,
    INTERRUPT_IN,
    INVAL_ENTRY_OUT,
    INVAL_INODE_OUT,
    OUT_HEADER,
    READ_IN,
    REQUEST_BUFFER_BYTES,
    RESENT,
    STORE_OUT,
    Notify,
    Opcode,
)

Buffer = bytes | bytearray | memoryview


class Ended(Enum):
    """Why a session came to its end: ours, or the mount's, or somebody gave up on it through fusectl."""

    STOPPED = "stopped"
    UNMOUNTED = "unmounted"
    ABORTED = "aborted"


_IN_HEADER_BYTES = IN_HEADER.size
_OUT_HEADER_BYTES = OUT_HEADER.size
# up to here joining header and body costs less than a vector of two
_JOINED_BYTES = 4096
_GONE = frozenset({errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN})
# the asker was interrupted, or somebody else has answered
_UNWANTED = frozenset({errno.ENOENT, *_GONE})
# another process was faster, or whoever asked is gone already
_NOTHING_READ = frozenset({errno.EAGAIN, errno.ENOENT, errno.EINTR})
_OPCODES = {int(opcode): opcode.name.lower() for opcode in Opcode}


class Request:
    """One request of the kernel. Whoever has it owes one `reply` or `error`, from any thread."""

    __slots__ = ("answered", "body", "node", "opcode", "pid", "sent", "session", "unique")

    def __init__(self, session: Session, opcode: int, unique: int, node: int, pid: int, body: bytes) -> None:
        self.session = session
        self.opcode = opcode
        self.unique = unique
        self.node = node
        self.pid = pid
        self.body = body
        self.answered = False
        self.sent = False

    def reply(self, *buffers: Buffer) -> None:
        """Answer with these bytes, one after the other; one that nobody waits for any more is dropped."""
        session = self.session
        self.answered = True
        if session.pending:
            session.pending.pop(self.unique, None)
        try:
            if len(buffers) == 1 and len(body := buffers[0]) <= _JOINED_BYTES:
                size_bytes = _OUT_HEADER_BYTES + len(body)
                os.write(session.descriptor, OUT_HEADER.pack(size_bytes, 0, self.unique) + body)
            else:
                size_bytes = _OUT_HEADER_BYTES + sum(map(len, buffers))
                os.writev(session.descriptor, [OUT_HEADER.pack(size_bytes, 0, self.unique), *buffers])
        except OSError as failure:
            if failure.errno not in _UNWANTED:
                session.log(f"kernel refused an answer of {size_bytes} bytes: {failure.strerror}")
                self.error(errno.EIO)
        self.sent = True
        if session.journal is not None:
            session.journal.answered(self.unique)

    def error(self, number: int) -> None:
        """Answer with an error of `errno`."""
        session = self.session
        self.answered = True
        session.pending.pop(self.unique, None)
        with suppress(OSError):
            os.write(session.descriptor, OUT_HEADER.pack(_OUT_HEADER_BYTES, -number, self.unique))
        self.sent = True
        if session.journal is not None:
            session.journal.answered(self.unique)


Handler = Callable[[Request], None]


class Session:
    """The server's end of one mount. `failures` counts handlers that raised.

    The descriptor stays the caller's; it is switched to non-blocking reads, for every process that has it.
    `journal` is that of a journal, for kernels that send nothing again.
    """

    def __init__(
        self, descriptor: int, log: Callable[[str], None] = lambda _: None, journal: int | None = None
    ) -> None:
        self.descriptor = descriptor
        self.log = log
        self.name_of: Callable[[int], str] = lambda node: f"node {node}"
        """How messages call a node; may not raise."""
        self.failures = 0
        self.requests = 0
        # requests that were read and not answered yet: a thread works on them
        self.pending: dict[int, Request] = {}
        self.journal: Journal | None = None
        self._journal = journal
        self._left: list[bytes] = []
        self._negotiated: Negotiated | None = None
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        os.set_blocking(descriptor, False)

    @property
    def negotiated(self) -> Negotiated:
        """What kernel and server agreed on; there is nothing before `negotiate` or `resume`."""
        assert self._negotiated is not None
        return self._negotiated

    def negotiate(self, *, posix_acls: bool = False, timeout_seconds: float = 10.0) -> Negotiated:
        """Answer INIT, the first request of a new mount."""
        self._negotiated = negotiate(
            self.descriptor, posix_acls=posix_acls, deadline=time.monotonic() + timeout_seconds
        )
        self._open_journal()
        return self._negotiated

    def resume(self, negotiated: Negotiated) -> None:
        """Go on where another process ended; what it left unanswered comes again, if the kernel can."""
        self._negotiated = negotiated
        self._open_journal()
        if negotiated.has_resend:
            self.resend()

    def _open_journal(self) -> None:
        if self._journal is not None and not self.negotiated.has_resend:
            self.journal = Journal(self._journal)
            self._left = self.journal.inherit()

    def run(self, handlers: Mapping[int, Handler]) -> Ended:
        """Answer requests until `stop`, or until there is no mount any more."""
        descriptor, unpack = self.descriptor, IN_HEADER.unpack_from
        find = self._table(handlers).get
        with select.epoll() as poll:
            poll.register(descriptor, select.EPOLLIN)
            poll.register(self._stop, select.EPOLLIN)
            while True:
                for ready, _ in poll.poll(0 if self._left else None):
                    if ready != descriptor and self._stopped():
                        return Ended.STOPPED
                data = self._left.pop() if self._left else self._read()
                if isinstance(data, Ended):
                    return data
                if len(data) < _IN_HEADER_BYTES:
                    continue
                length, opcode, unique, node, _, _, pid, _, _ = unpack(data)
                request = Request(self, opcode, unique, node, pid, data[_IN_HEADER_BYTES:])
                self.requests += 1
                handler = find(opcode)
                if handler is None or length != len(data):
                    request.error(errno.ENOSYS if handler is None else errno.EIO)
                    continue
                try:
                    handler(request)
                except Exception as failure:  # noqa: BLE001 - one bad request is no reason to end a mount
                    self.failed(request, failure, opcode)
                else:
                    if not request.answered:
                        self._keep(request, data)

    def _table(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        return {
            Opcode.FORGET: _nothing,
            Opcode.BATCH_FORGET: _nothing,
            Opcode.INTERRUPT: self._interrupt,
            Opcode.DESTROY: _empty,
            **handlers,
        }

    def _read(self) -> bytes | Ended:
        """The next request, empty when there is none after all."""
        try:
            if self.journal is not None:
                return self.journal.read(self.descriptor) or Ended.UNMOUNTED
            return os.read(self.descriptor, REQUEST_BUFFER_BYTES) or Ended.UNMOUNTED
        except OSError as failure:
            if failure.errno in _GONE:
                return Ended.ABORTED if failure.errno == errno.ECONNABORTED else Ended.UNMOUNTED
            if failure.errno in _NOTHING_READ:
                return b""
            raise

    def stop(self) -> None:
        """Make `run` return after the request at hand; from any thread or signal handler."""
        os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        """Give back what the session opened; the connection's descriptor is the caller's."""
        os.close(self._stop)

    def failed(self, request: Request, failure: BaseException, opcode: int) -> None:
        """Answer EIO for whatever a handler did not expect, with the reason in the log."""
        self.failures += 1
        name = _OPCODES.get(opcode, f"request {opcode}")
        hint = getattr(failure, "hint", None)
        if not request.answered:
            request.error(errno.EIO)
        what = f"{name} of {self.name_of(request.node)} failed, answered EIO"
        self.log(f"{what}: {failure}" + (f"; {hint}" if hint else ""))

    # --- notifications: from threads that answer no requests, since the kernel may wait for one of them ---

    def store(self, node: int, offset: int, data: Buffer) -> bool:
        """Put bytes of a file into the page cache; false where the kernel does not know the file (any more).

        The offset is a multiple of the page size, and the end is too or is the end of the file. Waits for
        pages that are being read, so not for the thread of `run`, nor for one that such a read needs. What is
        known to be read comes with that answer, and is left out: false too.
        """
        if self.pending and self._is_awaited(node, offset, offset + len(data)):
            return False
        record = STORE_OUT.pack(node, offset, len(data), 0)
        return self._notify(Notify.STORE, record, data)

    def invalidate_inode(self, node: int, offset: int = 0, length: int = 0) -> bool:
        """Let the kernel forget attributes and pages of a file."""
        return self._notify(Notify.INVAL_INODE, INVAL_INODE_OUT.pack(node, offset, length))

    def invalidate_entry(self, parent: int, name: bytes) -> bool:
        """Let the kernel forget a name; not from a handler, which may hold the folder's lock."""
        return self._notify(Notify.INVAL_ENTRY, INVAL_ENTRY_OUT.pack(parent, len(name), 0), name + b"\0")

    def resend(self) -> bool:
        """Ask for every request again that was read and not answered."""
        return self._notify(Notify.RESEND)

    def _notify(self, code: Notify, *buffers: Buffer) -> bool:
        size_bytes = _OUT_HEADER_BYTES + sum(map(len, buffers))
        try:
            os.writev(self.descriptor, [OUT_HEADER.pack(size_bytes, code, 0), *buffers])
        except OSError as failure:
            if failure.errno not in _UNWANTED:
                self.log(f"kernel refused {code.name.lower()}: {failure.strerror}")
            return False
        return True

    def _is_awaited(self, node: int, begin: int, end: int) -> bool:
        """Whether a read of these bytes waits for its answer."""
        for request in list(self.pending.values()):
            if request.node == node and request.opcode == Opcode.READ:
                _, offset, size_bytes, *_ = READ_IN.unpack_from(request.body)
                if offset < end and begin < offset + size_bytes:
                    return True
        return False

    def _keep(self, request: Request, data: bytes) -> None:
        self.pending[request.unique] = request
        if request.answered:  # by a thread that was faster than the line above
            self.pending.pop(request.unique, None)
        if self.journal is not None:
            self.journal.keep(request.unique, data)
            if request.sent:
                self.journal.answered(request.unique)

    def _interrupt(self, interrupt: Request) -> None:
        """Let a process go that is being killed; any other signal is no reason for a read to fail."""
        (unique,) = INTERRUPT_IN.unpack(interrupt.body)
        interrupt.answered = True  # an interrupt gets no answer
        request = self.pending.get(unique) or self.pending.get(unique | RESENT)
        if request is not None and _is_being_killed(request.pid):
            request.error(errno.EINTR)

    def _stopped(self) -> bool:
        try:
            os.eventfd_read(self._stop)
        except BlockingIOError:
            return False
        return True


def _nothing(request: Request) -> None:
    """A request that expects no answer: node ids are the index's, nobody counts them."""
    request.answered = True


def _empty(request: Request) -> None:
    request.reply(b"")


def _is_being_killed(pid: int) -> bool:
    """Whether the thread has SIGKILL pending: the kernel turns every deadly signal into that."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return False
    pending = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    return any(mask & 1 << 8 for mask in pending)
