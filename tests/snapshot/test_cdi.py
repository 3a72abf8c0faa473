"""Devices by CDI: specifications in JSON and YAML, and containers that get, keep and exchange devices."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.cdi import Devices, check_device_name
from coldstart_snapshot.containers.cdi_edits import exchange, inject, injected, without_devices
from coldstart_snapshot.containers.container import kill_and_delete
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from snapshot.servers import Lab, ask, free_port, laboratory, url

# what nvidia-ctk writes, less most of its libraries; device files that every host has play the GPUs
NVIDIA = """
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes:
    - path: /dev/nvidiactl
      hostPath: /dev/null
      fileMode: 438
  mounts:
    - hostPath: {library}
      containerPath: /opt/driver/libcuda.so.580
      options: [ro, nosuid, nodev, bind]
  hooks:
    - hookName: createContainer
      path: {hook}
      args: [hook, create-symlinks]
devices:
  - name: "0"
    containerEdits:
      deviceNodes: [{{path: /dev/nvidia0, hostPath: /dev/zero}}]
  - name: GPU-1111
    containerEdits:
      deviceNodes: [{{path: /dev/nvidia1, hostPath: /dev/full, permissions: rw, uid: 0}}]
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """/etc/cdi and /var/run/cdi of a test, with one specification."""
    etc, run = tmp_path / "etc-cdi", tmp_path / "run-cdi"
    etc.mkdir()
    run.mkdir()
    (tmp_path / "libcuda").write_text("the driver")
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\ncat >/dev/null\necho ran "$@" >>{tmp_path}/hooks\n')
    hook.chmod(0o755)
    (etc / "nvidia.yaml").write_text(NVIDIA.format(library=tmp_path / "libcuda", hook=hook))
    return etc, run


def _spec(folder: Path, name: str, **changes: Any) -> Path:
    document = {
        "cdiVersion": "1.0.0",
        "kind": "vendor.com/net",
        "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
        **changes,
    }
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def test_devices_of_json_and_yaml_are_found_and_the_later_folder_wins(folders: tuple[Path, Path]) -> None:
    etc, run = folders
    _spec(etc, "vendor.json")
    _spec(run, "vendor.json", devices=[{"name": "a", "containerEdits": {"env": ["A=2"]}}])
    (etc / "notes.txt").write_text("not a specification")
    devices = Devices(folders)
    assert devices.names == ("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1111", "vendor.com/net=a")
    assert devices.edits(["vendor.com/net=a"]).environment == ("A=2",)
    assert devices.problems == []
    assert devices.of_gpu("GPU-1111", 7) == "nvidia.com/gpu=GPU-1111"
    assert devices.of_gpu("GPU-unknown", 0) == "nvidia.com/gpu=0"
    assert devices.of_gpu("GPU-unknown", 9) is None


def test_a_device_that_two_files_of_one_folder_name_is_no_device(folders: tuple[Path, Path]) -> None:
    _spec(folders[0], "one.json")
    _spec(folders[0], "two.json")
    devices = Devices(folders)
    assert "vendor.com/net=a" not in devices.names
    with pytest.raises(NotFoundError, match="no such device") as caught:
        devices.edits(["vendor.com/net=a"])
    assert "in two specifications" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cdiVersion": "9.0.0"}, "cdiVersion"),
        ({"kind": "nonsense"}, "kind"),
        ({"devices": [{"name": "a"}]}, "containerEdits is missing"),
        ({"devices": [{"name": "../a", "containerEdits": {}}]}, "device name"),
        ({"containerEdits": {"intelRdt": {}}}, "cannot apply intelRdt"),
        ({"containerEdits": {"env": ["=x"]}}, "environment variable"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/../etc"}]}}, "path is"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "permissions": "rwx"}]}}, "permissions"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "major": -1}]}}, "major"),
        ({"containerEdits": {"hooks": [{"hookName": "sometimes", "path": "/x"}]}}, "hook is"),
        ({"containerEdits": {"mounts": [{"hostPath": "x", "containerPath": "/x"}]}}, "hostPath is"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "fileMode": 99999999999}]}}, "fileMode"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "minor": 1 << 20}]}}, "minor"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "major": 4096}]}}, "major"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "uid": 1 << 32}]}}, "uid"),
        ({"containerEdits": {"additionalGids": [1 << 32]}}, "additional group"),
        ({"cdiVersion": ["1.0.0"]}, "cdiVersion is not text: ['1.0.0']"),
        ({"kind": 7}, "kind is not text: 7"),
        ({"devices": 7}, "devices is not a list: 7"),
        ({"devices": ["a"]}, "devices[0] is not a table: 'a'"),
        ({"devices": [{"name": ["a"], "containerEdits": {}}]}, "name is not text"),
        ({"devices": [{"name": "a", "containerEdits": [1]}]}, "containerEdits is not a table: [1]"),
        ({"containerEdits": {"env": [["A=1"]]}}, "env[0] is not text: ['A=1']"),
        ({"containerEdits": {"env": "A=1"}}, "env is not a list: 'A=1'"),
        ({"containerEdits": {"deviceNodes": [{"path": 7}]}}, "path is not text: 7"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "type": ["c"]}]}}, "type is not text"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "permissions": 7}]}}, "permissions is not"),
        ({"containerEdits": {"hooks": [{"hookName": ["prestart"], "path": "/x"}]}}, "hookName is not text"),
        ({"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/x", "args": 7}]}}, "args is not"),
        ({"containerEdits": {"additionalGids": 7}}, "additionalGids is not a list: 7"),
    ],
)
def test_a_specification_that_cannot_be_used_is_named_and_takes_no_other_away(
    folders: tuple[Path, Path], changes: Mapping[str, Any], what: str
) -> None:
    bad = _spec(folders[0], "bad.json", **changes)
    devices = Devices(folders)
    assert "nvidia.com/gpu=0" in devices.names
    assert len(devices.problems) == 1
    assert str(bad) in devices.problems[0]
    assert what in devices.problems[0]


def test_what_is_no_regular_file_is_a_problem_and_not_waited_for(folders: tuple[Path, Path]) -> None:
    os.mkfifo(folders[0] / "fifo.yaml")
    (folders[0] / "folder.json").mkdir()
    (folders[0] / "link.json").symlink_to("/dev/zero")
    devices = Devices(folders)
    assert len(devices.problems) == 3
    assert "not a regular file" in devices.problems[0]
    assert "nvidia.com/gpu=0" in devices.names


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"a: [", b"[]", b"", b"- " * 100_000])
def test_a_file_that_is_no_specification_is_a_problem_and_no_crash(
    folders: tuple[Path, Path], content: bytes
) -> None:
    for name in ("bad.yaml", "bad.json"):
        (folders[0] / name).write_bytes(content)
    devices = Devices(folders)
    assert len(devices.problems) == 2
    assert "nvidia.com/gpu=0" in devices.names


@pytest.mark.parametrize("name", ["0", "nvidia.com/gpu", "gpu=0", "nvidia.com/gpu=", "a/b=../c", "a/b=c d"])
def test_a_name_that_no_device_can_have_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="not VENDOR/CLASS=NAME"):
        check_device_name(name)


def test_an_unknown_device_is_refused_with_those_there_are(folders: tuple[Path, Path]) -> None:
    with pytest.raises(NotFoundError) as caught:
        Devices(folders).edits(["nvidia.com/gpu=3"])
    assert "nvidia.com/gpu=0" in (caught.value.hint or "")
    with pytest.raises(NotFoundError) as nothing:
        Devices((folders[1],)).edits(["nvidia.com/gpu=0"])
    assert "nvidia-ctk cdi generate" in (nothing.value.hint or "")


def test_edits_reach_every_part_of_the_bundle_and_can_be_taken_out(folders: tuple[Path, Path]) -> None:
    before: dict[str, Any] = {
        "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"], "user": {"uid": 5, "gid": 6}},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
        "annotations": {},
    }
    made = inject(before, ["nvidia.com/gpu=GPU-1111"], Devices(folders))
    assert made["process"]["env"] == ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
    nodes = {node["path"]: node for node in made["linux"]["devices"]}
    assert (nodes["/dev/nvidia1"]["major"], nodes["/dev/nvidia1"]["minor"]) == (1, 7)
    # the container's user, where the specification says nothing
    assert (nodes["/dev/nvidia1"]["uid"], nodes["/dev/nvidiactl"]["uid"]) == (0, 5)
    rules = made["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert {"allow": True, "type": "c", "major": 1, "minor": 7, "access": "rw"} in rules
    assert [mount["destination"] for mount in made["mounts"]] == ["/proc", "/opt/driver/libcuda.so.580"]
    assert made["hooks"]["createContainer"][0]["args"] == ["hook", "create-symlinks"]
    assert injected(made) == ("nvidia.com/gpu=GPU-1111",)
    out = without_devices(made)
    assert (out["mounts"], out["linux"]["devices"]) == (before["mounts"], [])
    assert out["linux"]["resources"] == before["linux"]["resources"]
    assert out["process"]["env"] == ["PATH=/bin"]
    assert injected(out) == ()


def test_a_device_or_library_that_is_gone_from_the_host_is_named(folders: tuple[Path, Path]) -> None:
    text = (folders[0] / "nvidia.yaml").read_text()
    (folders[0] / "nvidia.yaml").write_text(text.replace("/dev/zero", "/dev/nothing-there"))
    with pytest.raises(NotFoundError, match="device does not exist on this host: /dev/nothing-there"):
        inject({}, ["nvidia.com/gpu=0"], Devices(folders))
    (folders[0].parent / "libcuda").unlink()
    with pytest.raises(NotFoundError, match=r"what a device needs does not exist.*libcuda"):
        inject({}, ["nvidia.com/gpu=GPU-1111"], Devices(folders))


def test_a_driver_of_another_version_is_refused_by_the_file_that_differs(folders: tuple[Path, Path]) -> None:
    made = inject({}, ["nvidia.com/gpu=0"], Devices(folders))
    text = (folders[0] / "nvidia.yaml").read_text()
    (folders[0] / "nvidia.yaml").write_text(text.replace("libcuda.so.580", "libcuda.so.590"))
    with pytest.raises(DataError, match=r"do not bring what the snapshot had mounted: .*libcuda\.so\.580"):
        exchange(made, ["nvidia.com/gpu=0"], Devices(folders))


@pytest.fixture
def lab(tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("COLDSTART_CDI_FOLDERS", " ".join(map(str, folders)))
    with laboratory(tmp_path) as lab:
        yield lab


def _node(pid: int, path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(f"/proc/{pid}/root{path}")
    except FileNotFoundError:
        return None
    assert stat.S_ISCHR(status.st_mode)
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def test_a_container_comes_back_with_another_gpu_and_the_driver_files_in_place(
    lab: Lab, folders: tuple[Path, Path]
) -> None:
    port = free_port()
    container, overlay, log = lab.start("source", port, devices=("nvidia.com/gpu=0",))
    assert _node(container.pid, "/dev/nvidia0") == (1, 5)
    assert _node(container.pid, "/dev/nvidiactl") == (1, 3)
    assert Path(f"/proc/{container.pid}/root/opt/driver/libcuda.so.580").read_text() == "the driver"
    hooks = folders[0].parent / "hooks"
    assert hooks.read_text() == "ran create-symlinks\n"
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    lab.erase(container, overlay, log)
    plan = plan_restore("web", lab.config)
    # the same driver elsewhere: where it lies on the host is not the snapshot's affair
    (folders[0].parent / "libcuda").rename(folders[0].parent / "moved")
    text = (folders[0] / "nvidia.yaml").read_text()
    (folders[0] / "nvidia.yaml").write_text(text.replace("/libcuda\n", "/moved\n"))
    for turn, names in (("same", ()), ("other", ("nvidia.com/gpu=GPU-1111",))):
        target = lab.overlay(turn)
        unpack_upper(plan.upper_archive, target.upper)
        target.mount()
        restored = restore_container(
            plan,
            lab.config,
            root=target.root,
            container_id=lab.id(turn),
            log=lab.tmp_path / turn / "log",
            devices=names,
        )
        wait_ready(url(port), 60, pid=restored.pid)
        assert ask(port, "/health") == "ok"
        assert Path(f"/proc/{restored.pid}/root/opt/driver/libcuda.so.580").read_text() == "the driver"
        assert _node(restored.pid, "/dev/nvidiactl") == (1, 3)
        if turn == "same":
            assert _node(restored.pid, "/dev/nvidia0") == (1, 5)
        else:
            assert _node(restored.pid, "/dev/nvidia1") == (1, 7)
            assert injected(read_bundle(restored.bundle)) == names
        kill_and_delete(restored.id, runc_root=lab.runc_root)
    assert hooks.read_text() == "ran create-symlinks\n"
