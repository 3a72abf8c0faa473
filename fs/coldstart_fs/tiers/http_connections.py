"""Connections to HTTP servers, kept between requests."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the first look-up of a name would import it, maybe from behind our mount
import select
import socket
import ssl
import time
from collections import deque
from ssl import SSLContext
from threading import Lock
from typing import NamedTuple

_IDLE_SECONDS = 30.0
_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None


class Connection:
    """One connection; `used` tells whether it has carried an answer before."""

    def __init__(self, origin: Origin, *, connect_seconds: float, tls: SSLContext | None) -> None:
        self.origin = origin
        self.used = False
        self.idle_since = 0.0
        self.socket: socket.socket | None = None
        self._tls = tls
        self._seconds = connect_seconds
        self._idle = select.poll()

    def connect(self) -> None:
        port = _PORTS[self.origin.scheme] if self.origin.port is None else self.origin.port
        connected = socket.create_connection((self.origin.host, port), self._seconds)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_hostname=self.origin.host)
        except BaseException:
            connected.close()
            raise
        self._idle.register(connected, select.POLLIN | select.POLLHUP)
        self.socket = connected

    def send(self, data: bytes, *, seconds: float) -> None:
        self._waiting(seconds).sendall(data)

    def receive(self, view: memoryview, *, seconds: float) -> int:
        """What has come, at least a byte; 0 at the end of the connection, `TimeoutError` after a silence."""
        return self._waiting(seconds).recv_into(view)

    def _waiting(self, seconds: float) -> socket.socket:
        assert self.socket is not None
        if seconds != self._seconds:
            self.socket.settimeout(seconds)
            self._seconds = seconds
        return self.socket

    def interrupt(self) -> None:
        """Wake whoever reads from it, in another thread; its state is then good for nothing."""
        if (connected := self.socket) is not None:
            # the plain socket's: that of TLS would pull away what the reader uses
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def close(self) -> None:
        connected, self.socket = self.socket, None
        if connected is not None:
            connected.close()

    def still_open(self) -> bool:
        """An idle connection that has something to say says that it ends."""
        if self.socket is None or time.monotonic() - self.idle_since > _IDLE_SECONDS:
            return False
        return not self._idle.poll(0)


class Connections:
    """Idle connections by origin, the latest used first. Thread-safe."""

    def __init__(self, *, most_idle: int) -> None:
        self._most_idle = most_idle
        self._idle: dict[Origin, deque[Connection]] = {}
        self._tls: SSLContext | None = None
        self._closed = False
        self._lock = Lock()

    def idle(self, origin: Origin) -> Connection | None:
        while True:
            with self._lock:
                kept = self._idle.get(origin)
                if not kept:
                    return None
                connection = kept.pop()
            if connection.still_open():
                return connection
            connection.close()

    def new(self, origin: Origin, *, connect_seconds: float) -> Connection:
        """One that is still to be connected."""
        tls = self._trusted() if origin.scheme == "https" else None
        return Connection(origin, connect_seconds=connect_seconds, tls=tls)

    def _trusted(self) -> SSLContext:
        """Made once: to read all authorities takes milliseconds."""
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
                # CPython 3.13 wants what many private authorities leave out; the client of stores does not
                self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
            return self._tls

    def keep(self, connection: Connection) -> None:
        connection.used = True
        connection.idle_since = time.monotonic()
        with self._lock:
            kept = self._idle.setdefault(connection.origin, deque())
            kept.append(connection)
            # who was under way when all others were ended comes back last
            oldest = kept.popleft() if self._closed or len(kept) > self._most_idle else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """End those that are idle now, and each that comes back."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()
