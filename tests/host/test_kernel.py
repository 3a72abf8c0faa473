"""Kernel and cgroup facts, from this host and from folders laid out like other hosts'."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_host.cgroup import CgroupLayout, read_cgroup_facts
from coldstart_host.kernel import read_kernel_facts, release_number


def test_the_kernel_of_this_host() -> None:
    facts = read_kernel_facts()
    assert facts.release == os.uname().release
    assert facts.number > (3, 0)
    assert "proc" in facts.filesystems


@pytest.mark.parametrize(
    ("release", "number"),
    [("6.18.44-fc", (6, 18)), ("5.15.0-1084-azure", (5, 15)), ("7.0", (7, 0)), ("custom", (0, 0))],
)
def test_release_numbers_compare_as_numbers(release: str, number: tuple[int, int]) -> None:
    assert release_number(release) == number


def test_a_missing_fuse_device_is_named(tmp_path: Path) -> None:
    problem = read_kernel_facts(fuse_device=tmp_path / "fuse").fuse_problem
    assert problem == f"{tmp_path}/fuse: No such file or directory"


def test_a_host_without_proc_has_no_file_systems(tmp_path: Path) -> None:
    assert read_kernel_facts(proc=tmp_path).filesystems == ()


def test_overlay_is_found_by_whole_name(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\tproc\n\text4\nnodev\toverlay\n")
    assert read_kernel_facts(proc=tmp_path).overlay
    (tmp_path / "filesystems").write_text("nodev\toverlayfoo\n")
    assert not read_kernel_facts(proc=tmp_path).overlay


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_a_v2_host_shows_its_controllers_and_group(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    group = mount / "system.slice" / "coldstart.service"
    group.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu io memory pids\n")
    (group / "cgroup.controllers").write_text("memory pids\n")
    (group / "cgroup.procs").write_text("")
    facts = read_cgroup_facts(mount, _own(tmp_path, "0::/system.slice/coldstart.service\n"))
    assert facts.layout is CgroupLayout.V2
    assert facts.path == group
    assert facts.controllers == ("memory", "pids")
    assert facts.delegated


def test_a_group_of_another_namespace_falls_back_to_the_root_of_the_mount(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    mount.mkdir()
    (mount / "cgroup.controllers").write_text("pids\n")
    facts = read_cgroup_facts(mount, _own(tmp_path, "0::/../../elsewhere\n"))
    assert facts.path == mount
    assert not facts.delegated


def test_a_hybrid_host_is_not_taken_for_v2(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    (mount / "unified").mkdir(parents=True)
    (mount / "unified" / "cgroup.controllers").write_text("")
    (mount / "pids").mkdir()
    (mount / "pids" / "cgroup.procs").write_text("")
    facts = read_cgroup_facts(mount, _own(tmp_path, "2:pids:/\n1:name=systemd:/\n0::/\n"))
    assert facts.layout is CgroupLayout.HYBRID
    assert facts.path == mount / "unified"
    assert facts.controllers == ("pids", "systemd")


def test_a_v1_host_and_a_host_without_cgroups(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    assert read_cgroup_facts(mount, tmp_path / "absent").layout is CgroupLayout.NONE
    (mount / "pids" / "job").mkdir(parents=True)
    for folder in (mount / "pids", mount / "pids" / "job"):
        (folder / "cgroup.procs").write_text("")
    facts = read_cgroup_facts(mount, _own(tmp_path, "3:pids:/job\n2:cpu,cpuacct:/\n"))
    assert facts.layout is CgroupLayout.V1
    assert facts.path == mount / "pids" / "job"
    assert facts.controllers == ("cpu", "cpuacct", "pids")
