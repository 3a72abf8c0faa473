"""Which reads are streams, and what a stream will want next; no input or output of its own.

A stream is told from random faults by where its reads are: each begins near where the last one ended. What
is pushed into the page cache for it is never asked for, so one page in the middle of it is left out, and the
last page of the file: whoever comes there asks, and thereby says how far it is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

SMALLEST_FILE_BYTES = 1 << 20
# what must have been read in a row: a fault reads 128 KiB around its page
SURE_BYTES = 1 << 20
# what a section's first page is worth
SECTION_RUN_BYTES = 4 << 20
LARGEST_WINDOW_BYTES = 32 << 20
SMALLEST_STEP_BYTES = 1 << 20
LARGEST_STEP_BYTES = 8 << 20
# requests overtake each other, and skip what the kernel has
_NEAR_BYTES = 256 << 10
_SEGMENT_BYTES = 1 << 20
_MOST_STREAMS = 16
_MOST_FILES = 256
_UNTOUCHED, _ON_ITS_WAY, _BROUGHT = range(3)


class Order(NamedTuple):
    """A range of a file to be brought before it is asked for; the page at `mark` is not to be pushed."""

    number: int
    offset: int
    length: int
    mark: int


@dataclass(slots=True, eq=False)
class Stream:
    """One reader's way through a file: `next` is where it is, `ahead` how far the orders are.

    `slow`: what it wants takes longer to come than to be copied.
    """

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


@dataclass(slots=True)
class _File:
    """The streams through one file, the latest first, and what was brought of each megabyte."""

    size_bytes: int
    segments: bytearray
    streams: list[Stream] = field(default_factory=list)
    # where a read is the beginning of a stream for sure, sorted
    sections: list[int] = field(default_factory=list)

    def begins_section(self, offset: int, end: int) -> bool:
        """Whether a section begins in a range; a fault reads around its page."""
        place = bisect_left(self.sections, offset)
        return place < len(self.sections) and self.sections[place] < end


class Streams:
    """The streams of all files. `saw` and `order` are for one thread, the rest is for any."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}

    def saw(
        self, number: int, offset: int, length: int, file_bytes: int, *, at_hand: bool
    ) -> tuple[Stream, int] | None:
        """The stream that a read belongs to, and how much of what was pushed for it was used before."""
        file = self._files.get(number)
        if file is None:
            file = self._begin(number, file_bytes)
        if not at_hand and file.segments[offset // _SEGMENT_BYTES] == _BROUGHT:
            file.segments[offset // _SEGMENT_BYTES] = _UNTOUCHED  # and is gone again, the cache being full
        end, streams = offset + length, file.streams
        for stream in streams:
            if stream.next - _NEAR_BYTES <= offset <= stream.ahead + _NEAR_BYTES:
                break
        else:
            stream = Stream(end, length, end, slow=not at_hand)
            streams.insert(0, stream)
            del streams[_MOST_STREAMS:]
            if not file.begins_section(offset, end):
                return None
            stream.run_bytes = SECTION_RUN_BYTES
            return stream, 0
        if stream is not streams[0]:
            streams.remove(stream)
            streams.insert(0, stream)
        if not at_hand:
            stream.slow = True
        if end <= stream.next:
            return None
        used_bytes = max(0, min(offset, stream.ahead) - stream.next)
        stream.run_bytes += end - max(stream.next, offset) + used_bytes
        stream.next = end
        stream.ahead = max(stream.ahead, end)
        return stream, used_bytes

    def order(self, stream: Stream, number: int, room_bytes: int) -> Order | None:
        """What to bring for a stream now, at most `room_bytes`; None while it needs nothing."""
        step = min(stream.window_bytes // 2, LARGEST_STEP_BYTES, room_bytes)
        ahead_bytes = stream.ahead - stream.next
        is_sure = stream.run_bytes >= SURE_BYTES and step >= SMALLEST_STEP_BYTES
        if not is_sure or ahead_bytes + step > stream.window_bytes:
            return None
        file = self._files[number]
        first, last = stream.ahead // _SEGMENT_BYTES, len(file.segments)
        while first < last and file.segments[first] != _UNTOUCHED:
            first += 1
        end = first
        while end < last and file.segments[end] == _UNTOUCHED and (end - first) * _SEGMENT_BYTES < step:
            end += 1
        offset = max(stream.ahead, first * _SEGMENT_BYTES)
        length = min(end * _SEGMENT_BYTES, file.size_bytes) - offset
        if length <= 0:
            return None
        file.segments[first:end] = bytes([_ON_ITS_WAY]) * (end - first)
        stream.ahead = offset + length
        return Order(number, offset, length, offset + length // 2)

    def is_new(self, number: int) -> bool:
        """Whether nothing of the file was seen yet."""
        return number not in self._files

    def know_sections(self, number: int, sections: list[int]) -> None:
        """Hear where parts of a file begin that are read whole or not at all."""
        file = self._files.get(number)
        if file is not None:
            file.sections = sections

    def brought(self, order: Order) -> None:
        """An order has ended."""
        file = self._files.get(order.number)
        if file is not None:
            first, end = order.offset // _SEGMENT_BYTES, -(-(order.offset + order.length) // _SEGMENT_BYTES)
            file.segments[first:end] = bytes([_BROUGHT]) * (end - first)

    def _begin(self, number: int, file_bytes: int) -> _File:
        while len(self._files) >= _MOST_FILES:
            del self._files[next(iter(self._files))]
        file = self._files[number] = _File(file_bytes, bytearray(-(-file_bytes // _SEGMENT_BYTES)))
        return file
