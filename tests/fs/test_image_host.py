"""The image host: keepers forked from a process that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_cli.version import __version__
from coldstart_fs.format.names import locator_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.mounts import image_host, obtain
from coldstart_fs.mounts.channel import connect
from coldstart_fs.mounts.image_host import host_socket
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.mounts.mount import MountRecord, unmount
from coldstart_fs.mounts.server_records import servers_folder
from coldstart_fs.stores.store_url import open_store
from coldstart_snapshot.processes.tree import process_tree
from conftest import wait_until
from fs.conftest import Bucket
from fs.mounts import CHUNK_BYTES, Lab

LARGE = os.urandom(5 * CHUNK_BYTES)
COLDSTART = Path(sys.executable).parent / "coldstart"


@contextmanager
def image_server(lab: Lab, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`coldstart image serve` for a lab's run folder, once it listens."""
    given = {**os.environ, "COLDSTART_RUN_DIR": str(lab.run), **environment}
    with (lab.folder / "host.log").open("ab") as log:
        process = subprocess.Popen([COLDSTART, "image", "serve"], env=given, stderr=log, cwd=lab.folder)
    try:
        wait_until(lambda: listens(lab) or process.poll() is not None, "the image server")
        assert process.poll() is None, (lab.folder / "host.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait(60)


def listens(lab: Lab) -> bool:
    return lab.run.exists() and (channel := connect(host_socket(lab.run))) is not None and not channel.close()


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=LARGE)
    return lab


@pytest.fixture
def host(image: Lab) -> Iterator[subprocess.Popen[bytes]]:
    with image_server(image) as process:
        yield process


def is_forked_by(host: subprocess.Popen[bytes], record: MountRecord) -> bool:
    server = record.server()
    assert server is not None
    status = Path(f"/proc/{server.keeper.pid}/status").read_text()
    return f"PPid:\t{host.pid}\n" in status


def test_the_image_server_holds_the_interpreter_in_memory_while_it_lives(lab: Lab) -> None:
    def holders() -> list[int]:
        """Processes of the server that have locked more than the interpreter's file."""
        found = []
        for member in process_tree(server.pid):
            with suppress(OSError):
                status = Path(f"/proc/{member.pid}/status").read_text()
                locked_bytes = int(status.partition("VmLck:")[2].split()[0]) * 1024
                found += [member.pid] if locked_bytes > os.path.getsize(sys.executable) else []
        return found

    with image_server(lab) as server:
        wait_until(holders, "a process that holds the files of commands")
        (holder,) = holders()
    wait_until(lambda: not os.path.exists(f"/proc/{holder}"), "it has ended with the server")


def test_a_mount_is_forked_by_the_host_and_looks_like_any_other(
    image: Lab, host: subprocess.Popen[bytes]
) -> None:
    record = image.mount()
    assert is_forked_by(host, record)
    assert (record.mountpoint / "large").read_bytes() == LARGE
    server = record.server()
    assert server is not None
    for process in (server.keeper, server.server):
        assert os.readlink(f"/proc/{process.pid}/cwd") == "/"
        assert os.readlink(f"/proc/{process.pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{process.pid}/fd/1") == str(server.log)
        assert os.getsid(process.pid) == server.keeper.pid
    for pid in (host.pid, server.keeper.pid):
        assert len(os.listdir(f"/proc/{pid}/task")) == 1, "only a process with one thread may fork"
    names = [Path(f"/proc/{process.pid}/comm").read_text() for process in (server.keeper, server.server)]
    assert names == ["image-keeper\n", "image-server\n"]
    image.unmount(record)
    wait_until(lambda: not server.keeper.lives(), "the end of the keeper")
    assert not record.server_folder.exists()


def test_mounts_go_on_when_their_host_ends_and_survive_as_before(
    image: Lab, host: subprocess.Popen[bytes]
) -> None:
    record = image.mount()
    host.terminate()
    assert host.wait(60) == 143
    assert not host_socket(image.run).exists()
    os.kill(record.server_pid, signal.SIGKILL)
    assert (record.mountpoint / "large").read_bytes() == LARGE
    other = image.mount("other", alone=True)
    assert (other.mountpoint / "file").read_bytes() == b"content"


def test_a_refusal_comes_through_the_host_as_it_is(image: Lab, host: subprocess.Popen[bytes]) -> None:
    locator = image.store / locator_key(image.digests["image"])
    locator.write_bytes(locator.read_bytes()[:-1])
    with pytest.raises(DataError, match="locator is damaged"):
        image.mount()
    assert host.poll() is None
    assert not list(servers_folder(image.run).iterdir())


def test_the_store_is_reached_with_the_callers_credentials(lab: Lab, bucket: Bucket) -> None:
    lab.image(file=b"content")
    with image_server(lab, AWS_SECRET_ACCESS_KEY="", AWS_ENDPOINT_URL="http://127.0.0.1:9") as host:
        index_image(
            f"dir:{lab.tree(file=b'remote')}", store=open_store(bucket.url, create=True), name="image"
        )
        record = lab.mount(store=bucket.url)
        assert is_forked_by(host, record)
        assert (record.mountpoint / "file").read_bytes() == b"remote"


def test_a_host_of_another_version_is_not_asked(
    image: Lab, host: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_host, "__version__", __version__ + ".1")
    record = image.mount()
    assert not is_forked_by(host, record)
    assert (record.mountpoint / "file").read_bytes() == b"content"


def test_a_host_that_hangs_costs_seconds_not_the_mount(
    image: Lab, host: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_host, "_REQUEST_SECONDS", 0.5)
    os.kill(host.pid, signal.SIGSTOP)
    record = image.mount()
    assert (record.mountpoint / "file").read_bytes() == b"content"
    os.kill(host.pid, signal.SIGCONT)
    wait_until(lambda: listens(image), "the host to answer again")
    assert record.server_lives()


def test_nonsense_at_its_socket_does_not_disturb_the_host(image: Lab, host: subprocess.Popen[bytes]) -> None:
    for nonsense in (b"", b"{}", b"[1]", b"\xff\xfe", b'{"version": "' + __version__.encode() + b'"}'):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with connection:
            connection.connect(str(host_socket(image.run)))
            connection.send(nonsense)
    assert is_forked_by(host, image.mount())


def test_only_one_host_listens_and_a_dead_ones_socket_is_replaced(
    image: Lab, host: subprocess.Popen[bytes]
) -> None:
    second = subprocess.run(
        [COLDSTART, "image", "serve"],
        env={**os.environ, "COLDSTART_RUN_DIR": str(image.run)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 75
    assert f"pid {host.pid}" in second.stderr
    host.kill()
    host.wait(60)
    assert host_socket(image.run).exists()
    with image_server(image) as again:
        assert is_forked_by(again, image.mount())
    assert host_socket(image.run).stat().st_mode & 0o777 == 0o600


def test_a_host_frees_at_its_start_what_a_crash_left(image: Lab) -> None:
    record = image.mount()
    server = record.server()
    assert server is not None
    for process in (server.keeper, server.server):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not record.server_lives(), "the end of both")
    told, log = f"unmounted what a crash left: {record.mountpoint}", image.folder / "host.log"
    with image_server(image):
        wait_until(lambda: told in log.read_text(), "the host to sweep")
    assert mount_at(record.mountpoint) is None
    assert not record.server_folder.exists()


def test_a_service_manager_may_pass_the_socket(image: Lab) -> None:
    """As systemd does: the first mount starts the host, which listens on descriptor 3."""
    image.run.mkdir()
    path = host_socket(image.run)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)
        script = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True);"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
            "os.execv(sys.argv[2], sys.argv[2:])"
        )
        host = subprocess.Popen(
            [sys.executable, "-c", script, str(listener.fileno()), COLDSTART, "image", "serve", "--json"],
            env={**os.environ, "COLDSTART_RUN_DIR": str(image.run)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    try:
        record = image.mount()  # asks before the host has started, and waits for it
        assert is_forked_by(host, record)
        assert (record.mountpoint / "file").read_bytes() == b"content"
        host.terminate()
        stdout, _ = host.communicate(timeout=60)
        assert json.loads(stdout)["socket"] == str(path)
        assert path.exists(), "the socket is the service manager's"
    finally:
        host.kill()
        host.wait(60)


def test_in_a_service_a_server_of_the_host_is_shared_all_the_same(
    image: Lab, host: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obtain, "is_in_a_service", lambda: True)
    first, second = image.mount("one"), image.mount("two")
    assert first.server_folder == second.server_folder
    assert is_forked_by(host, first)


def test_fifty_mounts_and_unmounts_leave_nothing(image: Lab, host: subprocess.Popen[bytes]) -> None:
    layer = image.folder / "layer"
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        record = image.mount(overlay=layer if number % 2 else None)
        assert (record.mountpoint / "file").read_bytes() == b"content"
        unmount(record.mountpoint, run_folder=image.run)
    assert not list((image.run / "mounts").iterdir())
    assert not list(servers_folder(image.run).iterdir())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1, "only who holds its files is left")
    assert len(os.listdir(f"/proc/{host.pid}/fd")) < 10
