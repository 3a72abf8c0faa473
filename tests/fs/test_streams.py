"""Streams told from random reads, and what is brought for each."""

from __future__ import annotations

import itertools
import random

from coldstart_fs.mounts.streams import LARGEST_STEP_BYTES, LARGEST_WINDOW_BYTES, Order, Stream, Streams

KIB, MIB = 1 << 10, 1 << 20
FILE = 500 * MIB
STEP = 128 * KIB
PLENTY = 1 << 40


class Reader:
    """Reads as the kernel asks: in steps of its read-ahead, each answered late unless `at_hand`."""

    def __init__(self, streams: Streams, *, number: int = 1, file_bytes: int = FILE) -> None:
        self.streams = streams
        self.number = number
        self.file_bytes = file_bytes
        self.used_bytes = 0
        self.most_ahead = 0

    def read(self, offset: int, length: int = STEP, *, at_hand: bool = False) -> Stream | None:
        length = min(length, self.file_bytes - offset)
        found = self.streams.saw(self.number, offset, length, self.file_bytes, at_hand=at_hand)
        if found is None:
            return None
        self.used_bytes += found[1]
        return found[0]

    def orders(
        self, offset: int, length: int = STEP, *, room_bytes: int = PLENTY, at_hand: bool = False
    ) -> Order | None:
        stream = self.read(offset, length, at_hand=at_hand)
        return None if stream is None else self.streams.order(stream, self.number, room_bytes)

    def follow(self, begin: int = 0, *, at_hand: bool = False) -> list[Order]:
        """Read to the end of the file: what was not pushed, and the pages that were left out."""
        made: list[Order] = []
        place = begin
        while place < self.file_bytes:
            brought = any(order.offset <= place < order.offset + order.length for order in made)
            stream = self.read(place, at_hand=at_hand or brought)
            while stream and (order := self.streams.order(stream, self.number, PLENTY)):
                made.append(order)
                self.streams.brought(order)
                self.most_ahead = max(self.most_ahead, stream.ahead - stream.next)
            place += STEP
            for pushed in made:
                if pushed.offset <= place < pushed.offset + pushed.length:
                    place = pushed.mark if place <= pushed.mark else pushed.offset + pushed.length
        return made


def test_a_stream_is_followed_to_the_end_with_growing_steps_and_nothing_twice() -> None:
    reader = Reader(Streams())
    orders = reader.follow()
    assert orders[0].offset <= 2 * MIB
    for order, following in itertools.pairwise(orders):
        assert 0 <= following.offset - (order.offset + order.length) <= MIB
    assert orders[-1].offset + orders[-1].length == FILE
    assert max(order.length for order in orders) == LARGEST_STEP_BYTES
    assert LARGEST_WINDOW_BYTES - LARGEST_STEP_BYTES <= reader.most_ahead <= LARGEST_WINDOW_BYTES


def test_who_stops_early_was_given_twice_what_was_read_at_most() -> None:
    reader = Reader(Streams())
    given = read = 0
    for place in range(0, 64 * MIB, STEP):
        stream = reader.read(place)
        read += STEP
        while stream and (order := reader.streams.order(stream, 1, PLENTY)):
            given = order.offset + order.length
        assert given - read <= 2 * read + MIB


def test_the_mark_is_in_the_middle_so_that_the_next_step_is_under_way_in_time() -> None:
    for order in Reader(Streams()).follow():
        assert order.offset < order.mark < order.offset + order.length


def test_what_was_pushed_counts_as_read_once_the_reader_is_beyond_it() -> None:
    reader = Reader(Streams())
    orders = reader.follow()
    pushed = sum(order.length for order in orders)
    assert reader.used_bytes >= pushed * 0.9


def test_random_reads_bring_nothing() -> None:
    choose = random.Random(1)
    reader = Reader(Streams())
    assert not any(reader.orders(choose.randrange(FILE // STEP) * STEP) for _ in range(300))


def test_reads_back_and_forth_in_one_place_bring_nothing() -> None:
    reader = Reader(Streams())
    assert not any(reader.orders(place * STEP) for place in (3, 2, 1, 2, 1, 0, 1, 2, 0, 1) * 20)


def test_reading_backwards_brings_nothing() -> None:
    reader = Reader(Streams())
    assert not any(reader.orders(place * STEP) for place in range(200, 0, -1))


def test_a_few_requests_that_overtake_each_other_are_a_stream_all_the_same() -> None:
    reader = Reader(Streams())
    places = [base + step for base in range(0, 20, 5) for step in (0, 2, 1, 4, 3)]
    assert any(reader.orders(place * STEP) for place in places)


def test_several_streams_in_one_file_are_followed_side_by_side() -> None:
    streams = Streams()
    readers = [Reader(streams) for _ in range(4)]
    made = [
        (begin, order)
        for step in range(16)
        for begin, reader in enumerate(readers)
        if (order := reader.orders(begin * 100 * MIB + step * STEP)) is not None
    ]
    assert {begin for begin, _ in made} == {0, 1, 2, 3}
    for begin, order in made:
        assert begin * 100 * MIB < order.offset < (begin + 1) * 100 * MIB


def test_streams_through_the_same_place_bring_it_once() -> None:
    streams = Streams()
    first = Reader(streams).follow()
    assert first
    assert Reader(streams).follow(at_hand=True) == []


def test_what_is_missing_again_is_brought_again() -> None:
    streams = Streams()
    Reader(streams).follow()
    again = Reader(streams)
    for place in range(0, FILE, STEP):
        again.read(place)  # none of it is at hand
    assert Reader(streams).follow()


def test_a_stream_of_what_is_at_hand_is_not_slow() -> None:
    reader = Reader(Streams())
    stream = None
    for place in range(20):
        stream = reader.read(place * STEP, at_hand=True)
    assert stream is not None
    assert not stream.slow
    assert reader.read(20 * STEP) is stream
    assert stream.slow


def test_the_first_read_of_a_known_section_is_a_stream_at_once() -> None:
    streams = Streams()
    reader = Reader(streams)
    assert reader.orders(0) is None
    begins = [70 * MIB + 4096, 300 * MIB + 123]
    streams.know_sections(1, begins)
    assert reader.orders(200 * MIB) is None
    for begin in begins:
        fault = (begin - 64 * KIB) // 4096 * 4096  # the kernel reads around the page
        order = reader.orders(fault)
        assert order is not None
        assert order.offset == fault + STEP
        assert order.length >= MIB


def test_there_is_no_order_without_room_for_it() -> None:
    reader = Reader(Streams())
    assert not any(reader.orders(place * STEP, room_bytes=MIB - 1) for place in range(50))
    order = reader.orders(50 * STEP, room_bytes=MIB)
    assert order is not None
    assert order.length <= MIB


def test_an_order_ends_with_the_file() -> None:
    reader = Reader(Streams(), file_bytes=3 * MIB + 5)
    orders = reader.follow()
    assert orders[-1].offset + orders[-1].length == 3 * MIB + 5


def test_no_more_is_remembered_than_is_bounded() -> None:
    streams = Streams()
    for number in range(1000):
        for place in range(100):
            Reader(streams, number=number).read(place * 10 * MIB % FILE)
    assert len(streams._files) <= 256
    assert all(len(file.streams) <= 16 for file in streams._files.values())
