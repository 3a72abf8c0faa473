"""INIT: what is asked for, what is agreed on, and what a successor has to know."""

from __future__ import annotations

import json
from threading import Thread

import pytest

from coldstart_cli.errors import BusyError, DataError, UnavailableError
from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.fuse.protocol import INIT_IN, INIT_IN_SHORT, INIT_OUT, Init, Notify, Opcode
from fs.fuse.kernel_end import Answer, KernelEnd, connection

_ALL = (1 << 43) - 1


def _init(flags: int = _ALL, *, major: int = 7, minor: int = 41) -> bytes:
    return INIT_IN.pack(major, minor, 131072, flags & 0xFFFFFFFF, flags >> 32)


def _negotiated(kernel: KernelEnd, body: bytes, *, posix_acls: bool = False) -> tuple[Negotiated, Answer]:
    kernel.ask(Opcode.INIT, body, unique=2)
    return kernel.session.negotiate(posix_acls=posix_acls), kernel.answer()


def test_what_both_know_is_agreed_on() -> None:
    with connection() as kernel:
        negotiated, answer = _negotiated(kernel, _init())
    assert (answer.unique, answer.error, len(answer.body)) == (2, 0, INIT_OUT.size)
    major, _, read_ahead, low, background, congestion, max_write, _, pages, _, high = INIT_OUT.unpack(
        answer.body
    )
    assert (major, read_ahead, background, congestion, pages) == (7, 131072, 256, 192, 256)
    assert max_write >= 4096
    assert low | high << 32 == negotiated.flags
    assert negotiated.no_open
    assert negotiated.no_opendir
    assert negotiated.has_resend
    assert Init.CACHE_SYMLINKS in Init(negotiated.flags)
    assert "cache_symlinks" in negotiated.flag_names


def test_what_would_change_an_image_is_not_asked_for() -> None:
    with connection() as kernel:
        negotiated, _ = _negotiated(kernel, _init())
    writeback_cache, auto_inval_data, passthrough = 1 << 16, 1 << 12, 1 << 37
    assert not negotiated.flags & (writeback_cache | auto_inval_data | passthrough | Init.POSIX_ACL)


def test_access_control_lists_are_asked_for_only_when_there_are_any() -> None:
    with connection() as kernel:
        negotiated, _ = _negotiated(kernel, _init(), posix_acls=True)
    assert Init.POSIX_ACL in Init(negotiated.flags)


def test_what_an_older_kernel_does_not_know_is_left_out() -> None:
    """Linux 5.4: no second word of flags, no resend."""
    with connection() as kernel:
        old = int(Init.ASYNC_READ | Init.NO_OPEN_SUPPORT | Init.MAX_PAGES)
        negotiated, answer = _negotiated(kernel, INIT_IN_SHORT.pack(7, 31, 131072, old))
    assert negotiated.flags == old
    assert negotiated.minor == 31
    assert not negotiated.no_opendir
    assert not negotiated.has_resend
    assert INIT_OUT.unpack(answer.body)[-1] == 0


def test_a_kernel_that_is_too_old_is_refused_by_version() -> None:
    with connection() as kernel, pytest.raises(UnavailableError, match=r"kernel speaks FUSE 7\.26"):
        _negotiated(kernel, _init(minor=26))


def test_a_newer_major_version_asks_again_in_ours() -> None:
    outcome: list[Negotiated] = []
    with connection() as kernel:
        kernel.ask(Opcode.INIT, _init(major=8, minor=0), unique=2)
        asking = Thread(target=lambda: outcome.append(kernel.session.negotiate()))
        asking.start()
        assert INIT_OUT.unpack(kernel.answer().body)[0] == 7
        kernel.ask(Opcode.INIT, _init(), unique=4)
        assert kernel.answer().unique == 4
        asking.join(60)
    assert outcome[0].no_open


def test_a_kernel_that_says_nothing_or_something_else_is_an_error() -> None:
    with connection() as kernel:
        with pytest.raises(BusyError, match="no FUSE request in time"):
            kernel.session.negotiate(timeout_seconds=0.05)
        kernel.ask(Opcode.LOOKUP, b"name that is long enough for an INIT\0")
        with pytest.raises(DataError, match="first FUSE request is not INIT: 1"):
            kernel.session.negotiate()
        kernel.send(b"x")
        with pytest.raises(DataError, match="too short: 1 bytes"):
            kernel.session.negotiate()


def test_a_successor_knows_what_was_agreed_on_and_asks_for_what_was_left() -> None:
    with connection() as kernel:
        negotiated, _ = _negotiated(kernel, _init())
        again = Negotiated.from_json(json.loads(json.dumps(negotiated.to_json())))
        assert again == negotiated
        kernel.session.resume(again)
        answer = kernel.answer()
        assert (answer.unique, -answer.error) == (0, Notify.RESEND)


def test_a_successor_does_not_ask_a_kernel_that_cannot_send_again() -> None:
    with connection() as kernel:
        negotiated, _ = _negotiated(kernel, _init(int(Init.ASYNC_READ)))
        kernel.session.resume(negotiated)
        assert kernel.nothing_came()
