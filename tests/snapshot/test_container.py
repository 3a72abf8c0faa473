"""A container of ours: what it gets, what it does not, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, DataError, UsageError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.containers.bundle import read_bundle, write_restored_bundle
from coldstart_snapshot.containers.container import (
    bundle_folder,
    kill_and_delete,
    run_container,
)
from coldstart_snapshot.containers.new_bundle import ContainerSpec, Mount
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.containers.seccomp import PROFILES, convert_profile, default_profile
from conftest import wait_until
from snapshot.servers import PYTHON, Lab, ask, free_port, laboratory, url

_ASK_SELF = r"""
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def fails_with(*call):
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(*call) < 0 else None
status = dict(line.split(':\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\t' in line)
print(json.dumps({
    'pid': os.getpid(),
    'descriptors': sorted(os.listdir('/proc/self/fd'))[:-1],
    'no_new_privileges': status['NoNewPrivs'].strip(),
    'capabilities': status['CapEff'].strip(),
    'seccomp': status['Seccomp'].strip(),
    'io_uring': fails_with(425, 1, None),
    'sysctl': os.access('/proc/sys/kernel/panic', os.W_OK),
    'mounted': open('/mnt/file').read(),
    'read_only': not os.access('/mnt/file', os.W_OK),
    'environment': os.environ.get('GREETING'),
    'folder': os.getcwd(),
    'groups': os.getgroups(),
    'devices': sorted(os.listdir('/dev')),
}), flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_it_gets_the_usual_confinement_and_only_what_its_specification_says(lab: Lab) -> None:
    shared = lab.tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("shared")
    overlay = lab.overlay("root").mount()
    log = lab.tmp_path / "log"
    inherited = os.open(shared / "file", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        spec = ContainerSpec(
            id=lab.id("self"),
            root=overlay.root,
            arguments=(PYTHON, "-c", _ASK_SELF),
            environment={"PATH": "/usr/bin", "GREETING": "grüße"},
            log=log,
            working_directory="/usr",
            groups=(44, 60),
            mounts=(Mount(shared, "/mnt"),),
        )
        container = run_container(spec, lab.config)
    finally:
        os.close(inherited)
    wait_until(lambda: log.exists() and log.read_text().endswith("}\n"), "the container answers")
    answer = json.loads(log.read_text())
    devices = answer.pop("devices")
    assert {"null", "zero", "urandom", "shm", "pts"} <= set(devices)
    assert not {"kmsg", "fuse", "sda", "vda", "kvm"} & set(devices)
    has_profile = any(path.exists() for path in PROFILES)
    assert answer == {
        "pid": 1,
        "descriptors": ["0", "1", "2"],
        "no_new_privileges": "1",
        "capabilities": "00000000800405fb",
        "seccomp": "2" if has_profile else "0",
        "io_uring": "ENOSYS" if has_profile else answer["io_uring"],
        "sysctl": False,
        "mounted": "shared",
        "read_only": True,
        "environment": "grüße",
        "folder": "/usr",
        "groups": [44, 60],
    }
    assert bool(container.warnings) == (not has_profile)


def test_it_ends_with_all_its_processes_and_leaves_no_bundle(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "child")
    assert len(lab.processes_in(container.id)) == 2
    Runc.find(None, lab.runc_root).pause(container.id)
    kill_and_delete(container.id, runc_root=lab.runc_root)
    assert lab.processes_in(container.id) == []
    assert not bundle_folder(lab.runc_root, container.id).exists()
    kill_and_delete(container.id, runc_root=lab.runc_root)


def test_one_that_cannot_start_leaves_nothing_and_says_why(lab: Lab) -> None:
    overlay = lab.overlay("root").mount()
    container_id = lab.id("bad")
    spec = ContainerSpec(container_id, overlay.root, ("/no/such/program",), {}, lab.tmp_path / "log")
    with pytest.raises(ColdstartError, match=r"/no/such/program.*no such file or directory"):
        run_container(spec, lab.config)
    assert Runc.find(None, lab.runc_root).state(container_id) is None
    assert not bundle_folder(lab.runc_root, container_id).exists()


def test_an_id_is_used_once_and_is_a_plain_name(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start("web", port)
    spec = ContainerSpec(container.id, overlay.root, ("/bin/true",), {}, log)
    with pytest.raises(BusyError, match="container id is in use"):
        run_container(spec, lab.config)
    assert ask(port) == "1"
    with pytest.raises(UsageError, match="invalid container id"):
        run_container(ContainerSpec("../x", overlay.root, ("/bin/true",), {}, log), lab.config)


def test_its_output_is_appended_to_a_log_that_only_root_reads(lab: Lab) -> None:
    port = free_port()
    log = lab.tmp_path / "web.log"
    log.write_text("before\n")
    log.chmod(0o600)
    container, _, _ = lab.start("web", port)
    ask(port)
    wait_until(lambda: log.read_text() == "before\nrequest 1\n", "the log has the request")
    wait_ready(url(port), 60, pid=container.pid)


def test_a_mount_source_that_is_not_there_is_refused(lab: Lab) -> None:
    mounts = (Mount(lab.tmp_path / "absent", "/mnt"),)
    spec = ContainerSpec(lab.id("x"), lab.tmp_path, ("/bin/true",), {}, lab.tmp_path / "log", mounts=mounts)
    with pytest.raises(UsageError, match="mount source does not exist"):
        run_container(spec, lab.config)


def test_a_restored_bundle_has_the_new_root_and_id_and_no_hooks(tmp_path: Path) -> None:
    recorded = {
        "root": {"path": "/old", "readonly": True},
        "hooks": {"prestart": [{"path": "/usr/bin/hook"}]},
        "linux": {"cgroupsPath": "/old", "namespaces": [{"type": "pid"}]},
        "mounts": [{"destination": "/mnt", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}],
    }
    write_restored_bundle(tmp_path, recorded, root=tmp_path, container_id="new")
    written = read_bundle(tmp_path)
    assert written["root"] == {"path": str(tmp_path), "readonly": True}
    assert written["linux"] == {"cgroupsPath": "/coldstart/new", "namespaces": [{"type": "pid"}]}
    assert "hooks" not in written
    recorded["mounts"][0]["source"] = "/no/such/folder"  # type: ignore[index]
    with pytest.raises(DataError, match="does not exist: /no/such/folder") as caught:
        write_restored_bundle(tmp_path, recorded, root=tmp_path, container_id="new")
    assert "/mnt" in str(caught.value.hint)


# --- seccomp ---

_PROFILE = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
    "syscalls": [
        {"names": ["read", "io_uring_setup"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_BPF"]}},
        {"names": ["arch_prctl"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64"]}},
        {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
    ],
}


def _names(capabilities: set[str], machine: str = "x86_64", release: str = "6.1.0") -> list[str]:
    converted = convert_profile(_PROFILE, frozenset(capabilities), machine, release)
    return [name for rule in converted["syscalls"] for name in rule["names"]]


def test_a_profile_s_conditions_are_resolved_for_container_and_host() -> None:
    assert _names({"CAP_CHOWN"}) == ["read", "bpf", "arch_prctl", "ptrace"]
    assert _names({"CAP_SYS_ADMIN", "CAP_BPF"}) == ["read", "mount", "arch_prctl", "ptrace"]
    assert _names(set(), machine="aarch64") == ["read", "bpf", "ptrace"]
    assert _names(set(), release="4.4.0-generic") == ["read", "bpf", "arch_prctl"]


def test_errors_and_architectures_are_kept() -> None:
    converted = convert_profile(_PROFILE, frozenset(), "x86_64", "6.1")
    assert converted["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]
    assert converted["defaultErrnoRet"] == 38
    assert {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1} in converted["syscalls"]


def test_a_host_without_a_profile_has_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert default_profile([], [tmp_path / "absent"]) is None
    (tmp_path / "damaged").write_text("{")
    with pytest.raises(DataError, match="seccomp profile cannot be read"):
        default_profile([], [tmp_path / "damaged"])
