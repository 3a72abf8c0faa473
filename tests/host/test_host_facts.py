"""Limits of the container, the clock, processes by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from coldstart_host.cgroup import CgroupLimits, read_cgroup_limits
from coldstart_host.clock import read_clock
from coldstart_host.processes import parent_of, processes_named
from conftest import wait_until


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


def test_the_tightest_group_of_the_second_hierarchy_counts(tmp_path: Path) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/pod/container\n")
    write(mount, cgroup__controllers="memory cpu")
    write(
        mount / "pod",
        memory__max="1000",
        memory__current="900",
        memory__stat="inactive_file 600",
        cpu__max="150000 100000",
    )
    write(mount / "pod" / "container", memory__max="max", memory__current="900", cpu__max="max 100000")
    assert read_cgroup_limits(mount, own) == CgroupLimits(1000, 300, 1.5)


def test_the_first_hierarchy_has_its_own_files(tmp_path: Path) -> None:
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("4:memory:/box\n1:cpu,cpuacct:/box\n")
    write(mount / "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    write(
        mount / "memory" / "box",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="700",
        memory__stat="inactive_file 1\ntotal_inactive_file 200",
    )
    write(mount / "cpu" / "box", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert read_cgroup_limits(mount, own) == CgroupLimits(1000, 500, 0.5)


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    assert read_cgroup_limits(tmp_path / "no", tmp_path / "own") == CgroupLimits()


def test_the_clock_of_this_host_is_read() -> None:
    first, second = read_clock(), read_clock()
    assert abs(first.booted_at - second.booted_at) < 1
    assert abs(time.time() - first.booted_at - first.uptime_seconds) < 1
    assert first.synchronised in {True, False, None}


def test_processes_are_found_by_name_with_their_parent(tmp_path: Path) -> None:
    program = tmp_path / "a-very-long-program-name"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        wait_until(lambda: child.pid in processes_named(program.name), "the program to have its name")
        assert parent_of(child.pid) == os.getpid()
    finally:
        child.kill()
        child.wait()
    assert child.pid not in processes_named(program.name)
    assert parent_of(child.pid) == 0


@pytest.mark.parametrize("name", ["no-such-program", ""])
def test_a_name_that_nobody_has_finds_nobody(name: str) -> None:
    assert processes_named(name) == ()
