"""Every text of criu that people meet is told by its code; the texts are from logs."""

from __future__ import annotations

import ast

import pytest

from coldstart_snapshot.criu.errors import CATALOGUE, VAGUE
from coldstart_snapshot.criu.log import explain_text
from coldstart_snapshot.criu.reasons import all_reasons
from conftest import REPOSITORY

_CHR = "Can't dump file 5 of that type [20600]"
TEXTS = {
    "vdso: Unexpected rt vDSO area bounds": "criu-too-old",
    "sockets: Can't get 1:16 opt: Operation not supported": "criu-too-old",
    "The root process 812 is not a session leader. Consider using --shell-job option": "not-session-leader",
    "Can't fork for 812: File exists": "pid-taken",
    "Pid 4711 do not match expected 812 (task 812)": "pid-taken",
    "Current gid 812 intersects with pid (813) in images": "group-taken",
    "Unknown shit 600 (anon_inode:[io_uring])": "io-uring",
    "send_fds failed (-22)": "io-uring",
    "Can't retrieve FDs from socket": "io-uring",
    "Message reply from daemon is trimmed (12/0)": "io-uring",
    "inet: Connected TCP socket, consider using --tcp-established option.": "tcp-connected",
    "inet: In-flight connection (l) for 240cf8": "tcp-connected",
    "inet: Can't bind inet socket (id 7): Address already in use": "port-taken",
    "inet: Can't bind inet socket (id 7): Cannot assign requested address": "address-missing",
    "inet: Unsupported proto 262 for socket 240cf8": "socket-family",
    "inet: Unsupported proto 132 for socket 240cf8": "socket-family",
    "sockets: BUG! Unknown socket collected (family 40)": "socket-family",
    "unix: Can't dump half of stream unix connection.": "unix-peer-outside",
    "unix: FATAL: Peer 0x2b3c unresolved for 0x2b3d": "unix-peer-outside",
    "unix: External socket is used. Consider using --ext-unix-sk option.": "unix-peer-outside",
    "Can't dump ghost file /srv/x of 3145728 size, increase limit": "deleted-file",
    "Can't create link remap for /dev/shm/sem.x. Use link-remap option.": "deleted-link",
    "Can't link remap to /dev/shm/sem.X: File exists": "deleted-link",
    "Can't link dev/shm/link_remap.1 -> dev/shm/sem.X: No such file or directory": "deleted-link",
    "Some file locks are hold by dumping tasks! You can try --file-locks to dump them.": "file-lock",
    "Unresolved lock found pid 812 ino 4711": "file-lock",
    "Can not set flock!": "file-lock",
    "Can't open file var/log/x.log on restore: No such file or directory": "file-missing",
    "File usr/lib/libc.so.6 has bad size 12 (expect 13)": "file-changed",
    "File usr/lib/libc.so.6 has bad build-ID": "file-changed",
    "Can't lookup mount=27 for fd=0 path=/dev/null": "outside-file",
    "Open files on overmounted mounts are not supported yet; mount=27 fd=3 path=/mnt/x": "outside-file",
    "Can't lookup mount=18 for fd=3 path=/memfd:x (deleted)": "hugetlb-memfd",
    "mnt: 702:./etc/hosts doesn't have a proper root mount": "bind-mount",
    "mnt-v2: Failed to copy sharing from 901:/x to 27: Invalid argument": "bind-mount",
    "mnt-v2: Can't stat mountpoint /dev/nvidia1: No such file or directory": "bind-mount",
    "mnt: No parent found for mountpoint 12 (@./proc)": "bind-mount",
    "./models is a fuse mount but not external": "fuse-mount",
    f"{_CHR} (chr 10:229)": "fuse-device",
    f"{_CHR} (chr 195:255)": "gpu-not-suspended",
    f"{_CHR} (chr 506:0)": "device",
    "Can't dump file 3 of that type [600] (anon anon_inode:[perf_event])": "descriptor-kind",
    "pidfd: pidfd pid 1 is not a part of process tree..": "pidfd-outside",
    "fsnotify: \tCan't dump that handle": "file-watch",
    "Can't dump nested uts namespace for 7485": "nested-namespace",
    "Can't restore sub-task in NS (cflags 20000)": "nested-namespace",
    "net: Unable to dump more than one netns if the --emptyns is set": "nested-namespace",
    "Task 812 with SysVIPC shmem map @7f003ec4b000 doesn't live in IPC ns": "sysv-shm",
    "Unable to connect a transport socket: Permission denied": "security-module",
    "iptables configuration failed: Bad file descriptor": "network-lock",
    "sh exited, status=127": "network-lock",
    "Failed to lock TCP connection 240cf8": "network-lock",
    "Timeout reached. Try to interrupt: 0": "timeout",
    "cuda_plugin: Unable to read output of cuda-checkpoint": "cuda-plugin",
    "cuda_plugin: check that cuda-checkpoint is present in $PATH": "cuda-plugin",
    "CHECKPOINT_DEVICES failed with OS call failed or operation not supported on this OS": "cuda-plugin",
    "Missing required plugin: cuda_plugin": "cuda-plugin",
    "uffd: connect to lazy-pages.socket failed: No such file or directory": "lazy-pages",
    "Unable to open a userfaultfd descriptor: Operation not permitted": "lazy-pages",
    "Tracking memory is not available. Consider omitting --track-mem option.": "kernel-feature",
    "Unexpected EOF on (empty-image)": "images-incomplete",
    "Read 88 bytes while 2813 expected": "images-incomplete",
    "Can't read pages data (-9)": "images-incomplete",
    "Unable to create a thread: -17": "thread-race",
    "Thread pid mismatch 813/812": "thread-race",
    "CPU instruction capabilities do not match run time": "cpu-mismatch",
    "CPU xsave size mismatch (11008/2696)": "cpu-mismatch",
    "Unsupported compact xsave frame": "cpu-registers",
    "fpu: max xsave frame exceed xsave_struct (11008 4096)": "cpu-registers",
    "Can't set FPU registers for 812: Bad address": "cpu-registers",
    "Can't fixup rseq": "rseq",
    "unsupported RSEQ ABI version": "rseq",
    "A session leader of 812(12) is outside of its pid namespace": "inside-container",
    "Can't dump a pid namespace without the process init": "inside-container",
    "seccomp: SECCOMP_SET_MODE_FILTER returned -13 on tid 812": "seccomp",
    "Dumping seccomp filters not supported: Permission denied": "seccomp",
    "suspending seccomp failed: Operation not permitted": "seccomp",
    "Unable to detach from 812: No such process": "traced",
    "Unseizable non-zombie 812 found, state S, err -1/1": "traced",
    "Dumped with --allow-uprobes. Need to set it on restore as well.": "uprobes",
    "tty: Found dangling tty with sid 812 pgid 812 (pts) on peer fd 0.": "terminal",
    "Can't get rlimit 0: Operation not permitted": "capability-missing",
    'execvp("tar", ...) failed: No such file or directory': "program-missing",
    'execvp("ip", ...) failed: No such file or directory': "program-missing",
    "Can't write img file: No space left on device": "disk-space",
    "Unable to freeze cgroup /x": "freeze",
    "Can't open 812/mountinfo on procfs: No such file or directory": "file-missing",
    "page-xfer: splice: Cannot allocate memory": "memory",
    "cg: Can't make cgroup dir /sys/fs/cgroup/x: Read-only file system": "cgroup",
    "Can't write to /proc/sys/kernel/ns_last_pid: Permission denied": "permission",
    "nobody has seen this one": "unrecognised",
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), TEXTS.items())
def test_a_text_of_criu_is_told_by_its_code(text: str, code: str) -> None:
    found = explain_text(f"(00.1) Error (criu/x.c:12): {text}\n(00.2) Error (criu/x.c:9): Dumping FAILED.\n")
    assert found is not None
    assert found.code == code
    assert found.line == text.rstrip()
    assert found.hint
    assert "{" not in found.message + found.hint


def test_every_entry_of_the_catalogue_is_met_by_a_text() -> None:
    unmet = {entry.pattern.pattern for entry in (*CATALOGUE, *VAGUE)}
    for text in TEXTS:
        for catalogue in (CATALOGUE, VAGUE):
            entry = next((entry for entry in catalogue if entry.pattern.search(text)), None)
            if entry is not None:
                unmet.discard(entry.pattern.pattern)
                break
    assert unmet == set()


def test_every_code_is_documented_and_every_documented_code_is_used() -> None:
    told = {entry.code for entry in (*CATALOGUE, *VAGUE)} | {"unrecognised"}
    found = _codes_of_the_preflight()
    known = {reason.code: reason for reason in all_reasons()}
    assert told | found == set(known)
    assert {code for code, reason in known.items() if reason.severity} == found
    page = (REPOSITORY / "docs" / "snapshot-reasons.md").read_text("utf-8")
    assert [code for code in known if f"| {code} |" not in page] == []


def _codes_of_the_preflight() -> set[str]:
    folder = REPOSITORY / "snapshot" / "coldstart_snapshot" / "preflight"
    calls = (
        node
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "finding"
    )
    return {str(ast.literal_eval(call.args[0])) for call in calls}


@pytest.mark.parametrize(
    "line",
    [
        "(00.001234) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds",
        "(00.001234)     42: Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds",
        "Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds",
        "Nov 3 01:02:03 a podman[8]: (0.1) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds\r",
        "(00.1) pie: 812: Error (criu/pie/restorer.c:12): vdso: Unexpected rt vDSO area bounds",
    ],
)
def test_lines_are_read_wherever_they_were_written(line: str) -> None:
    found = explain_text(line)
    assert found is not None
    assert found.code == "criu-too-old"
    assert found.line == "vdso: Unexpected rt vDSO area bounds"


def test_a_vague_refusal_does_not_hide_the_cause_that_follows() -> None:
    text = (
        "(00.1) Error (criu/x.c:1): Can't open 812/x: Permission denied\n"
        "(00.2) Error (criu/x.c:1): Unknown shit 600 (anon_inode:[io_uring])\n"
    )
    found = explain_text(text)
    assert found is not None
    assert found.code == "io-uring"
