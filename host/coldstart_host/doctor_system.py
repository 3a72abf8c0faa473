"""Checks that read the kernel and the file systems."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coldstart_cli.errors import ConfigError
from coldstart_cli.own_folders import require_own_folder
from coldstart_host.cgroup import CgroupLayout, read_cgroup_facts
from coldstart_host.cpu import read_cpu_facts
from coldstart_host.doctor_finding import Budget, DoctorInput, Fact, Finding, Status
from coldstart_host.kernel import read_kernel_facts

_MODULES = Path("/lib/modules")
_SECCOMP_PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))
# clone3 with set_tid, which criu needs to give a process its old number, came with Linux 5.5
_KERNEL_OLDEST = (5, 5)
_LOW_BYTES = 1 << 30
_SHORT_BYTES = 20 << 30


def kernel(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    facts = read_kernel_facts()
    values: dict[str, Fact] = {"release": facts.release, "version": facts.version}
    if facts.number < _KERNEL_OLDEST:
        return Finding(
            "kernel",
            Status.FAULT,
            f"Linux {facts.release} cannot restore a process under its old number",
            cost="snap restore, and launch from a snapshot",
            remedy="boot Linux 5.5 or newer",
            facts=values,
        )
    return Finding("kernel", Status.OK, f"Linux {facts.release}", facts=values)


def cpu(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    facts = read_cpu_facts()
    xsave = f", XSAVE area {facts.xsave_bytes} bytes" if facts.xsave_bytes else ""
    held = "cpuid_fault" in facts.flags
    by = ", variants of lower levels are proven by answering CPUID" if held else ""
    detail = f"{facts.brand or facts.vendor}, {facts.level}{xsave}{by}"
    return Finding("cpu", Status.OK, detail, facts={"level": facts.level, "cpuid_fault": held})


def user(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    if os.geteuid() == 0:
        return Finding("user", Status.OK, "root")
    return Finding(
        "user",
        Status.NOTE,
        f"uid {os.geteuid()}, not root",
        cost="launch, snap create, snap restore, image mount --overlay",
        remedy="sudo coldstart doctor",
    )


def fuse(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    problem = read_kernel_facts().fuse_problem
    if problem is None:
        return Finding("fuse", Status.OK, "/dev/fuse can be opened")
    remedy = "modprobe fuse; for a container: --device /dev/fuse"
    if os.geteuid() != 0 and os.path.exists("/dev/fuse"):
        remedy = "run as root, or let users open it: chmod 0666 /dev/fuse"
    return Finding("fuse", Status.FAULT, problem, "image mount, launch", remedy)


def overlay(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    facts = read_kernel_facts()
    if facts.overlay:
        return Finding("overlay", Status.OK, "overlayfs is there")
    if any((_MODULES / facts.release / "kernel/fs/overlayfs").glob("overlay.ko*")):
        return Finding("overlay", Status.OK, "overlayfs is a module, loaded by the first mount")
    return Finding(
        "overlay",
        Status.FAULT,
        "this kernel has no overlayfs",
        cost="image mount --overlay, launch",
        remedy="modprobe overlay, or boot a kernel with CONFIG_OVERLAY_FS",
    )


def cgroup(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    facts = read_cgroup_facts()
    values: dict[str, Fact] = {"layout": facts.layout.value, "path": str(facts.path or "")}
    values["controllers"] = " ".join(facts.controllers)
    if facts.layout is CgroupLayout.NONE:
        return Finding(
            "cgroup",
            Status.FAULT,
            "no cgroup hierarchy is mounted",
            cost="launch, snap create and snap restore of containers",
            remedy="mount -t cgroup2 none /sys/fs/cgroup",
            facts=values,
        )
    if not facts.delegated:
        return Finding(
            "cgroup",
            Status.NOTE,
            f"{facts.layout}, and {facts.path} is not ours to divide",
            cost="launch and snap restore of containers",
            remedy="run as root, or with Delegate=yes in the unit",
            facts=values,
        )
    detail = f"{facts.layout}, groups can be made below {facts.path}"
    return Finding("cgroup", Status.OK, detail, facts=values)


def seccomp(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    for profile in _SECCOMP_PROFILES:
        try:
            json.loads(profile.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            return Finding(
                "seccomp",
                Status.FAULT,
                f"{profile} cannot be read: {error}",
                cost="launch",
                remedy="apt-get install --reinstall golang-github-containers-common",
            )
        return Finding("seccomp", Status.OK, f"default profile {profile}")
    return Finding(
        "seccomp",
        Status.NOTE,
        "the distribution's default profile is not installed",
        cost="containers run without a system call filter",
        remedy="apt-get install --no-install-recommends golang-github-containers-common",
    )


def state_folder(configured: DoctorInput, budget: Budget) -> Finding:
    del budget
    return _folder("state folder", configured.state_folder, "snap create, image index", "state_dir")


def cache_folder(configured: DoctorInput, budget: Budget) -> Finding:
    del budget
    return _folder("cache folder", configured.cache_folder, "image mount, launch", "cache_dir")


def _folder(check: str, folder: Path, cost: str, key: str) -> Finding:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    values: dict[str, Fact] = {"path": str(folder)}
    try:
        require_own_folder(folder, key)
    except ConfigError as error:
        return Finding(check, Status.FAULT, error.message, cost, error.hint, values)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        status = Status.FAULT if os.geteuid() == 0 else Status.NOTE
        remedy = f"name another folder with `{key}` in the configuration"
        return Finding(check, status, f"{existing} cannot be written to", cost, remedy, values)
    disk = os.statvfs(existing)
    free_bytes = disk.f_bavail * disk.f_frsize
    total_bytes = disk.f_blocks * disk.f_frsize
    values |= {"free_bytes": free_bytes, "total_bytes": total_bytes}
    detail = f"{folder}: {_gib(free_bytes)} of {_gib(total_bytes)} free"
    remedy = f"free space there, or name another folder with `{key}` in the configuration"
    if free_bytes < _LOW_BYTES:
        return Finding(check, Status.FAULT, detail, cost, remedy, values)
    if free_bytes < _SHORT_BYTES and free_bytes < total_bytes // 10:
        return Finding(check, Status.NOTE, detail, "large images and snapshots may not fit", remedy, values)
    return Finding(check, Status.OK, detail, facts=values)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
