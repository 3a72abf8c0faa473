"""Connections to HTTP servers, kept between requests."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the first look-up of a name would import it, maybe from behind our mount
import select
import socket
import ssl
import time
from collections import deque
from http.client import HTTPConnection, HTTPSConnection
from ssl import SSLContext
from threading import Lock
from typing import NamedTuple

_IDLE_SECONDS = 30.0


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
        if tls is not None:
            self.http: HTTPConnection = HTTPSConnection(
                origin.host, origin.port, timeout=connect_seconds, context=tls
            )
        else:
            self.http = HTTPConnection(origin.host, origin.port, timeout=connect_seconds)

    def connect(self, *, read_seconds: float) -> None:
        self.http.connect()
        assert self.http.sock is not None
        self.http.sock.settimeout(read_seconds)

    def interrupt(self) -> None:
        """Wake whoever reads from it, in another thread; its state is then good for nothing."""
        if (connected := self.http.sock) is not None:
            # the plain socket's: that of TLS would pull away what the reader uses
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def close(self) -> None:
        self.http.close()

    def still_open(self) -> bool:
        """An idle connection that has something to say says that it ends."""
        connected = self.http.sock
        if connected is None or time.monotonic() - self.idle_since > _IDLE_SECONDS:
            return False
        poll = select.poll()
        poll.register(connected, select.POLLIN | select.POLLHUP)
        return not poll.poll(0)


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
