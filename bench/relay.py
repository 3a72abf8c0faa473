"""The inside of `link`: what one end sends reaches the other when a network would have brought it."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from math import inf
from struct import Struct
from time import monotonic, time

from relay_loop import Loop

_LEAST_PIECE_BYTES, _LARGEST_PIECE_BYTES = 64 << 10, 256 << 10
_PIECE_SECONDS = 0.002  # a piece arrives with its last byte
_SEGMENT_BYTES = 1448
_FIRST_WINDOW_BYTES = 10 * _SEGMENT_BYTES
_LARGEST_WINDOW_BYTES = 6 << 20  # tcp_rmem's default end
_LEAST_QUEUE_SECONDS = 0.005
_SILENCE_SECONDS = 0.2
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h
_TIMESPEC = Struct("@ll")
_NOTE_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_READABLE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR


class Lane:
    """One direction of the link: bytes leave one after the other, at its rate."""

    def __init__(self, loop: Loop, rtt_seconds: float, bytes_per_second: float | None) -> None:
        rate = bytes_per_second or inf
        self.loop = loop
        self.delay_seconds = rtt_seconds / 2
        self.piece_bytes = int(min(max(rate * _PIECE_SECONDS, _LEAST_PIECE_BYTES), _LARGEST_PIECE_BYTES))
        self._rate = rate
        self._queue_seconds = max(_LEAST_QUEUE_SECONDS, rtt_seconds)
        self._free_at = 0.0
        self._waiting: deque[Flow] = deque()
        self._opens = False

    def book(self, size_bytes: int, came_at: float) -> float:
        """The time at which the last byte arrives."""
        self._free_at = max(came_at, self._free_at) + size_bytes / self._rate
        return self._free_at + self.delay_seconds

    def admits(self, now: float) -> bool:
        return not self._waiting and self._has_room(now)

    def line_up(self, flow: Flow) -> None:
        """Give the flow a turn when there is room again: first come, first served."""
        self._waiting.append(flow)
        if not self._opens:
            self._opens = True
            self.loop.at(self._half_empty_at(), self._open)

    def _has_room(self, now: float) -> bool:
        return self._free_at - now < self._queue_seconds

    def _half_empty_at(self) -> float:
        return self._free_at - self._queue_seconds / 2  # several pieces for one awakening

    def _open(self, now: float) -> None:
        while self._waiting and self._has_room(now):
            self._waiting.popleft().take_turn(now)
        self._opens = bool(self._waiting)
        if self._opens:
            self.loop.at(self._half_empty_at(), self._open)


def _while_connected(step: Callable[[Flow, float], None]) -> Callable[[Flow, float], None]:
    """A step that may be asked for too late, and whose error is the end of both directions."""

    @wraps(step)
    def guarded(flow: Flow, now: float) -> None:
        if not flow.connection.ended:
            try:
                step(flow, now)
            except OSError:
                flow.connection.end()

    return guarded


class Flow:
    """One direction of one connection: so much in flight, growing by what is acknowledged."""

    def __init__(
        self, connection: Connection, lane: Lane, source: socket.socket, target: socket.socket, now: float
    ) -> None:
        self.connection = connection
        self.ended = False
        self._loop, self._lane = lane.loop, lane
        self._source, self._target = source, target
        self._silence_seconds = _SILENCE_SECONDS + 2 * lane.delay_seconds
        self._window = _FIRST_WINDOW_BYTES
        self._in_flight = 0
        self._acknowledged_at = now
        self._arriving: deque[tuple[float, bytes | memoryview]] = deque()
        self._acknowledgements: deque[tuple[float, int]] = deque()
        self._readable = self._source_ends = self._source_ended = False
        self._lined_up = self._starved = self._blocked = False

    def source_changed(self, events: int, now: float) -> None:
        if events & _READABLE and not self._source_ended:
            self._readable = True
            self._source_ends = self._source_ends or bool(events & _ENDING)
            if not self._lined_up and not self._starved:
                self._pump(now)

    def target_changed(self, events: int, now: float) -> None:
        if self._blocked and events & _WRITABLE:
            self._blocked = False
            self._deliver(now)

    @_while_connected
    def _pump(self, now: float) -> None:
        """Take what the source has, as far as window and lane allow."""
        self._starved = False
        while self._may_take(now):
            if not self._lane.admits(now):
                self._line_up()
                return
            self._take(now)

    @_while_connected
    def take_turn(self, now: float) -> None:
        """Take one piece; the lane asks again after the others."""
        self._lined_up = False
        if self._may_take(now):
            self._take(now)
            if self._may_take(now):
                self._line_up()

    def _line_up(self) -> None:
        self._lined_up = True
        self._lane.line_up(self)

    def _may_take(self, now: float) -> bool:
        if not self._readable:
            return False
        self._hear_acknowledgements(now)
        if self._in_flight < self._window:
            return True
        self._starved = True
        if self._acknowledgements:
            self._loop.at(self._acknowledgements[0][0], self._pump)
        return False

    def _hear_acknowledgements(self, now: float) -> None:
        """Before they matter: as long as the window has room, they wake nobody."""
        heard = self._acknowledgements
        while heard and heard[0][0] <= now:
            self._acknowledged_at, size_bytes = heard.popleft()
            self._in_flight -= size_bytes
            self._window = min(_LARGEST_WINDOW_BYTES, self._window + size_bytes)
        if not self._in_flight and now - self._acknowledged_at > self._silence_seconds:
            self._window = _FIRST_WINDOW_BYTES

    def _take(self, now: float) -> None:
        wanted = min(self._lane.piece_bytes, self._window - self._in_flight)
        try:
            data, notes, _, _ = self._source.recvmsg(wanted, _NOTE_BYTES)
        except BlockingIOError:
            self._readable = False
            return
        self._source_ended = not data
        # less than wanted was all: what comes later is an event of its own, unless the end has been one
        self._readable = bool(data) and (len(data) == wanted or self._source_ends)
        self._in_flight += len(data)
        due = self._lane.book(len(data), self._came_at(notes, now))
        if not self._arriving:
            self._loop.at(due, self._deliver)
        self._arriving.append((due, data))

    def _came_at(self, notes: list[tuple[int, int, bytes]], now: float) -> float:
        """When the kernel got the bytes: waking up is no part of the delay."""
        if not notes:
            return now
        seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2])
        age = time() - seconds - nanoseconds / 1e9
        # what waited for the window left the source no sooner than that had room
        return max(monotonic() - age, self._acknowledged_at) if age > 0 else now

    @_while_connected
    def _deliver(self, now: float) -> None:
        while self._arriving:
            due, data = self._arriving[0]
            if due > now:
                self._loop.at(due, self._deliver)
                return
            if not data:
                self._end()
                return
            sent = self._send(data)
            if sent < len(data):
                self._arriving[0] = due, memoryview(data)[sent:]
                self._blocked = True
                return
            self._arriving.popleft()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            sent = self._target.send(data)
        except BlockingIOError:
            return 0
        self._acknowledgements.append((monotonic() + self._lane.delay_seconds, sent))
        if self._starved and len(self._acknowledgements) == 1:
            self._loop.at(self._acknowledgements[0][0], self._pump)
        return sent

    def _end(self) -> None:
        self.ended = True
        self._target.shutdown(socket.SHUT_WR)
        self.connection.end_after_both()


class Connection:
    """A client and, a round trip later, its server."""

    def __init__(self, relay: Relay, client: socket.socket) -> None:
        self.ended = False
        self._relay, self._loop = relay, relay.loop
        self._client, self._server = client, socket.socket()

    def connect(self, now: float) -> None:
        try:
            for end in (self._client, self._server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            with suppress(BlockingIOError):
                self._server.connect(self._relay.target)
        except OSError:
            self.end()
            return
        self._up = Flow(self, self._relay.up, self._client, self._server, now)
        self._down = Flow(self, self._relay.down, self._server, self._client, now)
        self._loop.watch(self._client, _EVENTS, self._client_changed)
        self._loop.watch(self._server, _EVENTS, self._server_changed)

    def _client_changed(self, events: int, now: float) -> None:
        self._up.source_changed(events, now)
        self._down.target_changed(events, now)

    def _server_changed(self, events: int, now: float) -> None:
        self._down.source_changed(events, now)
        self._up.target_changed(events, now)

    def end(self) -> None:
        self.ended = True
        self._loop.close(self._client)
        self._loop.close(self._server)

    def end_after_both(self) -> None:
        if self._up.ended and self._down.ended:
            self.end()


class Relay:
    """Accepts clients of the target."""

    def __init__(self, target: tuple[str, int], rtt_seconds: float, bytes_per_second: float | None) -> None:
        self.target = target
        self.loop = Loop()
        self.up = Lane(self.loop, rtt_seconds, bytes_per_second)
        self.down = Lane(self.loop, rtt_seconds, bytes_per_second)
        self._rtt_seconds = rtt_seconds

    def serve(self, listener: socket.socket) -> None:
        self._listener = listener
        self.loop.watch(listener, select.EPOLLIN, self._accept)
        self.loop.run()

    def _accept(self, _events: int, now: float) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # it may have left already
            client, _ = self._listener.accept()
            self.loop.at(now + self._rtt_seconds, Connection(self, client).connect)
