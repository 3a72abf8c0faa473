"""Which reads are streams, and what a stream will want next; no input or output of its own.

A stream is told from random faults by where its reads are: each begins near where the last one ended. Or each
ends near where the last one began: glibc's memmove copies a mapped file backwards where source and target are
nearly alike modulo 4 KiB. A backward stream is a forward one through the mirrored file.

What is pushed into the page cache for a stream is never asked for, so one page in the middle of it is left
out, and one at the end of the way: whoever comes there asks, and thereby says how far it is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

SMALLEST_FILE_BYTES = 1 << 20
# what must have been read in a row: a fault reads 128 KiB around its page
SURE_BYTES = 1 << 20
# what a section's first page is worth, and backwards its last one
SECTION_RUN_BYTES = 4 << 20
LARGEST_WINDOW_BYTES = 32 << 20
SMALLEST_STEP_BYTES = 1 << 20
LARGEST_STEP_BYTES = 8 << 20
# requests overtake each other, and skip what the kernel has
_NEAR_BYTES = 256 << 10
# what a fault in a file's first page reads; it comes first, also from a copy that goes backwards
_FIRST_FAULT_BYTES = 128 << 10
_SEGMENT_BYTES = 1 << 20
_MOST_STREAMS = 16
_MOST_FILES = 256
_UNTOUCHED, _ON_ITS_WAY, _BROUGHT = range(3)


class Order(NamedTuple):
    """A range of a file to be brought before it is asked for; the pages at `marks` are not to be pushed."""

    number: int
    offset: int
    length: int
    marks: tuple[int, ...]


class Step(NamedTuple):
    """A stream that a read takes further, and what was used before of what was pushed for it."""

    stream: Stream
    used_offset: int = 0
    used_bytes: int = 0


def _turned(offset: int, length: int, turn: int) -> int:
    """Where a range begins for a stream with this `turn`, and back."""
    return turn - offset - length if turn else offset


@dataclass(slots=True, eq=False)
class Stream:
    """One reader's way through a file: `next` is where it is, `ahead` how far the orders are.

    `turn`: the place from which both count down, for a reader that goes backwards; else 0.
    `slow`: what it wants takes longer to come than to be copied.
    """

    turn: int
    next: int
    run_bytes: int
    ahead: int
    slow: bool = False

    @property
    def window_bytes(self) -> int:
        """How far ahead of the reader to be: twice as far as it has come."""
        return min(2 * self.run_bytes, LARGEST_WINDOW_BYTES)

    def is_fast(self) -> None:
        """What was brought for it was in memory."""
        self.slow = False
        self.run_bytes = SURE_BYTES

    def is_beyond(self, offset: int, length: int) -> bool:
        """Whether the reader has left a range of the file behind."""
        return self.next >= _turned(offset, length, self.turn) + length

    def move(self, offset: int, end: int) -> Step | None:
        """Hear of a read near it, as it counts; None while it is not sure to be a stream."""
        begin = self.next
        if end <= begin:
            return None
        used_bytes = max(0, min(offset, self.ahead) - begin)
        self.run_bytes += end - max(begin, offset) + used_bytes
        self.next = end
        self.ahead = max(self.ahead, end)
        if self.run_bytes < SURE_BYTES:
            return None
        return Step(self, _turned(begin, used_bytes, self.turn), used_bytes)


@dataclass(slots=True)
class _Way:
    """The streams through one file in one direction, the latest first; places are as they count."""

    turn: int
    streams: list[Stream] = field(default_factory=list)
    # where a read is the beginning of a stream for sure, sorted
    sections: list[int] = field(default_factory=list)

    def near(self, offset: int, *, at_hand: bool) -> Stream | None:
        """The stream that a read belongs to."""
        streams = self.streams
        for stream in streams:
            if stream.next - _NEAR_BYTES <= offset <= stream.ahead + _NEAR_BYTES:
                break
        else:
            return None
        if stream is not streams[0]:
            streams.remove(stream)
            streams.insert(0, stream)
        if not at_hand:
            stream.slow = True
        return stream

    def begin(self, offset: int, end: int, *, at_hand: bool) -> Step | None:
        """Remember a read that belongs to no stream; None unless a section begins in it."""
        stream = Stream(self.turn, end, end - offset, end, slow=not at_hand)
        self.streams.insert(0, stream)
        del self.streams[_MOST_STREAMS:]
        place = bisect_left(self.sections, offset)  # a fault reads around its page
        if place == len(self.sections) or self.sections[place] >= end:
            return None
        stream.run_bytes = SECTION_RUN_BYTES
        return Step(stream)


class _File:
    """The streams through one file, and what was brought of each megabyte.

    `ways`: its two directions, first the one in which the last stream went.
    """

    __slots__ = ("segments", "size_bytes", "ways")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.segments = bytearray(-(-size_bytes // _SEGMENT_BYTES))
        self.ways = (_Way(0), _Way(len(self.segments) * _SEGMENT_BYTES))

    def mark(self, offset: int, length: int, state: int) -> None:
        """Note what became of a range."""
        first, end = offset // _SEGMENT_BYTES, -(-(offset + length) // _SEGMENT_BYTES)
        self.segments[first:end] = bytes([state]) * (end - first)


class Streams:
    """The streams of all files. `saw` and `order` are for one thread, the rest is for any."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}

    def saw(self, number: int, offset: int, length: int, file_bytes: int, *, at_hand: bool) -> Step | None:
        """Hear of a read; None while it belongs to nothing that is sure to be a stream."""
        file = self._files.get(number)
        if file is None:
            file = self._begin(number, file_bytes)
        if not at_hand and file.segments[offset // _SEGMENT_BYTES] == _BROUGHT:
            file.segments[offset // _SEGMENT_BYTES] = _UNTOUCHED  # and is gone again, the cache being full
        strange = []
        for way in file.ways:
            place = _turned(offset, length, way.turn)
            stream = way.near(place, at_hand=at_hand)
            if stream is None:
                strange.append((way, place))
            elif step := stream.move(place, place + length):
                if way is not file.ways[0]:
                    file.ways = file.ways[::-1]  # a thread may be going through the old ones
                return step
        first = None
        for way, place in strange:
            step = way.begin(place, place + length, at_hand=at_hand)
            # backwards the second read says so: the last page of a tensor is the first of the next one too,
            # and every copy, whichever way it goes, begins with a look at both ends
            if not way.turn:
                first = step
        return first

    def order(self, stream: Stream, number: int, room_bytes: int) -> Order | None:
        """What to bring for a stream now, at most `room_bytes`; None while it needs nothing."""
        step = min(stream.window_bytes // 2, LARGEST_STEP_BYTES, room_bytes)
        ahead_bytes = stream.ahead - stream.next
        is_sure = stream.run_bytes >= SURE_BYTES and step >= SMALLEST_STEP_BYTES
        if not is_sure or ahead_bytes + step > stream.window_bytes:
            return None
        file = self._files[number]
        segments = file.segments[::-1] if stream.turn else file.segments
        first, last = stream.ahead // _SEGMENT_BYTES, len(segments)
        while first < last and segments[first] != _UNTOUCHED:
            first += 1
        end = first
        while end < last and segments[end] == _UNTOUCHED and (end - first) * _SEGMENT_BYTES < step:
            end += 1
        begin = max(stream.ahead, first * _SEGMENT_BYTES)
        length = min(end * _SEGMENT_BYTES, stream.turn or file.size_bytes) - begin
        if length <= 0:
            return None
        stream.ahead = begin + length
        offset = _turned(begin, length, stream.turn)
        file.mark(offset, length, _ON_ITS_WAY)
        # backwards the first page is most often there before; else it is where the way ends
        last_marks = (_FIRST_FAULT_BYTES, 0) if stream.turn else (file.size_bytes - 1,)
        return Order(number, offset, length, (offset + length // 2, *last_marks))

    def is_new(self, number: int) -> bool:
        """Whether nothing of the file was seen yet."""
        return number not in self._files

    def know_sections(self, number: int, sections: list[int]) -> None:
        """Hear where parts of a file begin that are read whole or not at all; each ends with the next."""
        file = self._files.get(number)
        if file is not None:
            backward_sections = [file.size_bytes, *sections[:0:-1]]
            for way in file.ways:
                way.sections = [way.turn - end for end in backward_sections] if way.turn else sections

    def brought(self, order: Order) -> None:
        """An order has ended."""
        file = self._files.get(order.number)
        if file is not None:
            file.mark(order.offset, order.length, _BROUGHT)

    def _begin(self, number: int, file_bytes: int) -> _File:
        while len(self._files) >= _MOST_FILES:
            del self._files[next(iter(self._files))]
        file = self._files[number] = _File(file_bytes)
        return file
