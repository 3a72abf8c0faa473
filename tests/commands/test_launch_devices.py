"""Replicas whose containers get devices: those that the specification names, and the pool's GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from replicas import Replica
from stand_ins.gpu_driver import GpuDriver

_FIRST, _SECOND = (f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (0, 1))
# device files that every host has play the GPUs: zero and full
_SPECIFICATION = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}]}},
        {
            "name": _SECOND,
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1", "hostPath": "/dev/full"}]},
        },
    ],
}


def _with_gpus(replica: Replica, folder: Path) -> GpuDriver:
    driver = GpuDriver(folder)
    driver.control("* count 2")
    cdi = folder / "cdi"
    cdi.mkdir()
    (cdi / "nvidia.json").write_text(json.dumps(_SPECIFICATION))
    replica.coldstart.environment |= driver.environment | {"COLDSTART_CDI_FOLDERS": str(cdi)}
    return driver


def _nodes(pid: int) -> list[str]:
    return sorted(name for name in os.listdir(f"/proc/{pid}/root/dev") if name.startswith("nvidia"))


def test_gpus_of_the_pool_reach_the_container_and_a_restore_gets_those_that_are_free_then(
    replica: Replica, tmp_path: Path
) -> None:
    _with_gpus(replica, tmp_path)
    replica.write(gpus="1")
    result = replica.launch("--detach", "--json", "--snapshot-when-ready")
    assert result.status == 0, result.stderr
    assert _nodes(json.loads(result.stdout)["pid"]) == ["nvidia0"]
    assert replica.stop().status == 0
    taken = replica.coldstart("pool", "take", "somebody", "--json")
    assert _FIRST in taken.stdout, taken.stderr
    result = replica.launch("--detach", "--json", "--no-fallback")
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["method"] == "restore"
    assert "nvidia1" in _nodes(document["pid"])
    assert replica.stop().status == 0


def test_a_gpu_that_no_specification_names_is_warned_of(replica: Replica, tmp_path: Path) -> None:
    _with_gpus(replica, tmp_path)
    replica.coldstart.environment["COLDSTART_CDI_FOLDERS"] = str(tmp_path / "none")
    replica.write(gpus="1")
    result = replica.launch("--cold", "--detach")
    assert result.status == 0, result.stderr
    assert f"no CDI specification names GPU {_FIRST}" in result.stderr
    assert "nvidia-ctk cdi generate" in result.stderr
    assert replica.stop().status == 0


def test_devices_of_the_specification_are_given_and_unknown_ones_refused_before_anything_runs(
    replica: Replica, tmp_path: Path
) -> None:
    _with_gpus(replica, tmp_path)
    replica.write(devices='["nvidia.com/gpu=0"]')
    result = replica.launch("--cold", "--detach", "--json")
    assert result.status == 0, result.stderr
    assert _nodes(json.loads(result.stdout)["pid"]) == ["nvidia0"]
    assert replica.stop().status == 0
    replica.write(devices='["nvidia.com/gpu=7"]')
    for how in ("--detach", "--dry-run"):
        result = replica.launch("--cold", how)
        assert result.status == 66, result.stderr
        assert "no such device: nvidia.com/gpu=7" in result.stderr
    replica.write(devices='["seven"]')
    result = replica.launch("--cold", "--detach")
    assert result.status == 65, result.stderr
    assert "device is not VENDOR/CLASS=NAME: 'seven'" in result.stderr
    replica.write(devices='["nvidia.com/gpu=0"]', gpus="1")
    assert "exclude each other" in replica.launch("--cold", "--detach").stderr
