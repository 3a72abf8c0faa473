"""Streams told from random reads, and what is brought for each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from coldstart_fs.mounts.streams import LARGEST_STEP_BYTES, LARGEST_WINDOW_BYTES, Order, Stream, Streams

KIB, MIB = 1 << 10, 1 << 20
FILE = 500 * MIB
STEP = 128 * KIB
PAGE = 4 * KIB
# what a fault reads below the one before: its page and 64 KiB before it
FAULT = 68 * KIB
PLENTY = 1 << 40


class Reader:
    """Reads as the kernel asks: in steps of its read-ahead, each answered late unless `at_hand`."""

    def __init__(self, streams: Streams, *, number: int = 1, file_bytes: int = FILE) -> None:
        self.streams = streams
        self.number = number
        self.file_bytes = file_bytes
        self.used: list[tuple[int, int]] = []
        self.most_ahead = 0

    def read(self, offset: int, length: int = STEP, *, at_hand: bool = False) -> Stream | None:
        length = min(length, self.file_bytes - offset)
        step = self.streams.saw(self.number, offset, length, self.file_bytes, at_hand=at_hand)
        if step is None:
            return None
        if step.used_bytes:
            self.used.append((step.used_offset, step.used_offset + step.used_bytes))
        return step.stream

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
            self._follow_one(made, place, STEP, at_hand=at_hand)
            place += STEP
            for pushed in made:
                if pushed.offset <= place < end_of(pushed):
                    place = min(page for page in (*left_out(pushed), end_of(pushed)) if page >= place)
        return made

    def follow_backwards(self, *, at_hand: bool = False) -> list[Order]:
        """The same from the end of the file to its beginning, which was read before."""
        self.read(0, at_hand=at_hand)
        made: list[Order] = []
        place = self.file_bytes
        while place > STEP:
            begin = max(place - FAULT, 0)
            self._follow_one(made, begin, place - begin, at_hand=at_hand)
            place = begin
            for pushed in made:
                if pushed.offset < place <= end_of(pushed):
                    ends = (page + PAGE for page in left_out(pushed))
                    place = max(end for end in (*ends, pushed.offset) if end <= place)
        return made

    def _follow_one(self, made: list[Order], offset: int, length: int, *, at_hand: bool) -> None:
        brought = any(order.offset <= offset < end_of(order) for order in made)
        stream = self.read(offset, length, at_hand=at_hand or brought)
        while stream and (order := self.streams.order(stream, self.number, PLENTY)):
            made.append(order)
            self.streams.brought(order)
            self.most_ahead = max(self.most_ahead, stream.ahead - stream.next)


def end_of(order: Order) -> int:
    return order.offset + order.length


def left_out(order: Order) -> list[int]:
    """The pages of an order that are not pushed."""
    pages = (mark // PAGE * PAGE for mark in order.marks)
    return [page for page in pages if order.offset <= page < end_of(order)]


def in_order(made: list[Order]) -> list[Order]:
    """Orders by their place, none of which may overlap."""
    made = sorted(made, key=lambda order: order.offset)
    assert all(end_of(order) <= following.offset for order, following in itertools.pairwise(made))
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


@pytest.mark.parametrize("file_bytes", [FILE, FILE - 1, FILE + PAGE + 5, 3 * MIB + 5])
def test_a_stream_that_goes_backwards_is_followed_to_the_beginning_in_the_same_way(file_bytes: int) -> None:
    reader = Reader(Streams(), file_bytes=file_bytes)
    orders = reader.follow_backwards()
    assert file_bytes - 3 * MIB < end_of(orders[0]) < file_bytes - MIB + FAULT
    for order, following in itertools.pairwise(orders):
        assert 0 <= order.offset - end_of(following) <= MIB
    assert orders[-1].offset == 0
    assert all(order.offset % MIB == 0 for order in orders)
    if file_bytes > 100 * MIB:
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
        assert order.offset < order.marks[0] < order.offset + order.length
    for order in Reader(Streams()).follow_backwards():
        assert order.offset < order.marks[0] < order.offset + order.length


def test_who_comes_to_the_end_of_the_way_asks_for_a_page() -> None:
    assert Reader(Streams()).follow()[-1].marks[1] == FILE - 1
    # backwards the first pages were most often read before all others
    assert Reader(Streams()).follow_backwards()[-1].marks[1:] == (STEP, 0)


@pytest.mark.parametrize("follow", [Reader.follow, Reader.follow_backwards])
def test_what_was_pushed_counts_as_read_once_the_reader_is_beyond_it(
    follow: Callable[[Reader], list[Order]],
) -> None:
    reader = Reader(Streams())
    orders = in_order(follow(reader))
    used = sorted(reader.used)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(used))
    assert orders[0].offset <= used[0][0] < used[-1][1] <= end_of(orders[-1])
    pushed = sum(order.length for order in orders)
    assert sum(end - begin for begin, end in used) >= pushed * 0.9


def test_a_reader_is_beyond_what_lies_behind_it_in_its_direction() -> None:
    for begin, behind, before in ((0, 0, 20 * STEP), (100, 101 * STEP, 0)):
        reader, stream = Reader(Streams()), None
        for step in range(10):
            stream = reader.read(abs(begin - step) * STEP)
        assert stream is not None
        assert stream.is_beyond(behind, STEP)
        assert not stream.is_beyond(before, STEP)


def test_random_reads_bring_nothing() -> None:
    choose = random.Random(1)
    reader = Reader(Streams())
    assert not any(reader.orders(choose.randrange(FILE // STEP) * STEP) for _ in range(300))


def test_reads_back_and_forth_in_one_place_bring_nothing() -> None:
    reader = Reader(Streams())
    assert not any(reader.orders(place * STEP) for place in (3, 2, 1, 2, 1, 0, 1, 2, 0, 1) * 20)


def test_random_faults_bring_nothing_in_either_direction() -> None:
    choose = random.Random(2)
    reader = Reader(Streams(), file_bytes=40 * MIB)
    places = [choose.randrange(40 * MIB // PAGE) * PAGE for _ in range(30)]
    assert not any(reader.orders(max(place - 64 * KIB, 0)) for place in places)


def test_a_few_requests_that_overtake_each_other_are_a_stream_all_the_same() -> None:
    reader = Reader(Streams())
    places = [base + step for base in range(0, 20, 5) for step in (0, 2, 1, 4, 3)]
    assert any(reader.orders(place * STEP) for place in places)
    assert any(reader.orders((1000 - place) * STEP) for place in places)


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


def test_streams_in_both_directions_are_followed_side_by_side() -> None:
    reader = Reader(Streams())
    made: list[list[Order]] = [[], []]
    for step in range(100):
        for way, place in enumerate((100 * MIB + step * STEP, 300 * MIB - step * STEP)):
            if (order := reader.orders(place)) is not None:
                made[way].append(order)
    assert all(100 * MIB < order.offset < 150 * MIB for order in made[0])
    assert all(250 * MIB < order.offset < 300 * MIB for order in made[1])
    assert all(sum(order.length for order in orders) > 20 * MIB for orders in made)


@pytest.mark.parametrize("backwards_first", [True, False])
def test_what_was_brought_in_one_direction_is_not_brought_again_in_the_other(
    *, backwards_first: bool
) -> None:
    streams = Streams()
    follow = [Reader(streams).follow, Reader(streams).follow_backwards]
    first, second = follow[::-1] if backwards_first else follow
    made = first()
    again = second(at_hand=True)
    in_order(made + again)
    assert sum(order.length for order in again) <= 3 * MIB  # where the first one began, and was not sure yet


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


def test_the_second_read_backwards_from_the_end_of_a_known_section_is_a_stream() -> None:
    streams = Streams()
    reader = Reader(streams, file_bytes=FILE - 100)
    assert reader.orders(0) is None
    streams.know_sections(1, [9, 70 * MIB + 4096, 300 * MIB + 123])
    for end in (70 * MIB + 4096, 300 * MIB + 123, FILE - 100):
        last = (end - 1) // PAGE * PAGE
        first = reader.orders(last - 64 * KIB)
        assert first is None or first.offset > end - 64 * KIB  # the next section begins there too
        order = reader.orders(last - 64 * KIB - FAULT, FAULT)
        assert order is not None
        assert end_of(order) == last - 64 * KIB - FAULT
        assert order.length >= MIB


def test_the_last_page_of_a_section_alone_brings_nothing_of_it() -> None:
    streams = Streams()
    reader = Reader(streams)
    reader.read(0)
    streams.know_sections(1, [9, 100 * MIB])
    fault = 100 * MIB - 64 * KIB
    made = [order for step in range(40) if (order := reader.orders(fault + step * STEP))]
    assert made
    assert all(order.offset > 100 * MIB for order in made)


def test_a_backward_copy_of_a_section_moves_no_stream_from_its_beginning() -> None:
    streams = Streams()
    reader = Reader(streams)
    reader.read(0)
    streams.know_sections(1, [9, 100 * MIB, 150 * MIB])
    fault = 100 * MIB - 64 * KIB
    forward = reader.read(fault)
    assert forward is not None
    while streams.order(forward, 1, PLENTY):
        pass
    place = forward.next
    for begin in range(150 * MIB - 64 * KIB, 100 * MIB, -FAULT):
        reader.read(begin, FAULT)
    assert forward.next == place


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
    assert all(len(way.streams) <= 16 for file in streams._files.values() for way in file.ways)
