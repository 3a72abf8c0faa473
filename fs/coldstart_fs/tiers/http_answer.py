"""One answer of an HTTP/1 server: strict about what says where it ends, and about nothing else.

The standard library's client reads headers as those of mail, which takes longer than to verify a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

Receive = Callable[[memoryview], int]
"""Puts into a view what has come, at least a byte, and returns how much; 0 at the end of the connection."""

_HEAD_BYTES = 1 << 10
_LARGEST_HEAD_BYTES = 64 << 10
_LONGEST_LINE_BYTES = 4 << 10
_MOST_INTERIM = 8
_MOST_TRAILERS = 64
_HEAD_END = re.compile(rb"\n\r?\n")
_FOLD = re.compile(r"\n[ \t]+")
_BEGINNING = b"HTTP/1."
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?", re.ASCII)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_SWITCHING = 101


class BadAnswer(Exception):  # noqa: N818 - what came
    """No HTTP that we know."""


class Ended(ConnectionError):  # noqa: N818 - what happened
    """The connection ended before the answer did."""


class Answer:
    """A head that was read, and a body that is read as it is asked for."""

    def __init__(self, receive: Receive, *, room_bytes: int) -> None:
        """Read the head. A body of up to `room_bytes` then takes no copy."""
        self._receive = receive
        self._buffer = bytearray(_HEAD_BYTES + room_bytes)
        self._begin = self._end = 0
        """Where in the buffer what came and was not taken begins and ends."""
        self.status, self.headers, self._keeps = self._head()
        interim = 0
        while 100 <= self.status < 200 and self.status != _SWITCHING:  # another one follows
            interim += 1
            if interim > _MOST_INTERIM:
                raise BadAnswer
            self.status, self.headers, self._keeps = self._head()
        self.length = self._length()
        """What is left of the body; None where its end says how long it is."""
        self._chunk_bytes = 0
        self._is_over = self.length == 0

    @property
    def is_chunked(self) -> bool:
        return "transfer-encoding" in self.headers

    @property
    def leaves_open(self) -> bool:
        """Whether the connection is good for another request."""
        return self._keeps and self._is_over and self._begin == self._end

    def take(self, length: int) -> bytearray:
        """So many bytes of the body."""
        if length == self.length and self._begin + length <= len(self._buffer):
            return self._take_buffer(length)
        data = bytearray(length)
        view = memoryview(data)
        filled = 0
        while filled < length:
            count = self._some(view[filled:])
            if not count:
                raise Ended
            filled += count
        return data

    def _take_buffer(self, length: int) -> bytearray:
        begin, end = self._begin, self._begin + length
        self._fill(end)
        self._keeps = self._keeps and self._end == end  # else more came than was announced
        data, self._buffer = self._buffer, bytearray()
        self._begin = self._end = 0
        self._count(length)
        # neither moves what stays
        del data[end:]
        del data[:begin]
        return data

    def beginning(self, most_bytes: int) -> bytes:
        """What there is of the body, up to so many bytes; fewer where the connection ended before it."""
        data = bytearray(most_bytes)
        filled = 0
        with suppress(Ended):
            while filled < most_bytes and (count := self._some(memoryview(data)[filled:])):
                filled += count
        return bytes(data[:filled])

    def has_ended(self) -> bool:
        """Whether nothing is left of the body; a byte of it is lost where there is one."""
        return not self._some(memoryview(bytearray(1)))

    def _some(self, view: memoryview) -> int:
        """What comes next of the body; 0 at its end."""
        if self._is_over:
            return 0
        if self.is_chunked and not self._chunk_bytes and not self._next_chunk():
            return 0
        left = self._chunk_bytes if self.is_chunked else self.length
        if left is not None:
            view = view[:left]
        if self._begin < self._end:
            count = min(len(view), self._end - self._begin)
            view[:count] = memoryview(self._buffer)[self._begin : self._begin + count]
            self._begin += count
        else:
            count = self._receive(view)
        if not count:
            if left is not None:
                raise Ended
            self._is_over, self._keeps = True, False
        self._count(count)
        return count

    def _count(self, size_bytes: int) -> None:
        if self.is_chunked:
            self._chunk_bytes -= size_bytes
            if not self._chunk_bytes and self._line():
                raise BadAnswer
        elif self.length is not None:
            self.length -= size_bytes
            self._is_over = not self.length

    def _next_chunk(self) -> bool:
        match = _CHUNK.fullmatch(self._line())
        if match is None:
            raise BadAnswer
        self._chunk_bytes = int(match[1], 16)
        if not self._chunk_bytes:
            trailers = 0
            while self._line():  # what is said after the body is of no use
                trailers += 1
                if trailers > _MOST_TRAILERS:
                    raise BadAnswer
            self._is_over = True
        return not self._is_over

    def _head(self) -> tuple[int, dict[str, str], bool]:
        """Status, headers by their names in lower case, and whether the connection stays open."""
        while (end := _HEAD_END.search(self._buffer, self._begin, self._end)) is None:
            if self._end - self._begin > _LARGEST_HEAD_BYTES:
                raise BadAnswer
            self._fill(self._end + 1)
            came = bytes(self._buffer[self._begin : min(self._end, self._begin + len(_BEGINNING))])
            if not _BEGINNING.startswith(came):
                raise BadAnswer
        text = self._buffer[self._begin : end.start()].decode("latin-1").replace("\r\n", "\n").rstrip("\r")
        self._begin = end.end()
        first, *lines = (_FOLD.sub(" ", text) if "\n " in text or "\n\t" in text else text).split("\n")
        match = _STATUS.fullmatch(first)
        if match is None:
            raise BadAnswer
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.rstrip():  # a length that others would not see
                raise BadAnswer
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        said = headers.get("connection", "").lower()
        return int(match[2]), headers, "close" not in said if match[1] == "1" else "keep-alive" in said

    def _length(self) -> int | None:
        if self.status in {_SWITCHING, 204, 304}:
            return 0
        if self.is_chunked:
            if self.headers["transfer-encoding"].lower() != "chunked":
                raise BadAnswer
            return None
        said = self.headers.get("content-length")
        if said is None:
            return None
        if not (said.isascii() and said.isdigit() and len(said) < 20):
            raise BadAnswer  # two of them, which differ, too
        return int(said)

    def _line(self) -> bytes:
        if self._begin == self._end:
            self._begin = self._end = 0
        while (end := self._buffer.find(b"\n", self._begin, self._end)) < 0:
            if self._end - self._begin > _LONGEST_LINE_BYTES:
                raise BadAnswer
            self._fill(self._end + 1)
        line = bytes(self._buffer[self._begin : end])
        self._begin = end + 1
        return line.removesuffix(b"\r")

    def _fill(self, end: int) -> None:
        """Have the buffer filled up to a place of it, or further; what was taken gives way first."""
        if end > len(self._buffer) and self._begin:
            taken = self._begin
            del self._buffer[:taken]
            self._begin, self._end, end = 0, self._end - taken, end - taken
        if end > len(self._buffer):
            self._buffer += bytes(max(end, 2 * len(self._buffer)) - len(self._buffer))
        while self._end < end:
            count = self._receive(memoryview(self._buffer)[self._end :])
            if not count:
                raise Ended
            self._end += count
