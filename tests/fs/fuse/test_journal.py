"""What a server's successor finds of the requests that were read and not answered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from coldstart_fs.fuse.journal import Journal, has_gaps, make_journal
from coldstart_fs.fuse.protocol import IN_HEADER, REQUEST_BUFFER_BYTES, Opcode


def request(unique: int, body: bytes = b"body", opcode: Opcode = Opcode.READ) -> bytes:
    return IN_HEADER.pack(IN_HEADER.size + len(body), opcode, unique, 1, 0, 0, 0, 0, 0) + body


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_journal()
    yield descriptor
    os.close(descriptor)


def opened(memory: int) -> Journal:
    journal = Journal(memory)
    journal.inherit()
    return journal


def left(memory: int) -> set[bytes]:
    return set(Journal(memory).inherit())


def read(journal: Journal, data: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, data)
    assert journal.read(reading) == data
    os.close(reading)
    os.close(writing)


def test_the_request_at_hand_is_left_until_the_next_is_read(memory: int) -> None:
    journal = opened(memory)
    read(journal, request(2, b"x" * 5000))
    read(journal, request(4))
    assert left(memory) == {request(4)}


def test_what_is_kept_is_left_until_it_is_answered(memory: int) -> None:
    journal = opened(memory)
    for unique in range(2, 22, 2):
        read(journal, request(unique))
        journal.keep(unique, request(unique))
    for unique in range(2, 18, 2):
        journal.answered(unique)
    read(journal, request(100))
    assert left(memory) == {request(18), request(20), request(100)}
    assert not has_gaps(memory)


def test_an_answer_to_what_was_not_kept_changes_nothing(memory: int) -> None:
    journal = opened(memory)
    journal.answered(2)
    read(journal, request(4))
    journal.keep(4, request(4))
    journal.answered(4)
    journal.answered(4)
    assert left(memory) == {request(4)}, "the request at hand"


def test_what_finds_no_room_is_a_gap_until_it_is_answered(memory: int) -> None:
    journal = opened(memory)
    journal.keep(2, request(2, b"x" * 300))
    assert has_gaps(memory)
    journal.answered(2)
    assert not has_gaps(memory)
    for unique in range(2, 2 * 1024 + 2, 2):
        journal.keep(unique, request(unique))
    assert not has_gaps(memory)
    journal.keep(9999, request(9999))
    assert has_gaps(memory)
    journal.answered(2)
    journal.answered(9999)
    assert not has_gaps(memory)
    assert len(left(memory)) == 1023
    assert not has_gaps(memory)


def test_what_a_successor_inherits_stays_until_it_has_answered_it(memory: int) -> None:
    journal = opened(memory)
    journal.keep(2, request(2))
    read(journal, request(6))
    assert left(memory) == {request(2), request(6)}
    successor = Journal(memory)
    assert set(successor.inherit()) == {request(2), request(6)}, "also after a death on the way"
    successor.keep(2, request(2))
    successor.keep(4, request(4))
    successor.answered(2)
    successor.answered(6)
    assert left(memory) == {request(4)}


@pytest.mark.parametrize("opcode", [Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT])
def test_what_expects_no_answer_is_not_left(memory: int, opcode: Opcode) -> None:
    read(opened(memory), request(2, opcode=opcode))
    assert left(memory) == set()


def test_half_a_request_is_none(memory: int) -> None:
    opened(memory)
    for length in (0, 1, IN_HEADER.size - 1, 1 << 31):
        for place in (4096, 4096 + REQUEST_BUFFER_BYTES):
            os.pwrite(memory, length.to_bytes(4, "little"), place)
        assert left(memory) == set()
