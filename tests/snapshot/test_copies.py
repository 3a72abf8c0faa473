"""The same snapshot in several network namespaces at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.container import kill_and_delete
from coldstart_snapshot.containers.network import (
    add_addresses,
    inside,
    make_namespace,
    members,
    remove_namespace,
)
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.criu.images import outside_connections
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from snapshot.servers import Lab, ask, free_port, laboratory, require_root, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Path]:
    require_root()
    path = tmp_path / "network"
    make_namespace(path)
    yield path
    remove_namespace(path)


def test_copies_with_connections_of_their_own_run_beside_each_other_and_the_original(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("source", port, "pair", "lock", "deleted", "threads")
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert [ask(port), ask(port)] == ["1", "2"]
    plan = plan_restore("web", lab.config)
    namespaces = {name: lab.tmp_path / f"{name}.network" for name in ("one", "two")}
    try:
        for name, path in namespaces.items():
            make_namespace(path)
            target = lab.overlay(name)
            unpack_upper(plan.upper_archive, target.upper)
            restored = restore_container(
                plan,
                lab.config,
                root=target.mount().root,
                container_id=lab.id(name),
                log=lab.tmp_path / f"{name}.log",
                network=path,
            )
            # asked inside of its network: the original answers on the same address in ours
            wait_ready(url(port), 60, pid=restored.pid)
            assert restored.pid in members(path)
        for path in namespaces.values():
            with inside(path):
                assert ask(port, "/pair") == "through the pair"
                assert ask(port) == "1"
        assert ask(port) == "3"
    finally:
        for container_id in lab.containers:
            kill_and_delete(container_id, runc_root=lab.runc_root)
        for path in namespaces.values():
            remove_namespace(path)


def test_a_copy_that_was_captured_in_a_lent_network_comes_back_in_any(lab: Lab, namespace: Path) -> None:
    port = free_port()
    with inside(namespace):
        container, overlay, log = lab.start("source", port)
    assert container.pid in members(namespace)
    request = CaptureRequest("web", container_id=container.id, ready_url=url(port))
    captured = create_snapshot(request, lab.config)
    assert captured.manifest.network == "host"
    lab.erase(container, overlay, log)
    plan = plan_restore("web", lab.config)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    restored = restore_container(
        plan, lab.config, root=target.mount().root, container_id=lab.id("target"), log=lab.tmp_path / "log"
    )
    wait_ready(url(port), 60, pid=restored.pid)
    assert ask(port) == "1"


def test_connections_to_other_hosts_are_read_from_the_images_and_those_within_are_not(
    lab: Lab, namespace: Path
) -> None:
    port = free_port()
    add_addresses(namespace, ["192.0.2.7", "2001:db8::7", "127.0.0.1", "::"])
    with inside(namespace):
        container, _, _ = lab.start("source", port, "pair")
    create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    assert outside_connections(plan_restore("web", lab.config).images) == ()
    kill_and_delete(container.id, runc_root=lab.runc_root)
    with inside(namespace), socket.create_server(("192.0.2.7", 0)) as peer:
        number = peer.getsockname()[1]
        container, _, _ = lab.start("second", port, f"peer={number}")
        create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    (found,) = outside_connections(plan_restore("web", lab.config).images)
    assert found.endswith(f" to 192.0.2.7:{number}")


def test_a_namespace_is_removed_with_whoever_is_in_it(tmp_path: Path) -> None:
    require_root()
    path = tmp_path / "network"
    make_namespace(path)
    with inside(path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with inside(path), socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
        assert members(path) == [child.pid]
        home = os.stat("/proc/thread-self/ns/net").st_ino
        remove_namespace(path)
        assert child.poll() is not None
    finally:
        child.kill()
        child.wait()
    assert not path.exists()
    assert os.stat("/proc/thread-self/ns/net").st_ino == home
    remove_namespace(path)


def test_sockets_can_be_bound_to_added_addresses(namespace: Path) -> None:
    add_addresses(namespace, ["192.0.2.7", "2001:db8::7", "127.0.0.1", "::"])
    with inside(namespace):
        for address, family in (("192.0.2.7", socket.AF_INET), ("2001:db8::7", socket.AF_INET6)):
            with socket.create_server((address, 0), family=family):
                pass


def test_an_absent_namespace_is_not_found_and_we_stay_where_we_were(tmp_path: Path) -> None:
    home = os.stat("/proc/thread-self/ns/net").st_ino
    with pytest.raises(ColdstartError, match="no such namespace"), inside(tmp_path / "absent"):
        pass
    assert os.stat("/proc/thread-self/ns/net").st_ino == home
