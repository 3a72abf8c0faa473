"""Checks of the programs and Python packages that coldstart works with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import INSTALL_HINTS, find_program
from coldstart_host.doctor_finding import Budget, DoctorInput, Fact, Finding, Status
from coldstart_host.kernel import criu_needed, read_kernel_facts, release_number

_SNAPSHOTS = "snap create, snap restore, launch from a snapshot"
# features that decide how a capture is made, never whether it is possible
_CRIU_FEATURES = {
    "mem_dirty_track": "dirty tracking (pre-dump)",
    "uffd-noncoop": "lazy pages",
    "network_lock_nftables": "nftables lock",
}


def criu(configured: DoctorInput, budget: Budget) -> Finding:
    try:
        path = find_program("criu", configured.criu)
    except UnavailableError as error:
        return Finding("criu", Status.FAULT, error.message, _SNAPSHOTS, INSTALL_HINTS["criu"])
    version = _version(path, budget)
    kernel = read_kernel_facts()
    needed = criu_needed(kernel.number)
    facts: dict[str, Fact] = {"path": path, "version": version}
    found = f"{path}, version {version}"
    if release_number(version) < needed:
        text = ".".join(map(str, needed))
        detail = f"{found}: Linux {kernel.release} needs criu {text} or newer"
        return Finding("criu", Status.FAULT, detail, _SNAPSHOTS, INSTALL_HINTS["criu"], facts)
    if os.geteuid() != 0:
        remedy = "sudo coldstart doctor"
        return Finding("criu", Status.NOTE, f"{found}, not tried: needs root", None, remedy, facts)
    done = budget.run(path, "check")
    facts["check_seconds"] = round(done.duration_seconds, 3)
    if done.status != 0:
        detail = f"{found}, `criu check` fails: {_reason(done.stdout + done.stderr)}"
        return Finding("criu", Status.FAULT, detail, _SNAPSHOTS, f"{path} check -v4", facts)
    for feature in _CRIU_FEATURES:
        facts[feature] = _has_feature(path, feature, budget)
    absent = [meaning for feature, meaning in _CRIU_FEATURES.items() if not facts[feature]]
    detail = f"{found}, check passed in {done.duration_seconds:.2f} s"
    if absent:
        detail += f"; not on this kernel: {', '.join(absent)}"
    return Finding("criu", Status.OK, detail, facts=facts)


def runc(configured: DoctorInput, budget: Budget) -> Finding:
    cost = "launch, snap create and snap restore of containers"
    return _program("runc", configured.runc, budget, cost, Status.FAULT)


def skopeo(configured: DoctorInput, budget: Budget) -> Finding:
    cost = "image index of a registry reference"
    return _program("skopeo", configured.skopeo, budget, cost, Status.NOTE)


def fusermount3(configured: DoctorInput, budget: Budget) -> Finding:
    del configured
    # root mounts without it, through the mount system call
    status = Status.FAULT if os.geteuid() != 0 else Status.NOTE
    cost = "image mount" if os.geteuid() != 0 else "image mount by other users than root"
    return _program("fusermount3", None, budget, cost, status)


def image_packages(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    absent = [name for name in ("obstore", "zstandard") if importlib.util.find_spec(name) is None]
    if not absent:
        return Finding("image packages", Status.OK, "obstore and zstandard are installed")
    detail, cost = f"not installed: {', '.join(absent)}", "image mount, launch"
    return Finding("image packages", Status.FAULT, detail, cost, "pip install 'coldstart[image]'")


def ortools(configured: DoctorInput, budget: Budget) -> Finding:
    del configured, budget
    if importlib.util.find_spec("ortools") is None:
        remedy = "pip install 'coldstart[pool]'"
        return Finding("ortools", Status.NOTE, "not installed", "pool plan on this host", remedy)
    version = importlib.metadata.version("ortools")
    return Finding("ortools", Status.OK, f"version {version}", facts={"version": version})


def network_lock(configured: DoctorInput, budget: Budget) -> Finding:
    """Criu closes the network while it dumps TCP connections, by nftables or by the iptables programs."""
    cost = "snapshots of servers with open connections"
    try:
        path = find_program("criu", configured.criu)
    except UnavailableError:
        detail = "not tried: there is no criu"
        return Finding("network lock", Status.NOTE, detail, cost, INSTALL_HINTS["criu"])
    if os.geteuid() == 0 and _has_feature(path, "network_lock_nftables", budget):
        return Finding("network lock", Status.OK, "nftables")
    try:
        iptables = find_program("iptables-restore")
    except UnavailableError:
        remedy = "apt-get install --no-install-recommends nftables iptables"
        return Finding("network lock", Status.NOTE, "neither nftables in criu nor iptables", cost, remedy)
    return Finding("network lock", Status.OK, f"iptables ({iptables})")


def _program(name: str, configured: str | None, budget: Budget, cost: str, status: Status) -> Finding:
    try:
        path = find_program(name, configured)
    except UnavailableError as error:
        return Finding(name, status, error.message, cost, error.hint)
    version = _version(path, budget)
    return Finding(name, Status.OK, f"{path}, version {version}", facts={"path": path, "version": version})


def _version(path: str, budget: Budget) -> str:
    done = budget.run(path, "--version")
    match = re.search(r"\d+\.\d+[\w.+~-]*", done.text or done.error_text)
    if match is None:
        raise UnavailableError(f"{path} --version tells no version: {done.error_text or 'no output'}")
    return match[0]


def _has_feature(criu_path: str, feature: str, budget: Budget) -> bool:
    return budget.run(criu_path, "check", "--feature", feature).status == 0


def _reason(output: bytes) -> str:
    """Criu's last error line; `Looks bad` and the complaint about RLIMIT_NOFILE are not one."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error") and "RLIMIT_NOFILE" not in line]
    return (errors or lines or ["no output"])[-1]
