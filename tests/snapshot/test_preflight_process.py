"""Findings about processes, their privileges and their host, with criu as the judge where it can be one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.target import process_target
from coldstart_snapshot.criu.program import Criu, find_criu
from coldstart_snapshot.preflight import devices, host
from coldstart_snapshot.preflight.check import check_target
from coldstart_snapshot.preflight.devices import check_device
from coldstart_snapshot.preflight.scene import look
from coldstart_snapshot.processes.tree import is_alive
from conftest import umount, wait_until
from snapshot.servers import has_capability, require_engine
from snapshot.troubles import checked_process, dump, follower_with, process_with, restored

_CAP_SYS_RESOURCE = 24


@pytest.fixture
def criu() -> Criu:
    require_engine()
    return find_criu()


def _codes(pid: int, criu: Criu, folder: Path) -> list[str]:
    return [finding.code for finding in checked_process(pid, criu, folder).findings]


def test_all_blockers_are_told_at_once_and_nothing_is_touched(criu: Criu, tmp_path: Path) -> None:
    trouble = (
        "vsock = socket.socket(40, socket.SOCK_STREAM); device = os.open('/dev/fuse', os.O_RDWR)\n"
        "watched = os.pidfd_open(os.getppid())"
    )
    with process_with(tmp_path, trouble) as pid:
        with pytest.raises(DataError, match="cannot be captured, for 3 reasons") as caught:
            create_snapshot(CaptureRequest("web", pid=pid), load())
        for word in ("vsock", "/dev/fuse", f"process {os.getpid()}"):
            assert word in caught.value.message
        assert caught.value.hint == f"coldstart snap check --pid {pid}"
        assert not load().state_folder.exists()
        assert is_alive(pid)


def test_a_process_that_leads_no_session_is_named_with_all_else(criu: Criu, tmp_path: Path) -> None:
    with follower_with(tmp_path, "device = os.open('/dev/fuse', os.O_RDWR)") as pid:
        assert _codes(pid, criu, tmp_path) == ["not-session-leader", "fuse-device"]


def test_a_worker_that_was_forked_twice_is_named_since_it_would_be_left_out(
    criu: Criu, tmp_path: Path
) -> None:
    trouble = (
        "if (middle := os.fork()) == 0:\n"
        "    if (worker := os.fork()) == 0:\n        os.execvp('sleep', ['sleep', '600'])\n"
        "    open(f'{folder}/worker', 'w').write(str(worker)); os._exit(0)\n"
        "os.waitpid(middle, 0)\n"
    )
    with process_with(tmp_path, trouble) as pid:
        worker = int((tmp_path / "worker").read_text())
        try:
            (finding,) = checked_process(pid, criu, tmp_path).findings
            assert (finding.code, finding.pid) == ("session-outside", worker)
            with pytest.raises(DataError, match=f"not among its descendants: process {worker} "):
                create_snapshot(CaptureRequest("web", pid=pid), load())
            assert is_alive(pid)
        finally:
            os.kill(worker, 9)
            wait_until(lambda: not is_alive(worker), "the worker to end")


def test_shared_memory_in_a_file_is_noted_and_a_private_or_deleted_one_is_not(
    criu: Criu, tmp_path: Path
) -> None:
    name = f"/dev/shm/coldstart-test-{os.getpid()}"
    trouble = (
        f"made = open('{name}', 'w+b'); made.truncate(8192); shared = mmap.mmap(made.fileno(), 8192)\n"
        f"kept = open('{name}-private', 'w+b'); kept.truncate(4096)\n"
        "private = mmap.mmap(kept.fileno(), 4096, flags=mmap.MAP_PRIVATE)\n"
        "plain = file('plain', 4096, delete=False); also = mmap.mmap(plain.fileno(), 4096)\n"
    )
    try:
        with process_with(tmp_path, trouble) as pid:
            (finding,) = checked_process(pid, criu, tmp_path).findings
            assert (finding.code, finding.path, finding.size_bytes) == ("shared-memory-file", name, 8192)
            assert finding.severity == "note"
    finally:
        for path in (name, f"{name}-private"):
            Path(path).unlink(missing_ok=True)


def test_a_terminal_from_outside_is_named(criu: Criu, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        with process_with(tmp_path, "", stdin=slave) as pid:
            (finding,) = checked_process(pid, criu, tmp_path).findings
            assert (finding.code, finding.descriptor) == ("terminal", 0)
            assert os.ttyname(slave) in finding.what
            with pytest.raises(ColdstartError, match="terminal"):
                dump(pid, criu, tmp_path)
            assert is_alive(pid)
    finally:
        os.close(master)
        os.close(slave)


def test_a_terminal_that_only_controls_the_session_is_harmless(criu: Criu, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        name = os.ttyname(slave)
        # a session leader without a terminal gets the first one that it opens
        trouble = f"os.close(os.open('{name}', os.O_RDWR)); signal.signal(signal.SIGHUP, signal.SIG_IGN)"
        with process_with(tmp_path, trouble) as pid:
            assert _codes(pid, criu, tmp_path) == []
            dump(pid, criu, tmp_path)
        with restored(criu, tmp_path):
            pass
    finally:
        os.close(master)
        os.close(slave)


_TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0  # PTRACE_SEIZE
print('attached', flush=True)
time.sleep(60)
"""


def test_a_tracer_is_named(criu: Criu, tmp_path: Path) -> None:
    with process_with(tmp_path, "") as pid:
        tracer = subprocess.Popen(
            [sys.executable, "-c", _TRACER, str(pid)], stdout=subprocess.PIPE, text=True
        )
        with tracer:
            try:
                assert tracer.stdout is not None
                assert tracer.stdout.readline() == "attached\n"
                (finding,) = checked_process(pid, criu, tmp_path).findings
                assert finding.code == "traced"
                assert finding.peer is not None
                assert finding.peer.pid == tracer.pid
                with pytest.raises(ColdstartError, match="debugger or tracer"):
                    dump(pid, criu, tmp_path)
            finally:
                tracer.kill()


@contextmanager
def _probe(program: str, offset: int) -> Iterator[None]:
    """A probe on a program's code, placed in a mount namespace of its own."""
    event = f"coldstart_{os.getpid()}"
    place = (
        "mount -t tracefs tracefs /mnt && cd /mnt && "
        f"echo 'p:{event}/probe {program}:{offset:#x}' >> uprobe_events && echo 1 > events/{event}/enable"
    )
    take = (
        "mount -t tracefs tracefs /mnt && cd /mnt && "
        f"echo 0 > events/{event}/enable; echo '-:{event}/probe' >> uprobe_events"
    )
    made = subprocess.run(["unshare", "-m", "sh", "-c", place], capture_output=True, timeout=60, check=False)
    if made.returncode != 0:
        pytest.skip(f"no probes here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["unshare", "-m", "sh", "-c", take], capture_output=True, timeout=60, check=False)


def test_probes_of_a_tracer_are_named(criu: Criu, tmp_path: Path) -> None:
    source, program = tmp_path / "probed.c", tmp_path / "probed"
    # an instruction that the kernel does not emulate: it is carried out in the area of the probes
    source.write_text(
        "#include <unistd.h>\n"
        '__attribute__((noinline)) void probed(void) { __asm__ volatile("xorl %%eax, %%eax" ::: "eax"); }\n'
        "int main(void) { for (;;) { probed(); usleep(20000); } }\n"
    )
    built = subprocess.run(
        ["cc", "-O1", "-no-pie", "-fcf-protection=none", "-o", program, source], check=False, timeout=60
    )
    if built.returncode != 0:
        pytest.skip("no C compiler")
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, timeout=60, check=True).stdout
    address = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" T probed"))
    with _probe(str(program), address - 0x400000):
        server = subprocess.Popen(
            [program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            maps = Path(f"/proc/{server.pid}/maps")
            wait_until(lambda: "[uprobes]" in maps.read_text(), "the probe was hit")
            assert _codes(server.pid, criu, tmp_path) == ["uprobes"]
            with pytest.raises(ColdstartError, match="probes into the server's code"):
                dump(server.pid, criu, tmp_path)
        finally:
            server.kill()
            server.wait()


@pytest.mark.skipif(has_capability(_CAP_SYS_RESOURCE), reason="the capability is here")
def test_a_process_of_another_user_needs_a_capability(criu: Criu, tmp_path: Path) -> None:
    trouble = (
        "ready, say = os.pipe()\nif os.fork() == 0:\n    os.setgid(65534); os.setuid(65534)\n"
        "    os.close(ready); os.close(say); time.sleep(60)\n"
        "os.close(say); os.read(ready, 1); os.close(ready)"
    )
    with process_with(tmp_path, trouble) as pid:
        assert _codes(pid, criu, tmp_path) == ["capability-missing"]
        with pytest.raises(ColdstartError, match="CAP_SYS_RESOURCE"):
            dump(pid, criu, tmp_path)


_FILTERED = """
import ctypes, struct, sys
from pathlib import Path
from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.criu.program import find_criu
from snapshot.troubles import checked_process, dump
pid, folder = int(sys.argv[1]), Path(sys.argv[2])
criu = find_criu()
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(allow)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
print(*[finding.code for finding in checked_process(pid, criu, folder).findings])
try:
    dump(pid, criu, folder)
    print('dumped')
except ColdstartError as error:
    print(error.message)
"""


def test_filters_cannot_be_read_by_who_is_filtered(criu: Criu, tmp_path: Path) -> None:
    trouble = (
        "allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(allow)))\n"
        "libc.prctl(38, 1, 0, 0, 0); libc.prctl(22, 2, program, 0, 0)"
    )
    with process_with(tmp_path, trouble) as pid:
        assert _codes(pid, criu, tmp_path) == []
        answer = subprocess.run(
            [sys.executable, "-c", _FILTERED, str(pid), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.splitlines()  # fmt: skip
    assert answer[0] == "seccomp"
    assert "system call filters could not be read" in answer[1]


def test_a_mount_namespace_of_its_own_is_named(criu: Criu, tmp_path: Path) -> None:
    with process_with(tmp_path, "call(272, 0x20000)") as pid:  # unshare
        assert _codes(pid, criu, tmp_path) == ["mount-namespace"]
        with pytest.raises(ColdstartError):
            dump(pid, criu, tmp_path)
        assert is_alive(pid)


def test_devices_of_gpus_are_told_by_number_and_driver(
    criu: Criu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_drivers", lambda: {506: "gdrdrv", 507: "nvidia-uvm"})
    with process_with(tmp_path, "device = os.open('/dev/fuse', os.O_RDWR)") as pid:
        scene = look(process_target(pid), criu, tmp_path, ())
        suspended = look(process_target(pid), criu, tmp_path, [pid])
    (fuse,) = [file for file in scene.files if file.path == "/dev/fuse"]
    for numbers, code in (
        ((195, 255), "gpu-not-suspended"),
        ((507, 0), "gpu-not-suspended"),
        ((506, 0), "gdrdrv"),
    ):
        file = replace(fuse, device=os.makedev(*numbers))
        assert [finding.code for finding in check_device(scene, file)] == [code]
    assert list(check_device(suspended, replace(fuse, device=os.makedev(195, 255)))) == []


def test_libraries_that_are_loaded_into_every_program_are_noted(
    criu: Criu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "preload").write_text("/opt/agent/libhook.so\n")
    monkeypatch.setattr(host, "_PRELOAD", tmp_path / "preload")
    with process_with(tmp_path, "") as pid:
        (finding,) = checked_process(pid, criu, tmp_path).findings
    assert (finding.code, finding.severity) == ("preload", "note")
    assert "/opt/agent/libhook.so" in finding.what


def test_a_small_disk_is_refused_before_anything_is_touched(
    criu: Criu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", state], check=True, timeout=60)
    try:
        monkeypatch.setenv("COLDSTART_STATE_DIR", str(state))
        with process_with(tmp_path, "memory = os.urandom(8 << 20)") as pid:
            (finding,) = check_target(process_target(pid), criu, state).findings
            assert finding.code == "disk-space"
            assert (finding.size_bytes or 0) > 8 << 20
            with pytest.raises(CannotCreateError, match="not enough space for the snapshot"):
                create_snapshot(CaptureRequest("web", pid=pid), load())
        assert list(state.iterdir()) == []
    finally:
        umount(state)


def test_a_state_folder_in_memory_needs_that_memory(
    criu: Criu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Memory:
        available = 1 << 20

    monkeypatch.setattr(host.psutil, "virtual_memory", _Memory)
    with process_with(tmp_path, "") as pid:
        assert _codes(pid, criu, tmp_path) == []
        findings = check_target(process_target(pid), criu, Path("/dev/shm")).findings
    assert [finding.code for finding in findings] == ["memory"]
