"""Deaths, hangs and upgrades of image servers under readers that must not notice."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_fs.mounts import prepared
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.mounts.mount import MountRecord, find_mount, replace_mount, unmount
from coldstart_fs.mounts.server_records import ServerRecord, read_server, socket_path
from coldstart_fs.mounts.upkeep import look_after
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, forget_pages
from fs.servers import FaultyHandler, faulty_server

LARGE = os.urandom(24 * CHUNK_BYTES)


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=LARGE)
    return lab


def server_of(record: MountRecord) -> ServerRecord:
    server = record.server()
    assert server is not None
    return server


def kill_server(record: MountRecord) -> int:
    """Kill the server of a mount, and wait for its successor; its pid."""
    before = server_of(record)
    os.kill(before.server.pid, signal.SIGKILL)
    wait_until(lambda: server_of(record).restarts > before.restarts, "a successor", timeout_seconds=20)
    return server_of(record).server.pid


@dataclass
class HeldStore:
    """A store behind HTTP whose packs come only when `opened` is set."""

    url: str
    asked: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


@contextmanager
def held_store(lab: Lab) -> Iterator[HeldStore]:
    with faulty_server(lab.store) as server:
        store = HeldStore(server.url)

        def hold(handler: FaultyHandler) -> bool:
            if handler.path.startswith("/packs"):
                store.asked.set()
                store.opened.wait(60)
            return False

        server.fault = hold
        try:
            yield store
        finally:
            store.opened.set()


def reader_of(path: Path) -> subprocess.Popen[bytes]:
    """A process that reads a file and prints the digest of what it got."""
    script = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
    return subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)


def said(reader: subprocess.Popen[bytes], timeout_seconds: float = 30) -> str:
    try:
        answer, _ = reader.communicate(timeout=timeout_seconds)
    finally:
        reader.kill()
    return answer.decode().strip()


RIGHT = hashlib.sha256(LARGE).hexdigest()


class Stream:
    """Reads a file again and again, past the page cache, and counts what was right and wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.rounds > 0 or bool(self.problems), "a first round")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def goes_on(self) -> None:
        """Wait until it has read everything twice more: the last round began after this call."""
        rounds = self.rounds
        wait_until(lambda: self.rounds >= rounds + 2 or bool(self.problems), "two more rounds")
        assert self.problems == []

    def _run(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            while not self._stop.is_set():
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                if os.pread(descriptor, len(LARGE), 0) != LARGE:
                    self.problems.append("wrong bytes")
                    return
                self.rounds += 1
        except OSError as error:
            self.problems.append(str(error))
        finally:
            os.close(descriptor)


# --- the death of servers ---


def test_a_reader_that_waits_for_a_killed_server_gets_the_right_bytes(image: Lab) -> None:
    with held_store(image) as store:
        record = image.mount(store=store.url)
        reader = reader_of(record.mountpoint / "large")
        assert store.asked.wait(60)
        kill_server(record)
        assert reader.poll() is None
        store.opened.set()
        assert said(reader) == RIGHT
    assert "was ended by SIGKILL" in image.log(record)


def test_a_stream_outlives_one_server_after_the_other(image: Lab) -> None:
    record = image.mount()
    with Stream(record.mountpoint / "large") as stream:
        pids = [kill_server(record) for _ in range(3)]
        stream.goes_on()
    assert len(set(pids)) == 3
    assert server_of(record).restarts == 3


def test_open_files_and_folders_and_a_working_directory_outlive_a_server(image: Lab) -> None:
    record = image.mount()
    folder = os.open(record.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(record.mountpoint / "large", os.O_RDONLY)
    shell = subprocess.Popen(
        ["sh", "-c", "read line; cat file; ls"],
        cwd=record.mountpoint,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        kill_server(record)
        assert sorted(os.listdir(folder)) == ["file", "large"]
        assert os.pread(file, 100, 5000) == LARGE[5000:5100]
        assert shell.communicate(b"\n", timeout=60)[0] == b"contentfile\nlarge\n"
    finally:
        shell.kill()
        os.close(folder)
        os.close(file)


def keeper_program(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Start keepers that are changed like this."""
    script = f"import sys\n{change}\nfrom coldstart_fs.mounts.keeping import main\nsys.exit(main())"
    monkeypatch.setattr(prepared, "_PROGRAM", ("-P", "-c", script))


_WITHOUT_RESEND = """
from coldstart_fs.fuse import negotiation
from coldstart_fs.fuse.protocol import Init
negotiation._ALWAYS &= ~Init.HAS_RESEND
"""


def test_where_the_kernel_cannot_send_again_the_successor_finds_what_was_asked(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper_program(monkeypatch, _WITHOUT_RESEND)
    with held_store(image) as store:
        record = image.mount(store=store.url)
        readers = [reader_of(record.mountpoint / "large") for _ in range(3)]
        assert store.asked.wait(60)
        kill_server(record)
        os.kill(server_of(record).keeper.pid, signal.SIGKILL)
        wait_until(lambda: not server_of(record).is_protected(), "the end of the keeper")
        replace_mount(image.request(store=store.url))
        replace_mount(image.request(store=store.url))
        assert all(reader.poll() is None for reader in readers)
        store.opened.set()
        assert [said(reader) for reader in readers] == [RIGHT] * 3
    with Stream(record.mountpoint / "large") as stream:
        for _ in range(3):
            kill_server(record)
        stream.goes_on()


_WITHOUT_SLOTS = """
from coldstart_fs.fuse import journal
journal._SIZE_BYTES = journal._FIRST_SLOT
"""


def test_what_could_neither_be_sent_again_nor_noted_lets_nobody_hang(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper_program(monkeypatch, _WITHOUT_RESEND + _WITHOUT_SLOTS)
    with held_store(image) as store:
        record = image.mount(store=store.url)
        reader = reader_of(record.mountpoint / "large")
        assert store.asked.wait(60)
        os.kill(record.server_pid, signal.SIGKILL)
        assert said(reader, 10) == ""
        assert reader.returncode == 1
    wait_until(lambda: not record.server_lives(), "the keeper to give up")
    assert "more requests unanswered than could be noted" in str(server_of(record).failure)
    assert "giving up" in image.log(record)
    with pytest.raises(OSError, match=r".") as refusal:
        (record.mountpoint / "file").read_bytes()
    assert refusal.value.errno in {errno.ENOTCONN, errno.ECONNABORTED}
    monkeypatch.undo()
    again = replace_mount(image.request())
    assert (again.mountpoint / "large").read_bytes() == LARGE


_DEADLY_READS = """
import os
from coldstart_fs.mounts import restarts, server
restarts._DELAYS_SECONDS = (0.0, 0.05, 0.1)
server.ImageServer._read = lambda *_: os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("kernel", ["", _WITHOUT_RESEND], ids=["6.9", "before"])
def test_a_request_that_kills_every_server_ends_in_an_error_not_in_a_loop(
    image: Lab, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    keeper_program(monkeypatch, kernel + _DEADLY_READS)
    record = image.mount()
    with pytest.raises(OSError, match=r"."):
        (record.mountpoint / "file").read_bytes()
    wait_until(lambda: not record.server_lives(), "the keeper to give up")
    server = server_of(record)
    assert server.failure is not None
    assert server.failure.startswith("image server died 4 times in a row")
    wait_until(lambda: not server.keeper.lives(), "the end of the keeper")
    assert image.log(record).count("image server died") == 5


# --- the death of keepers ---


def test_without_its_keeper_a_mount_is_served_and_a_new_keeper_protects_it_again(image: Lab) -> None:
    record = image.mount()
    before = server_of(record)
    with Stream(record.mountpoint / "large") as stream:
        os.kill(before.keeper.pid, signal.SIGKILL)
        wait_until(lambda: not before.keeper.lives(), "the end of the keeper")
        stream.goes_on()
        assert record.server_lives()
        assert not server_of(record).is_protected()
        assert replace_mount(image.request()) == record
        after = server_of(record)
        assert after.is_protected()
        assert before.server != after.server
        assert not before.server.lives()
        stream.goes_on()
        kill_server(record)
        stream.goes_on()


def test_when_both_are_killed_readers_get_errors_and_replacing_mounts_anew(image: Lab) -> None:
    record = image.mount()
    server = server_of(record)
    user = os.open(record.mountpoint / "large", os.O_RDONLY)
    try:
        os.kill(server.keeper.pid, signal.SIGKILL)
        os.kill(server.server.pid, signal.SIGKILL)
        wait_until(lambda: not record.server_lives(), "the end of both")
        with pytest.raises(OSError, match=r"."):
            os.pread(user, 10, 0)
        again = replace_mount(image.request())
        assert again.server_folder != record.server_folder
        assert (again.mountpoint / "large").read_bytes() == LARGE
    finally:
        with suppress(OSError):
            os.close(user)


# --- upgrades ---


def test_a_stream_does_not_notice_that_keeper_and_server_are_replaced(image: Lab) -> None:
    record = image.mount()
    seen = {(server_of(record).keeper, server_of(record).server)}
    with Stream(record.mountpoint / "large") as stream:
        for _ in range(3):
            assert replace_mount(image.request()) == record
            seen.add((server_of(record).keeper, server_of(record).server))
            stream.goes_on()
    assert len(seen) == 4
    assert sum(process.lives() for pair in seen for process in pair) == 2
    kill_server(record)
    assert (record.mountpoint / "file").read_bytes() == b"content"


def test_a_reader_that_waits_is_answered_by_the_server_that_took_over(image: Lab) -> None:
    with held_store(image) as store:
        record = image.mount(store=store.url)
        reader = reader_of(record.mountpoint / "large")
        assert store.asked.wait(60)
        replace_mount(image.request(store=store.url))
        assert reader.poll() is None
        store.opened.set()
        assert said(reader) == RIGHT


def test_a_new_version_that_cannot_serve_leaves_the_old_one_in_place(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = image.mount()
    before = server_of(record)
    change = """
from coldstart_cli.errors import DataError
from coldstart_fs.mounts import server_child
def refuse(*_, **__): raise DataError("a bug of the new version")
server_child.serve_image = refuse
"""
    keeper_program(monkeypatch, change)
    with Stream(record.mountpoint / "large") as stream:
        with pytest.raises(ColdstartError, match="a bug of the new version"):
            replace_mount(image.request())
        stream.goes_on()
    assert server_of(record) == before


@pytest.mark.parametrize("moment", ["stop_predecessor", "confirm"])
def test_a_new_keeper_that_dies_while_it_takes_over_leaves_the_old_one_in_place(
    image: Lab, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    record = image.mount()
    before = server_of(record)
    change = f"""
import os
from coldstart_fs.mounts.handover import TakenConnection
before = TakenConnection.{moment}
def die(self, *arguments):
    if {moment!r} == "stop_predecessor": before(self, *arguments)
    os.killpg(0, 9)
TakenConnection.{moment} = die
"""
    keeper_program(monkeypatch, change)
    with Stream(record.mountpoint / "large") as stream:
        with pytest.raises(ColdstartError):
            replace_mount(image.request())
        wait_until(lambda: server_of(record).keeper == before.keeper, "the old keeper on record again")
        stream.goes_on()
    assert server_of(record).is_protected()
    monkeypatch.undo()
    assert replace_mount(image.request()) == record
    assert (record.mountpoint / "file").read_bytes() == b"content"


def test_a_connection_is_handed_to_nobody_else(image: Lab) -> None:
    record = image.mount()
    path = socket_path(record.server_folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert record.server_folder.stat().st_mode & 0o777 == 0o700


def test_replacing_with_another_image_is_another_mount(image: Lab) -> None:
    record = image.mount()
    image.image("other", file=b"other content")
    again = replace_mount(image.request(name="other"))
    assert again.image != record.image
    assert (again.mountpoint / "file").read_bytes() == b"other content"
    assert not record.server_folder.exists()


def test_upkeep_renews_what_is_old_or_unprotected_and_frees_what_is_dead(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper_program(
        monkeypatch,
        "import coldstart_cli.version as version; version.__version__ = '0.0.1'\n",
    )
    old = image.mount("old", alone=True)
    monkeypatch.undo()
    current, unprotected, dead = (image.mount(name, alone=True) for name in ("current", "lone", "dead"))
    os.kill(server_of(unprotected).keeper.pid, signal.SIGKILL)
    for process in (server_of(dead).keeper, server_of(dead).server):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not dead.server_lives() and not server_of(unprotected).keeper.lives(), "the deaths")
    before = server_of(current)
    assert server_of(old).version == "0.0.1"
    report = look_after(image.run)
    assert report.swept == (dead.mountpoint,)
    assert set(report.renewed) == {old.fuse_mountpoint, unprotected.fuse_mountpoint}
    assert report.problems == ()
    assert server_of(old).version == server_of(current).version != "0.0.1"
    assert server_of(unprotected).is_protected()
    assert server_of(current) == before
    for record in (old, unprotected, current):
        assert (record.mountpoint / "file").read_bytes() == b"content"


# --- hangs ---


def seconds(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_a_stopped_server_does_not_hold_up_an_unmount(image: Lab) -> None:
    record = image.mount()
    os.kill(record.server_pid, signal.SIGSTOP)
    assert seconds(lambda: unmount(record.mountpoint, run_folder=image.run)) < 20
    assert mount_at(record.mountpoint) is None
    assert not record.server_folder.exists()


def test_a_stopped_server_is_replaced_while_its_readers_wait(image: Lab) -> None:
    record = image.mount()
    os.kill(record.server_pid, signal.SIGSTOP)
    reader = reader_of(record.mountpoint / "large")
    replace_mount(image.request())
    assert said(reader) == RIGHT


@pytest.mark.parametrize("both", [False, True], ids=["keeper", "keeper and server"])
def test_a_stopped_keeper_is_replaced_at_once_while_readers_wait(image: Lab, both: bool) -> None:
    record = image.mount()
    server = server_of(record)
    os.kill(server.keeper.pid, signal.SIGSTOP)
    if both:
        os.kill(server.server.pid, signal.SIGSTOP)
    wait_until(lambda: not server.is_protected() and server.is_stopped() == both, "processes that stand")
    reader = reader_of(record.mountpoint / "large")
    assert seconds(lambda: replace_mount(image.request())) < 20
    assert said(reader) == RIGHT
    after = server_of(record)
    assert after.is_protected()
    assert after.keeper != server.keeper
    assert not server.keeper.lives()


def test_a_stopped_keeper_does_not_hold_up_an_unmount(image: Lab) -> None:
    record = image.mount()
    server = server_of(record)
    os.kill(server.keeper.pid, signal.SIGSTOP)
    wait_until(server.keeper.is_stopped, "a keeper that stands")
    began = time.monotonic()
    assert not unmount(record.mountpoint, run_folder=image.run, lazy=False).in_use
    assert time.monotonic() - began < 20
    assert not record.server_folder.exists()


def test_a_keeper_that_does_not_answer_is_named_with_what_helps(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "from coldstart_fs.mounts import keeper\nkeeper.Keeper._hand_over = lambda _: False\n"
    keeper_program(monkeypatch, deaf)
    record = image.mount()
    kill_server(record)  # the log has something to say that is no reason
    keeper_program(monkeypatch, "from coldstart_fs.mounts import handover\nhandover._ANSWER_SECONDS = 0.5\n")
    pid = server_of(record).keeper.pid
    with pytest.raises(BusyError, match=rf"keeper does not answer: .*: pid {pid}$") as refusal:
        replace_mount(image.request())
    assert "coldstart image unmount --force" in str(refusal.value.hint)
    assert (record.mountpoint / "large").read_bytes() == LARGE


@pytest.mark.parametrize("overlay", [False, True])
def test_force_ends_a_mount_in_which_everything_hangs(image: Lab, overlay: bool) -> None:
    record = image.mount(overlay=image.folder / "layer" if overlay else None)
    server = server_of(record)
    for process in (server.keeper, server.server):
        os.kill(process.pid, signal.SIGSTOP)
    reader = reader_of(record.mountpoint / "large")
    forget_pages(image.folder / "trees" / "image" / "large")
    assert seconds(lambda: unmount(record.mountpoint, run_folder=image.run, force=True)) < 5
    assert said(reader, 10) == ""
    assert reader.returncode == 1
    assert mount_at(record.mountpoint) is None
    assert mount_at(record.fuse_mountpoint) is None
    assert not server.keeper.lives()
    assert not server.server.lives()
    assert read_server(record.server_folder) is None


def test_a_hung_mount_holds_up_no_other(image: Lab) -> None:
    hung = image.mount("hung", alone=True)
    server = server_of(hung)
    for process in (server.keeper, server.server):
        os.kill(process.pid, signal.SIGSTOP)
    image.image("other", file=b"other content")
    other = image.mount("other", name="other")
    same = image.mount("same")
    assert (other.mountpoint / "file").read_bytes() == b"other content"
    assert (same.mountpoint / "file").read_bytes() == b"content"
    image.unmount(other)
    image.unmount(same)
    unmount(hung.mountpoint, run_folder=image.run, force=True)


def test_replacing_may_change_where_the_bytes_come_from(image: Lab) -> None:
    with faulty_server(image.store) as first, faulty_server(image.store) as second:
        record, other = image.mount(store=first.url), image.mount("other", store=first.url)
        request = image.request(store=second.url, cache=image.folder / "another-cache")
        with (record.mountpoint / "large").open("rb") as user:
            again = replace_mount(request)
            assert (again.store, again.cache) == (second.url, request.cache)
            asked = len(first.requests)
            assert user.read() == LARGE
        assert len(first.requests) == asked
        assert any(path.startswith("/packs") for _, path, _ in second.requests)
        assert again.server_folder == record.server_folder == other.server_folder
        found = find_mount(other.mountpoint, image.run)
        assert found is not None
        assert found.store == second.url
        assert image.mount("third", store=first.url).server_folder != record.server_folder
