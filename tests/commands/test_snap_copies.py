"""One snapshot, several replicas side by side: each with its own network, layer and name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import wait_until
from ports import free_port
from replicas import Replica
from small_root import answers, ask


@pytest.fixture
def snapshot(replica: Replica) -> str:
    """A snapshot of the small server, which counted to 1, and whose source is gone."""
    replica.write(restore='{ exec = ["/usr/bin/python3", "/srv/reseed.py"], timeout_seconds = 20 }')
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    assert replica.stop().status == 0
    shutil.rmtree(replica.run_folder)
    return replica.name


def _restore(replica: Replica, snapshot: str, copy: str, *options: str) -> dict[str, object]:
    result = replica.coldstart(
        "snap", "restore", snapshot, "--id", copy, "--detach", "--json", "--no-fallback", *options
    )
    assert result.status == 0, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


def _copies_at_once(replica: Replica, snapshot: str, count: int) -> dict[str, int]:
    """Restores at once; the port of the host that leads to each copy."""
    running = {}
    for number in range(count):
        copy = f"{snapshot}-{number}"
        options = ["--id", copy, "--publish", f"0:{replica.port}", "--detach", "--json", "--no-fallback"]
        running[copy] = subprocess.Popen(
            [replica.coldstart.program, "snap", "restore", snapshot, *options],
            env=replica.coldstart.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    ports = {}
    for copy, process in running.items():
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        document = json.loads(output)
        assert document["method"] == "restore"
        ports[copy] = int(document["published"][0].split(":")[1])
    return ports


def _prove_apart(replica: Replica, snapshot: str, count: int) -> None:
    ports = _copies_at_once(replica, snapshot, count)
    assert len(set(ports.values())) == count
    for turn, port in enumerate(ports.values(), start=1):
        for request in range(turn):
            assert ask(port) == str(request + 1)
    # each counted for itself, in memory and in its own writable layer
    for turn, port in enumerate(ports.values(), start=1):
        assert ask(port, "/file") == str(turn)
    names = {copy: ask(port, "/hostname") for copy, port in ports.items()}
    assert names == {copy: copy for copy in ports}
    seeds = [ask(port, "/reseeded").split() for port in ports.values()]
    assert [copy for copy, _ in seeds] == list(ports)
    assert len({seed for _, seed in seeds}) == count
    assert all(len(seed) == 64 for _, seed in seeds)
    # the port of the captured server is free in our own network
    assert not answers(replica.port)
    for copy, port in ports.items():
        assert replica.coldstart("snap", "restore", snapshot, "--id", copy, "--stop").status == 0
        assert not answers(port)
        assert not (replica.run_folder / "replicas" / copy).exists()


def test_three_copies_at_once_count_for_themselves_and_are_told_who_they_are(
    replica: Replica, snapshot: str
) -> None:
    _prove_apart(replica, snapshot, 3)


@pytest.mark.full
def test_ten_copies_at_once_count_for_themselves_and_are_told_who_they_are(
    replica: Replica, snapshot: str
) -> None:
    _prove_apart(replica, snapshot, 10)


def test_a_copy_whose_port_is_taken_starts_nothing_and_names_the_holder(
    replica: Replica, snapshot: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        result = replica.coldstart(
            "snap", "restore", snapshot, "--detach", "--publish", f"{taken}:{replica.port}"
        )
    assert result.status == 75
    assert f"published port is in use: 127.0.0.1:{taken}: process {os.getpid()}" in result.stderr
    assert not (replica.run_folder / "replicas" / snapshot).exists()


def test_a_port_that_the_server_does_not_listen_on_is_refused_with_those_it_does(
    replica: Replica, snapshot: str
) -> None:
    result = replica.coldstart("snap", "restore", snapshot, "--detach", "--publish", "0:9")
    assert result.status == 2
    assert f"it listens on 127.0.0.1:{replica.port}" in result.stderr
    assert not (replica.run_folder / "replicas" / snapshot).exists()


def test_a_forwarder_that_is_killed_comes_back_on_the_same_port(replica: Replica, snapshot: str) -> None:
    _restore(replica, snapshot, snapshot, "--publish", f"0:{replica.port}")
    (forwarder,) = _forwarders(replica, snapshot)
    port = _listening_port(forwarder)
    assert ask(port) == "1"
    wait_until(lambda: _age_seconds(forwarder) > 1.2, "the forwarder to be no newborn")
    os.kill(forwarder, signal.SIGKILL)
    wait_until(lambda: _forwarders(replica, snapshot) not in ([], [forwarder]), "another forwarder")
    assert ask(port) == "2"


def test_what_a_killed_supervisor_leaves_is_cleared_by_the_next_restore(
    replica: Replica, snapshot: str
) -> None:
    _restore(replica, snapshot, snapshot, "--publish", f"0:{replica.port}")
    (old,) = _forwarders(replica, snapshot)
    port = _listening_port(old)
    record = json.loads((replica.run_folder / "replicas" / snapshot / "record.json").read_text())
    os.kill(record["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: not _lives(record["supervisor_pid"]), "the supervisor to end")
    assert ask(port) == "1"  # the copy goes on serving
    _restore(replica, snapshot, snapshot, "--publish", f"{port}:{replica.port}")
    assert not _lives(old)
    assert not _lives(record["pid"])
    assert ask(port) == "1"  # a new one


def test_a_restore_killed_halfway_leaves_nothing_that_the_next_one_does_not_clear(
    replica: Replica, snapshot: str
) -> None:
    arguments = ["snap", "restore", snapshot, "--detach", "--publish", f"0:{replica.port}"]
    folder = replica.run_folder / "replicas" / snapshot
    for moment in ("network", "record.json"):
        process = subprocess.Popen(
            [replica.coldstart.program, *arguments],
            env=replica.coldstart.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda moment=moment: (folder / moment).exists(), f"{moment} to be there")
        process.kill()
        process.wait(timeout=60)
    _restore(replica, snapshot, snapshot, "--publish", f"0:{replica.port}")
    assert replica.coldstart("snap", "restore", snapshot, "--stop").status == 0
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_a_reseeding_command_that_fails_is_a_failed_restore(replica: Replica, snapshot: str) -> None:
    folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots" / snapshot
    for manifest in folder.glob("*/manifest.toml"):
        manifest.write_text(manifest.read_text().replace("/srv/reseed.py", "/srv/absent.py"))
    result = replica.coldstart("snap", "restore", snapshot, "--detach", "--no-fallback")
    assert result.status == 1
    assert "restore command failed with status 2: /usr/bin/python3" in result.stderr
    assert not answers(replica.port)


def test_a_copy_runs_in_a_network_namespace_that_the_operator_made(replica: Replica, snapshot: str) -> None:
    name = f"cs-{os.getpid()}-{free_port()}"
    for arguments in (["add", name], ["exec", name, "ip", "link", "set", "lo", "up"]):
        subprocess.run(["ip", "netns", *arguments], check=True, timeout=60)
    try:
        document = _restore(replica, snapshot, snapshot, "--network", f"/run/netns/{name}")
        pid = document["pid"]
        assert os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(f"/run/netns/{name}").st_ino
        assert replica.coldstart("snap", "restore", snapshot, "--stop").status == 0
        assert Path(f"/run/netns/{name}").exists()
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=60)


@pytest.mark.parametrize("network", ["none", "own"])
def test_a_server_with_its_own_network_is_launched_captured_and_restored_with_published_ports(
    replica: Replica, network: str
) -> None:
    replica.write(network=f'"{network}"', publish=f'["0:{replica.port}"]')
    for options, method in (("--snapshot-when-ready", "cold"), ("--no-fallback", "restore")):
        result = replica.launch("--detach", options, "--json")
        assert result.status == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["method"] == method
        port = int(document["published"][0].split(":")[1])
        assert document["ready_url"] == f"http://127.0.0.1:{port}/health"
        assert ask(port) == "1"
        assert not answers(replica.port)
        assert replica.stop().status == 0


def _forwarders(replica: Replica, copy: str) -> list[int]:
    folder = os.path.realpath(replica.run_folder / "replicas" / copy / "published")
    return [pid for pid in _pids() if _link(f"/proc/{pid}/cwd") == folder]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _age_seconds(pid: int) -> float:
    import time

    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _listening_port(pid: int) -> int:
    """The port of the host that a forwarder holds; its own table is that of the copy's network."""
    inode = os.stat(f"/proc/{pid}/fd/3").st_ino
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] == str(inode):
            return int(fields[1].partition(":")[2], 16)
    raise AssertionError(f"no listening socket of process {pid}")
