"""The request loop: every request has one answer, and nothing that comes ends it."""

from __future__ import annotations

import errno
import os
import random
from threading import Thread

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.fuse.protocol import IN_HEADER, INTERRUPT_IN, READ_IN, RESENT, STORE_OUT, Notify, Opcode
from coldstart_fs.fuse.session import Ended, Handler, Request
from conftest import wait_until
from fs.fuse.kernel_end import connection, serving


def say(text: bytes) -> dict[int, Handler]:
    return {Opcode.LOOKUP: lambda request: request.reply(text)}


def test_an_answer_carries_the_number_of_its_request() -> None:
    with serving({Opcode.LOOKUP: lambda request: request.reply(request.body)}) as kernel:
        for unique in (2, 4, RESENT | 6):
            kernel.ask(Opcode.LOOKUP, b"name\0", unique=unique)
            answer = kernel.answer()
            assert (answer.unique, answer.error, answer.body) == (unique, 0, b"name\0")


def test_several_buffers_are_one_answer() -> None:
    big = os.urandom(100_000)
    with serving(
        {Opcode.READ: lambda request: request.reply(b"a", memoryview(big), bytearray(b"z"))}
    ) as kernel:
        kernel.ask(Opcode.READ)
        assert kernel.answer().body == b"a" + big + b"z"


def test_an_unknown_request_is_answered_enosys() -> None:
    with serving({}) as kernel:
        for opcode in (Opcode.OPEN, Opcode.STATX, 9999):
            kernel.ask(opcode, bytes(64))
            assert kernel.answer().error == errno.ENOSYS


@pytest.mark.parametrize(
    "failure", [ZeroDivisionError("oops"), OSError(5, "bad"), DataError("index is damaged")]
)
def test_a_handler_that_raises_is_answered_eio_and_the_next_request_is_served(failure: Exception) -> None:
    def fail(_: Request) -> None:
        raise failure

    log: list[str] = []
    with serving(
        {Opcode.GETATTR: fail, Opcode.STATFS: lambda request: request.reply(b"fine")}, log
    ) as kernel:
        kernel.ask(Opcode.GETATTR)
        assert kernel.answer().error == errno.EIO
        kernel.ask(Opcode.STATFS)
        assert kernel.answer().body == b"fine"
        assert kernel.session.failures == 1
    assert log == [f"getattr of node 1 failed, answered EIO: {failure}"]


def test_a_handler_that_raises_after_its_answer_answers_once() -> None:
    def fail(request: Request) -> None:
        request.reply(b"done")
        raise ValueError("too late")

    with serving({Opcode.LOOKUP: fail}) as kernel:
        kernel.ask(Opcode.LOOKUP)
        assert kernel.answer().body == b"done"
        kernel.ask(9999)
        assert kernel.answer().error == errno.ENOSYS


def test_a_request_may_be_answered_later_from_another_thread() -> None:
    kept: list[Request] = []
    with serving({Opcode.READ: kept.append, **say(b"now")}) as kernel:
        kernel.ask(Opcode.READ, unique=10)
        kernel.ask(Opcode.LOOKUP, unique=12)
        assert (kernel.answer().unique, len(kernel.session.pending)) == (12, 1)
        later = Thread(target=kept[0].reply, args=(b"later",))
        later.start()
        later.join()
        answer = kernel.answer()
        assert (answer.unique, answer.body, kernel.session.pending) == (10, b"later", {})


def test_many_threads_answer_at_once_and_every_request_gets_its_own() -> None:
    def in_thread(request: Request) -> None:
        Thread(target=request.reply, args=(request.body * 50,)).start()

    with serving({Opcode.READ: in_thread}) as kernel:
        for unique in range(2, 202, 2):
            kernel.ask(Opcode.READ, str(unique).encode(), unique=unique)
        answers = [kernel.answer() for _ in range(100)]
    assert {answer.unique: answer.body for answer in answers} == {
        unique: str(unique).encode() * 50 for unique in range(2, 202, 2)
    }
    assert not kernel.session.pending


@pytest.mark.parametrize("opcode", [Opcode.FORGET, Opcode.BATCH_FORGET])
def test_what_is_forgotten_gets_no_answer(opcode: Opcode) -> None:
    with serving(say(b"next")) as kernel:
        kernel.ask(opcode, bytes(32))
        kernel.ask(Opcode.LOOKUP)
        assert kernel.answer().body == b"next"
        assert not kernel.session.pending


def test_destroy_is_answered() -> None:
    with serving({}) as kernel:
        kernel.ask(Opcode.DESTROY)
        answer = kernel.answer()
        assert (answer.error, answer.body) == (0, b"")


def test_a_frame_that_is_cut_short_or_lies_about_its_length_is_survived() -> None:
    good = IN_HEADER.pack(IN_HEADER.size, Opcode.LOOKUP, 8, 1, 0, 0, 0, 0, 0)
    lying = IN_HEADER.pack(IN_HEADER.size + 100, Opcode.LOOKUP, 6, 1, 0, 0, 0, 0, 0)
    with serving(say(b"good")) as kernel:
        for length in (1, 7, IN_HEADER.size - 1):
            kernel.send(good[:length])
        kernel.send(lying)
        kernel.send(good)
        assert (kernel.answer().error, kernel.answer().body) == (errno.EIO, b"good")


def test_noise_on_the_descriptor_ends_nothing() -> None:
    make = random.Random(5)
    with serving(say(b"still here")) as kernel:
        for _ in range(300):
            kernel.send(make.randbytes(make.randrange(1, 200)))
        kernel.ask(Opcode.LOOKUP, unique=77)
        answer = kernel.answer()
        while answer.unique != 77:
            answer = kernel.answer()
        assert answer.body == b"still here"


def test_it_ends_when_it_is_stopped_and_when_the_other_end_is_gone() -> None:
    with serving({}) as kernel:
        kernel.session.stop()
        wait_until(lambda: kernel.ended == [Ended.STOPPED], "the end of the loop")
    with serving({}) as kernel:
        kernel.socket.close()
        wait_until(lambda: kernel.ended == [Ended.UNMOUNTED], "the end of the loop")


def test_a_request_that_came_before_the_stop_is_read_by_the_successor() -> None:
    with connection() as kernel:
        kernel.ask(Opcode.LOOKUP)
        kernel.session.stop()
        assert kernel.session.run(say(b"old")) == Ended.STOPPED
        Thread(target=kernel.session.run, args=(say(b"new"),)).start()
        assert kernel.answer().body == b"new"
        kernel.session.stop()


# --- interrupts ---


def test_an_interrupt_does_not_fail_the_read_of_a_process_that_lives_on() -> None:
    kept: list[Request] = []
    with serving({Opcode.READ: kept.append, **say(b"next")}) as kernel:
        kernel.ask(Opcode.READ, unique=10, pid=os.getpid())
        kernel.ask(Opcode.INTERRUPT, INTERRUPT_IN.pack(10), unique=11)
        kernel.ask(Opcode.LOOKUP, unique=12)
        assert kernel.answer().unique == 12
        kept[0].reply(b"bytes")
        assert kernel.answer().body == b"bytes"


@pytest.mark.parametrize("unique", [10, RESENT | 10])
def test_an_interrupt_lets_a_process_go_that_is_being_killed(
    monkeypatch: pytest.MonkeyPatch, unique: int
) -> None:
    monkeypatch.setattr("coldstart_fs.fuse.session._is_being_killed", lambda pid: pid == 4711)
    with serving({Opcode.READ: lambda _: None}) as kernel:
        kernel.ask(Opcode.READ, unique=unique, pid=4711)
        kernel.ask(Opcode.INTERRUPT, INTERRUPT_IN.pack(10), unique=11)
        answer = kernel.answer()
        assert (answer.unique, answer.error, kernel.session.pending) == (unique, errno.EINTR, {})


def test_an_interrupt_of_what_was_answered_already_is_nothing() -> None:
    with serving(say(b"answer")) as kernel:
        kernel.ask(Opcode.INTERRUPT, INTERRUPT_IN.pack(10), unique=11)
        kernel.ask(Opcode.INTERRUPT, b"short", unique=13)  # answered EIO, like any request that is broken
        kernel.ask(Opcode.LOOKUP, unique=14)
        assert [kernel.answer().unique for _ in range(2)] == [13, 14]


# --- notifications ---


def test_bytes_are_pushed_as_one_message() -> None:
    with connection() as kernel:
        assert kernel.session.store(7, 8192, memoryview(b"content"))
        answer = kernel.answer()
        assert (answer.unique, -answer.error) == (0, Notify.STORE)
        assert STORE_OUT.unpack_from(answer.body) == (7, 8192, 7, 0)
        assert answer.body[STORE_OUT.size :] == b"content"


def test_bytes_that_a_read_waits_for_are_not_pushed_before_its_answer() -> None:
    """The kernel would hold the thread until then, and with it a server that is killed."""
    kept: list[Request] = []
    body = READ_IN.pack(0, 8192, 4096, 0, 0, 0, 0)
    with serving({Opcode.READ: kept.append}) as kernel:
        kernel.ask(Opcode.READ, body, node=7)
        wait_until(lambda: bool(kernel.session.pending), "the read")
        assert not kernel.session.store(7, 8192, b"content")
        assert not kernel.session.store(7, 0, bytes(8193))
        for node, offset, data in ((7, 0, bytes(8192)), (7, 12288, b"x"), (6, 8192, b"x")):
            assert kernel.session.store(node, offset, data)
            assert -kernel.answer().error == Notify.STORE
        kept[0].reply(b"bytes")
        assert kernel.answer().body == b"bytes"
        assert kernel.session.store(7, 8192, b"content")


def test_a_name_to_forget_ends_with_a_zero_byte() -> None:
    with connection() as kernel:
        assert kernel.session.invalidate_entry(3, b"name")
        assert kernel.answer().body.endswith(b"name\0")
        assert kernel.session.invalidate_inode(3)
        assert -kernel.answer().error == Notify.INVAL_INODE


def test_a_notification_that_nobody_takes_is_no_failure() -> None:
    log: list[str] = []
    with connection(log) as kernel:
        kernel.socket.close()
        assert not kernel.session.store(7, 0, b"content")
    assert log == ["kernel refused store: Broken pipe"]
