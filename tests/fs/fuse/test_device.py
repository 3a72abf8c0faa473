"""The session on real mounts: what the kernel asks for, what it never asks for, and how both part."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import pytest

from coldstart_cli.errors import NotFoundError
from coldstart_fs.fuse.device import mount_fuse
from coldstart_fs.fuse.protocol import ATTR, ATTR_OUT_HEAD, ENTRY_OUT_HEAD, READ_IN, Opcode
from coldstart_fs.fuse.session import Ended, Handler, Request, Session
from coldstart_fs.mounts.connections import abort
from coldstart_fs.mounts.kernel_mounts import unmount_now
from conftest import wait_until
from fs.mounts import require_fuse

CONTENT = bytes(range(256)) * 64
_NODES = {b"one": 2, b"two": 3}
_DAY = 86400


@dataclass
class TwoFiles:
    """A root with two files of the same content; `asked` is what came, reads wait for `gate`."""

    asked: list[tuple[Opcode | int, int]] = field(default_factory=list)
    gate: Event = field(default_factory=Event)

    def handlers(self) -> Mapping[int, Handler]:
        answers = {Opcode.LOOKUP: self._lookup, Opcode.GETATTR: self._getattr, Opcode.READ: self._read}
        return {opcode: self._noted(opcode, answers.get(Opcode(opcode))) for opcode in Opcode}

    def count(self, opcode: Opcode) -> int:
        return sum(1 for asked, _ in self.asked if asked == opcode)

    def swallow(self, request: Request) -> None:
        """Read a request and never answer it."""
        self.asked.append((Opcode.READ, request.node))

    def _noted(self, opcode: Opcode, answer: Handler | None) -> Handler:
        def handler(request: Request) -> None:
            self.asked.append((opcode, request.node))
            if opcode in {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT}:
                request.session._table({})[opcode](request)
            elif answer is None:
                request.error(errno.ENOSYS)
            else:
                answer(request)

        return handler

    def _lookup(self, request: Request) -> None:
        node = _NODES[request.body[:-1]]
        request.reply(ENTRY_OUT_HEAD.pack(node, 0, _DAY, _DAY, 0, 0) + _attributes(node))

    def _getattr(self, request: Request) -> None:
        request.reply(ATTR_OUT_HEAD.pack(_DAY, 0, 0) + _attributes(request.node))

    def _read(self, request: Request) -> None:
        _, offset, size_bytes, *_ = READ_IN.unpack(request.body)

        def answer() -> None:
            self.gate.wait(60)
            request.reply(CONTENT[offset : offset + size_bytes])

        Thread(target=answer, daemon=True).start()


def _attributes(node: int) -> bytes:
    mode, size = (stat.S_IFDIR | 0o755, 0) if node == 1 else (stat.S_IFREG | 0o644, len(CONTENT))
    return ATTR.pack(node, size, 32, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@dataclass
class Mounted:
    root: Path
    files: TwoFiles
    session: Session
    log: list[str]
    ended: list[Ended] = field(default_factory=list)
    device: int = 0

    def reads(self) -> int:
        return self.files.count(Opcode.READ)


@contextmanager
def mounted(root: Path) -> Iterator[Mounted]:
    require_fuse()
    root.mkdir()
    log: list[str] = []
    descriptor = mount_fuse(str(root), source="coldstart:test")
    session = Session(descriptor, log.append)
    mount = Mounted(root, TwoFiles(), session, log)
    loop = Thread(target=lambda: mount.ended.append(session.run(mount.files.handlers())))
    try:
        session.negotiate()
        loop.start()
        mount.device = os.stat(root).st_dev
        mount.files.gate.set()
        yield mount
    finally:
        mount.files.gate.set()
        if os.path.ismount(root):
            unmount_now(root, detach=True)
        session.stop()
        loop.join(60)
        os.close(descriptor)
        session.close()
        assert mount.ended


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path / "mnt") as mount:
        yield mount


def test_files_are_read_without_being_opened(mount: Mounted) -> None:
    for _ in range(2):
        assert {(mount.root / name).read_bytes() for name in ("one", "two")} == {CONTENT}
    assert mount.files.count(Opcode.OPEN) == 1  # ENOSYS, once for all
    assert mount.files.count(Opcode.FLUSH) == 1
    assert mount.files.count(Opcode.RELEASE) == 0
    assert {node for opcode, node in mount.files.asked if opcode == Opcode.READ} == {2, 3}
    assert mount.reads() == 2  # and what was read is kept over the closing


def test_pushed_bytes_are_read_without_a_request(mount: Mounted) -> None:
    assert not mount.session.store(3, 0, CONTENT)  # the kernel has not heard of it
    os.stat(mount.root / "two")
    assert mount.session.store(3, 0, CONTENT[:8192])
    assert mount.session.store(3, 8192, memoryview(CONTENT)[8192:])
    assert (mount.root / "two").read_bytes() == CONTENT
    assert mount.reads() == 0
    assert mount.log == []


def test_forgotten_bytes_are_asked_for_again(mount: Mounted) -> None:
    for wanted in (1, 2):
        assert (mount.root / "one").read_bytes() == CONTENT
        assert mount.reads() == wanted
        assert mount.session.invalidate_inode(2)


def test_a_forgotten_name_is_looked_up_again(mount: Mounted) -> None:
    for wanted in (1, 2):
        os.stat(mount.root / "one")
        os.stat(mount.root / "one")
        assert mount.files.count(Opcode.LOOKUP) == wanted
        assert mount.session.invalidate_entry(1, b"one")


def test_a_reader_that_is_killed_goes_though_its_read_hangs(mount: Mounted) -> None:
    mount.files.gate.clear()
    reader = subprocess.Popen([sys.executable, "-c", f"open({str(mount.root / 'one')!r}, 'rb').read()"])
    try:
        wait_until(lambda: mount.reads() > 0, "the read")
        reader.kill()
        assert reader.wait(60) == -signal.SIGKILL
        mount.files.gate.set()  # the late answer is dropped
        wait_until(lambda: not mount.session.pending, "the answer")
        assert (mount.root / "two").read_bytes() == CONTENT
    finally:
        reader.kill()
        reader.wait(60)


def test_a_signal_that_is_handled_does_not_fail_a_read(mount: Mounted) -> None:
    mount.files.gate.clear()
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        f"sys.exit(open({str(mount.root / 'one')!r}, 'rb').read() != bytes(range(256)) * 64)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: mount.reads() > 0, "the read")
        reader.send_signal(signal.SIGUSR1)
        mount.files.gate.set()
        assert reader.wait(60) == 0
    finally:
        reader.kill()
        reader.wait(60)


def test_the_loop_ends_with_the_mount(mount: Mounted) -> None:
    unmount_now(mount.root)
    wait_until(lambda: mount.ended == [Ended.UNMOUNTED], "the end of the loop")


def test_a_connection_that_is_aborted_tells_so(mount: Mounted) -> None:
    abort(mount.device)
    wait_until(lambda: mount.ended == [Ended.ABORTED], "the end of the loop")
    with pytest.raises(OSError, match=r".") as refusal:
        (mount.root / "one").read_bytes()
    assert refusal.value.errno in {errno.ENOTCONN, errno.ECONNABORTED}


def test_a_successor_gets_what_was_left_unanswered(mount: Mounted) -> None:
    if not mount.session.negotiated.has_resend:
        pytest.skip("this kernel cannot send requests again: Linux 6.9")
    silent = TwoFiles()
    outcome: list[bytes] = []
    mount.session.stop()
    wait_until(lambda: mount.ended == [Ended.STOPPED], "the end of the loop")
    first = Session(mount.session.descriptor)
    first.resume(mount.session.negotiated)
    loop = Thread(target=first.run, args=({**silent.handlers(), Opcode.READ: silent.swallow},))
    loop.start()
    reader = Thread(target=lambda: outcome.append((mount.root / "one").read_bytes()))
    reader.start()
    wait_until(lambda: silent.count(Opcode.READ) > 0, "the read")
    first.stop()
    loop.join(60)
    second = Session(mount.session.descriptor)
    again = Thread(target=second.run, args=(mount.files.handlers(),))
    again.start()
    second.resume(mount.session.negotiated)
    reader.join(60)
    assert outcome == [CONTENT]
    second.stop()
    again.join(60)
    first.close()
    second.close()


def test_a_mount_point_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    require_fuse()
    with pytest.raises(NotFoundError, match=r"cannot mount: .*/absent: No such file"):
        mount_fuse(str(tmp_path / "absent"), source="coldstart:test")
