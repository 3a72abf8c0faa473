"""The preflight names what criu would fail at, and criu is the judge of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.criu.program import Criu, find_criu
from coldstart_snapshot.preflight.check import blockers
from coldstart_snapshot.processes.tree import is_alive, process_tree
from snapshot.servers import require_engine
from snapshot.troubles import checked_process, dump, process_with, restored


@pytest.fixture
def criu() -> Criu:
    require_engine()
    return find_criu()


RING = "parameters = zeros(120); ring = call(425, 8, parameters)"
REFUSED_BY_DUMP = {
    "io_uring": (RING, "io-uring"),
    "io_uring, mapped": (
        f"{RING}; area = mmap.mmap(ring, 4096, flags=1, prot=3); os.close(ring)", "io-uring"
    ),
    "userfaultfd": ("call(323, 1)", "descriptor-kind"),
    "perf": (
        "event = zeros(120); struct.pack_into('IIQ', event, 0, 1, 120, 0); call(298, event, 0, -1, -1, 0)",
        "descriptor-kind",
    ),
    "secret memory": ("call(447, 0)", "descriptor-kind"),
    "memfd in huge pages": ("memory = os.memfd_create('huge', 4)", "hugetlb-memfd"),
    "pidfd of a stranger": ("watched = os.pidfd_open(os.getppid())", "pidfd-outside"),
    "/dev/fuse": ("device = os.open('/dev/fuse', os.O_RDWR)", "fuse-device"),
    "device": ("device = os.open('/dev/vsock', os.O_RDWR)", "device"),
    "vsock": ("made = socket.socket(40, socket.SOCK_STREAM)", "socket-family"),
    "MPTCP": ("made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", "socket-family"),
    "System V shared memory": (
        "number = libc.shmget(0, 4096, 0o1600); libc.shmat.restype = ctypes.c_void_p\n"
        "libc.shmat(number, None, 0); libc.shmctl(number, 0, None)",
        "sysv-shm",
    ),
    "nested pid namespace": ("nested('--pid', '--fork')", "nested-namespace"),
    "nested user namespace": ("nested('--user')", "nested-namespace"),
    "nested ipc namespace": ("nested('--ipc')", "nested-namespace"),
    "nested uts namespace": ("nested('--uts')", "nested-namespace"),
}  # fmt: skip
REFUSED_BY_RESTORE = {
    "nested mount namespace": ("nested('--mount')", "nested-namespace"),
    "nested network namespace": ("nested('--net')", "nested-namespace"),
    "deleted hard link": (
        "made = file('first', 10, delete=False); os.link(f'{folder}/first', f'{folder}/second')\n"
        "os.unlink(f'{folder}/first')",
        "deleted-link",
    ),
    "semaphore that was renamed": (
        "import multiprocessing; made = multiprocessing.get_context('spawn').Semaphore(3)", "deleted-link"
    ),
}  # fmt: skip
CAPTURED = {
    "nothing special": ("", None),
    "TCP pair": (
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "one = socket.create_connection(listener.getsockname()); other, _ = listener.accept()",
        None,
    ),
    "TCP pair of IPv6 and IPv4": (
        "listener = socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True)\n"
        "one = socket.create_connection(('127.0.0.1', listener.getsockname()[1]))\n"
        "other, _ = listener.accept()",
        None,
    ),
    "unix pair": ("one, other = socket.socketpair()", None),
    "deleted file, small": ("made = file('small', 1024)", "deleted-file"),
    "deleted file, large": ("made = file('large', 3 << 20)", "deleted-file"),
    "deleted file, only mapped": (
        "made = file('mapped', 3 << 20); area = mmap.mmap(made.fileno(), 3 << 20); made.close()",
        "deleted-file",
    ),
    "deleted folder": ("os.mkdir(f'{folder}/f'); os.chdir(f'{folder}/f'); os.rmdir(f'{folder}/f')", None),
    "lock": ("made = open(f'{folder}/lock', 'w'); fcntl.flock(made, fcntl.LOCK_EX)", None),
    "lease": ("made = open(f'{folder}/l', 'w'); fcntl.fcntl(made, 1024, 1)", None),
    "memfd": ("memory = os.memfd_create('x'); os.write(memory, b'x' * 4096)", None),
    "shared memory by name": ("call(319, b'x', 0)", None),
    "pidfd of a child": ("made = child('sleep', '60'); watched = os.pidfd_open(made.pid)", None),
    "eventfd, epoll, timerfd, inotify": (
        "import select; libc.eventfd(0, 0); libc.timerfd_create(1, 0); polled = select.epoll()\n"
        "watch = libc.inotify_init(); libc.inotify_add_watch(watch, folder.encode(), 2)",
        None,
    ),
    "netlink, packet and raw sockets": (
        "made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); made.bind((0, 0))\n"
        "packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)\n"
        "raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        None,
    ),
    "threads": (
        "import threading\nfor _ in range(20):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        None,
    ),
    "terminal of its own": ("import pty; master, slave = pty.openpty()", None),
    "child with a terminal of the tree": (
        "import pty; pid, master = pty.fork()\nif pid == 0: os.execv('/bin/sleep', ['sleep', '60'])\n"
        "while os.readlink(f'/proc/{pid}/exe') == os.readlink('/proc/self/exe'): time.sleep(0.01)", None
    ),
    "child in a session of its own": (
        "made = subprocess.Popen(['sleep', '60'], start_new_session=True)", None
    ),
    "stopped child": (
        "made = child('sleep', '60'); made.send_signal(signal.SIGSTOP)\n"
        "os.waitid(1, made.pid, 2 | 0x1000000)",
        "stopped",
    ),
    "zombie": ("made = child('sleep', '60'); made.kill(); os.waitid(1, made.pid, 4 | 0x1000000)", "zombie"),
    "connection that is being made": (
        "made = socket.socket(); made.setblocking(False); made.connect_ex(('10.255.255.1', 9))",
        "tcp-peer-outside",
    ),
    "file of /proc, kernel log, console": (
        "status = open('/proc/self/status'); log = open('/dev/kmsg')", None
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_BY_DUMP)
def test_what_criu_refuses_to_dump_is_named_before(case: str, criu: Criu, tmp_path: Path) -> None:
    trouble, code = REFUSED_BY_DUMP[case]
    with process_with(tmp_path, trouble) as pid:
        findings = checked_process(pid, criu, tmp_path).findings
        assert {finding.code for finding in findings} == {code}
        assert all(str(finding.pid) in finding.what and finding.remedy for finding in findings)
        with pytest.raises(ColdstartError):
            dump(pid, criu, tmp_path)
        assert is_alive(pid)


@pytest.mark.parametrize("case", REFUSED_BY_RESTORE)
def test_what_criu_dumps_and_cannot_restore_is_named_before(case: str, criu: Criu, tmp_path: Path) -> None:
    trouble, code = REFUSED_BY_RESTORE[case]
    with process_with(tmp_path, trouble) as pid:
        assert {finding.code for finding in checked_process(pid, criu, tmp_path).findings} == {code}
        dump(pid, criu, tmp_path)
    with (
        pytest.raises(ColdstartError, match=r"deleted hard link|namespace of its own"),
        restored(criu, tmp_path),
    ):
        pass


@pytest.mark.parametrize("case", CAPTURED)
def test_what_criu_brings_back_is_no_blocker(case: str, criu: Criu, tmp_path: Path) -> None:
    trouble, code = CAPTURED[case]
    with process_with(tmp_path, trouble) as pid:
        checked = checked_process(pid, criu, tmp_path)
        assert blockers(checked.findings) == ()
        assert {finding.code for finding in checked.findings} == ({code} if code else set())
        before = len(process_tree(pid))
        assert checked.processes == before
        dump(pid, criu, tmp_path)
    with restored(criu, tmp_path) as again:
        assert again == pid
        assert len(process_tree(pid)) == before
