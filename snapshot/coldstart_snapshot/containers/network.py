"""Network namespaces: made with loopback alone, entered for a block, removed with who was left in them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import ipaddress
import os
import select
import signal
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import BusyError, CannotCreateError, NotFoundError, PermissionNeededError
from coldstart_cli.files import mounts_below
from coldstart_cli.process import find_program, run
from coldstart_snapshot.processes.tree import all_pids, process_name

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_END_SECONDS = 10.0
_CALL_SECONDS = 20.0


@contextmanager
def inside(namespace: Path | None) -> Iterator[None]:
    """This thread, and programs that it starts, use that network while the block runs; None: no change."""
    if namespace is None:
        yield
        return
    with _returning(_OWN_NAMESPACE, _CLONE_NEWNET):
        _enter(namespace, _CLONE_NEWNET)
        yield


def foreign_network(pid: int) -> Path | None:
    """The network namespace of a process; None where it is ours, or the process is gone."""
    path = Path(f"/proc/{pid}/ns/net")
    try:
        return None if os.stat(path).st_ino == os.stat(_OWN_NAMESPACE).st_ino else path
    except OSError:
        return None


def make_namespace(path: Path) -> None:
    """A new network namespace with loopback up and nothing else, kept by a mount on `path`."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with _returning(_OWN_NAMESPACE, _CLONE_NEWNET):
        _call("unshare", _CLONE_NEWNET, what="cannot make a network namespace")
        _call(
            "mount",
            os.fsencode(_OWN_NAMESPACE),
            os.fsencode(path),
            None,
            _MS_BIND,
            None,
            what=f"cannot keep a network namespace at {path}",
        )
        _bring_loopback_up()


def add_addresses(namespace: Path, addresses: Iterable[str]) -> None:
    """Give loopback these addresses too: sockets that were bound to one of the host's can be bound again."""
    wanted = sorted({address for address in addresses if not _is_given(address)})
    if wanted:
        program = find_program("ip")
        with inside(namespace):
            for address in wanted:
                length = ipaddress.ip_address(address).max_prefixlen
                # no duplicate address detection: an IPv6 address would be tentative for a second
                options = ["nodad"] if length == 128 else []
                run(
                    [program, "address", "add", f"{address}/{length}", "dev", "lo", *options],
                    deadline_seconds=_CALL_SECONDS,
                    purpose=f"adding address {address}",
                )


def remove_namespace(path: Path) -> None:
    """End whoever is left in a namespace of ours and let it go; absent is fine."""
    while str(path) in mounts_below(path):
        end_processes(members(path), f"network namespace {path}")
        if _libc().umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise BusyError(f"cannot let go of network namespace: {path}: {os.strerror(number)}")
    path.unlink(missing_ok=True)


def members(namespace: Path) -> list[int]:
    """Processes in a network namespace."""
    wanted = os.stat(namespace).st_ino
    found = []
    for pid in all_pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino == wanted:
                found.append(pid)
    return found


def end_processes(pids: Iterable[int], where: str) -> None:
    """Kill these processes, each held by a descriptor so that no other one with its number is hit."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            name = process_name(pid)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _wait_for_end(pid, descriptor, f"process does not end: {pid} ({name}) in {where}")
        finally:
            os.close(descriptor)


def set_hostname(pid: int, hostname: str) -> bool:
    """Name the host of a process's own UTS namespace; false where it shares ours, which is left alone."""
    theirs, own = f"/proc/{pid}/ns/uts", "/proc/thread-self/ns/uts"
    if os.stat(theirs).st_ino == os.stat(own).st_ino:
        return False
    with _returning(own, _CLONE_NEWUTS):
        _enter(Path(theirs), _CLONE_NEWUTS)
        socket.sethostname(hostname)
    return True


def _wait_for_end(pid: int, descriptor: int, problem: str) -> None:
    # readable from its end on, also while it is a zombie
    if not select.select([descriptor], [], [], _END_SECONDS)[0]:
        raise BusyError(problem, hint=f"kill -9 {pid}")
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_given(address: str) -> bool:
    """Whether a socket can be bound to it wherever loopback is up."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_unspecified or parsed.is_loopback


@contextmanager
def _returning(own: str, kind: int) -> Iterator[None]:
    """Whatever namespace the block enters, this thread comes back to the one it was in."""
    home = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _call("setns", home, kind, what="cannot return to our own namespace")
        finally:
            os.close(home)


def _enter(namespace: Path, kind: int) -> None:
    try:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"no such namespace: {namespace}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot enter namespace: {namespace}", hint="run as root") from error
    try:
        _call("setns", descriptor, kind, what=f"cannot enter namespace {namespace}")
    finally:
        os.close(descriptor)


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # struct ifreq: a name of 16 bytes, then a union of 24
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _call(name: str, *arguments: object, what: str) -> None:
    # Python has setns and unshare from 3.12 on, mount never
    if getattr(_libc(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        if number in {errno.EPERM, errno.EACCES}:
            raise PermissionNeededError(f"{what}: {os.strerror(number)}", hint="run as root")
        raise CannotCreateError(f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
