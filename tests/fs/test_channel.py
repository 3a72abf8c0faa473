"""Messages between processes, descriptors on their way, and who is at the other end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, DataError, UnreachableError
from coldstart_fs.mounts.channel import Channel, connect, listen
from coldstart_fs.mounts.processes import ProcessIdentity, end_process
from coldstart_fs.mounts.refusals import as_error, as_message
from coldstart_fs.mounts.restarts import Restarts


def test_a_message_comes_whole_with_its_descriptors() -> None:
    ours, theirs = Channel.pair()
    reading, writing = os.pipe()
    with ours, theirs:
        assert ours.send({"name": "\udcff", "number": 1}, [reading])
        message = theirs.receive(1)
        assert message is not None
        content, (descriptor,) = message
        assert content == {"name": "\udcff", "number": 1}
        os.write(writing, b"through")
        assert os.read(descriptor, 10) == b"through"
        assert not os.get_inheritable(descriptor)
        for number in (reading, writing, descriptor):
            os.close(number)


def test_who_has_gone_and_who_is_late_are_told_apart() -> None:
    ours, theirs = Channel.pair()
    with ours:
        with pytest.raises(BusyError):
            ours.receive(0.01)
        theirs.close()
        assert ours.receive(1) is None
        assert not ours.send({"anybody": True})


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'"text"', b"x" * 300_000])
def test_another_language_is_as_good_as_nobody_and_leaks_nothing(data: bytes) -> None:
    ours, theirs = Channel.pair()
    ours.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    reading, writing = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    with ours, theirs:
        socket.send_fds(ours.socket, [data], [reading])
        assert theirs.receive(1) is None
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:
        assert not ours.send({"long": "x" * (8 << 20)})


def test_a_socket_may_lie_deeper_than_the_kernel_takes_a_path(tmp_path: Path) -> None:
    folder = tmp_path / ("n" * 100) / ("m" * 100)
    folder.mkdir(parents=True)
    path = folder / "listener.socket"
    assert connect(path) is None
    with listen(path) as listener:
        assert path.stat().st_mode & 0o777 == 0o600
        channel = connect(path)
        assert channel is not None
        with channel:
            accepted = Channel(listener.accept()[0])
            assert accepted.peer() == (os.getpid(), os.geteuid())
            assert accepted.peer_is_trusted()
            accepted.close()
    assert connect(path) is None, "nobody listens at a socket that was left"
    with listen(path):
        again = connect(path)
        assert again is not None
        again.close()


def test_another_user_is_not_trusted() -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    # pytest's own folders are closed to others
    with tempfile.TemporaryDirectory() as folder, listen(Path(folder) / "open.socket") as listener:
        path = Path(folder) / "open.socket"
        Path(folder).chmod(0o755)
        path.chmod(0o777)
        script = (
            "import os, socket, sys; os.setuid(65534);"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.recv(1)"
        )
        other = subprocess.Popen([sys.executable, "-c", script, str(path)])
        accepted = Channel(listener.accept()[0])
        assert accepted.peer()[1] == 65534
        assert not accepted.peer_is_trusted()
        accepted.close()
        other.wait(60)


def test_a_pid_that_is_used_again_is_somebody_else() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = ProcessIdentity.of(child.pid)
    assert process.lives()
    assert not ProcessIdentity(child.pid, process.start_ticks + 1).lives()
    assert not end_process(process, (signal.SIGCONT, 0.01))
    assert end_process(ProcessIdentity(child.pid, process.start_ticks + 1), (signal.SIGKILL, 0.01))
    assert process.lives()
    assert end_process(process, (signal.SIGKILL, 20))
    assert not process.lives()
    assert end_process(process)
    child.communicate()


@pytest.mark.parametrize("kind", [DataError, UnreachableError, ColdstartError])
def test_an_error_is_the_same_on_the_other_side(kind: type[ColdstartError]) -> None:
    error = as_error(as_message(kind("what failed: value", hint="do this")))
    assert (error.message, error.hint, error.exit_code) == ("what failed: value", "do this", kind.exit_code)


def test_restarts_are_at_once_then_slower_then_given_up() -> None:
    restarts = Restarts()
    delays = [restarts.delay_seconds(0.0, now_seconds=0.0) for _ in range(8)]
    assert delays[0] == 0
    assert delays[-1] is None
    given = [delay for delay in delays if delay is not None]
    assert given == sorted(given)
    assert sum(given) < 20
    assert restarts.words == "8 times in a row"
    assert restarts.delay_seconds(3600.0, now_seconds=0.0) == 0, "one that lived long makes them forgotten"


def test_servers_that_served_for_seconds_are_replaced_as_often_as_a_busy_host_kills_them() -> None:
    restarts = Restarts()
    assert [restarts.delay_seconds(3.5, now_seconds=20.0 * death) for death in range(200)] == [0.0] * 200


def test_a_server_that_dies_every_few_seconds_is_given_up_in_the_end() -> None:
    restarts = Restarts()
    delays = [restarts.delay_seconds(5.0, now_seconds=5.0 * death) for death in range(40)]
    assert delays == [0.0] * 39 + [None]
    assert restarts.words == "40 times within 10 minutes"
