"""Whom a server is connected to outside of the snapshot is named: process, program, address."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.criu.program import Criu, find_criu
from coldstart_snapshot.preflight.finding import Finding, Peer
from coldstart_snapshot.processes.tree import process_name
from conftest import wait_until
from snapshot.servers import require_engine
from snapshot.troubles import checked_process, dump, process_with, restored


@pytest.fixture
def criu() -> Criu:
    require_engine()
    return find_criu()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _only(pid: int, criu: Criu, folder: Path) -> Finding:
    (finding,) = checked_process(pid, criu, folder).findings
    return finding


def _me(address: str | None = None) -> Peer:
    return Peer(os.getpid(), process_name(os.getpid()), address)


def test_a_tcp_connection_to_a_process_of_this_host_names_it_and_is_kept(
    criu: Criu, tmp_path: Path, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    with process_with(tmp_path, f"made = socket.create_connection(('127.0.0.1', {port}))") as pid:
        finding = _only(pid, criu, tmp_path)
        assert (finding.code, finding.severity, finding.pid) == ("tcp-peer-outside", "note", pid)
        assert finding.peer == _me(f"127.0.0.1:{port}")
        assert f"to process {os.getpid()} ({process_name(os.getpid())}), 127.0.0.1:{port}" in finding.what
        dump(pid, criu, tmp_path)
    with restored(criu, tmp_path):
        pass


def test_connections_to_one_place_are_told_once_with_their_number(
    criu: Criu, tmp_path: Path, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    trouble = f"made = [socket.create_connection(('127.0.0.1', {port})) for _ in range(30)]"
    with process_with(tmp_path, trouble) as pid:
        assert "holds 30 TCP connections to" in _only(pid, criu, tmp_path).what


def test_a_client_that_is_connected_is_named_too(criu: Criu, tmp_path: Path) -> None:
    trouble = (
        "made = socket.create_server(('127.0.0.1', 0))\n"
        "open(f'{folder}/port', 'w').write(str(made.getsockname()[1]))\n"
        "if os.fork() == 0:\n"
        "    other, _ = made.accept(); open(f'{folder}/accepted', 'w'); time.sleep(60)"
    )
    with process_with(tmp_path, trouble) as pid:
        port = int((tmp_path / "port").read_text())
        with socket.create_connection(("127.0.0.1", port)) as client:
            address = "{}:{}".format(*client.getsockname())
            wait_until((tmp_path / "accepted").exists, "the connection is accepted")
            finding = _only(pid, criu, tmp_path)
    assert finding.peer == _me(address)
    assert finding.pid != pid


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
def test_a_unix_connection_names_the_process_at_the_other_end(criu: Criu, tmp_path: Path, kind: str) -> None:
    with pytest.raises(ColdstartError, match="unix socket connection to a process outside"):
        _capture_with_unix_peer(criu, tmp_path, kind)


def _capture_with_unix_peer(criu: Criu, folder: Path, kind: str) -> None:
    """Refused by criu at the dump, or, by some versions for streams, at the restore only."""
    trouble = f"made = socket.socket(socket.AF_UNIX, socket.{kind}); made.connect(f'{{folder}}/socket')"
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket(socket.AF_UNIX, getattr(socket, kind)))
        listener.bind(str(folder / "socket"))
        if kind != "SOCK_DGRAM":
            listener.listen()
        with process_with(folder, trouble) as pid:
            if kind != "SOCK_DGRAM":
                open_sockets.enter_context(listener.accept()[0])
            finding = _only(pid, criu, folder)
            assert (finding.code, finding.severity) == ("unix-peer-outside", "blocker")
            assert finding.peer == _me()
            dump(pid, criu, folder)
    with restored(criu, folder):
        pass


def test_a_pipe_names_the_process_at_the_other_end(criu: Criu, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    other = subprocess.Popen(["sleep", "60"], stdin=reading, start_new_session=True)
    try:
        os.close(reading)
        with process_with(tmp_path, "", pass_fds=(writing,)) as pid:
            finding = _only(pid, criu, tmp_path)
            assert (finding.code, finding.descriptor) == ("pipe-outside", writing)
            assert finding.peer == Peer(other.pid, "sleep")
            dump(pid, criu, tmp_path)
        with restored(criu, tmp_path):
            pass
    finally:
        os.close(writing)
        other.kill()
        other.wait()


def test_a_lock_that_another_process_waits_for_names_it(criu: Criu, tmp_path: Path) -> None:
    trouble = "made = open(f'{folder}/lock', 'w'); fcntl.flock(made, fcntl.LOCK_EX)"
    with process_with(tmp_path, trouble) as pid:
        waiting = subprocess.Popen(["flock", str(tmp_path / "lock"), "true"])
        try:
            _wait_for_lock(waiting.pid)
            finding = _only(pid, criu, tmp_path)
            assert (finding.code, finding.severity) == ("file-lock", "note")
            assert finding.peer == Peer(waiting.pid, "flock")
            dump(pid, criu, tmp_path)
        finally:
            waiting.kill()
            waiting.wait()
    with restored(criu, tmp_path):
        pass


def test_a_lock_on_a_descriptor_that_others_share_names_them(criu: Criu, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as shared:
        fcntl.flock(shared, fcntl.LOCK_EX)
        with process_with(tmp_path, "", pass_fds=(shared.fileno(),)) as pid:
            finding = _only(pid, criu, tmp_path)
            assert finding.code == "file-lock"
            assert finding.peer == _me()
            dump(pid, criu, tmp_path)
        # criu waits for the lock as long as it may
        with pytest.raises(ColdstartError, match="no end after 3 s"), restored(criu, tmp_path, 3):
            pass


def _wait_for_lock(pid: int) -> None:
    def waits() -> bool:
        lines = Path("/proc/locks").read_text().splitlines()
        return any("->" in line and f" {pid} " in line for line in lines)

    wait_until(waits, f"process {pid} waits for the lock")
