"""What /proc says of a process tree: members, memory, deleted files, listening ports, output files."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import BusyError, IoFailure, NotFoundError, PermissionNeededError, UnavailableError
from coldstart_cli.files import mountinfo
from coldstart_cli.process import start_ticks

_COMMAND_LIMIT_BYTES = 4096
_KERNEL_THREAD = 0x00200000
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)", re.MULTILINE)
_OUTPUT_DESCRIPTORS = frozenset({1, 2})


@dataclass(frozen=True)
class ProcessFacts:
    """One member of a tree; `inner_pid` is its number inside its own pid namespace."""

    pid: int
    inner_pid: int
    parent: int
    command: str
    threads: int
    session: int
    memory_bytes: int


@dataclass(frozen=True)
class OpenFile:
    """One descriptor of one process, identified as criu identifies files: mount and inode.

    `device` is the number of the device that the file is, 0 where it is none; `info` is the kernel's fdinfo.
    """

    pid: int
    descriptor: int
    path: str
    mount_id: int
    inode: int
    mode: int
    deleted_bytes: int
    links: int = 1
    device: int = 0
    info: str = ""

    def told(self, name: str) -> str | None:
        """What the kernel's fdinfo says under a name."""
        start = f"{name}:"
        return next(
            (line[len(start) :].strip() for line in self.info.splitlines() if line.startswith(start)), None
        )

    @property
    def access_mode(self) -> int:
        """Whether it reads, writes or both, as in `os.O_RDONLY`; one that is closed by now only wrote."""
        return int(self.told("flags") or "1", 8) & os.O_ACCMODE

    @property
    def key(self) -> str:
        """The name under which criu knows a file that we hand to it from outside."""
        return f"file[{self.mount_id:x}:{self.inode:x}]"


@contextmanager
def looking_at(pid: int) -> Iterator[None]:
    """Turn what the kernel answers about a process in /proc into words."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFoundError(f"no such process: {pid}") from error
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot look into process {pid} ({process_name(pid)})",
            hint="run as root with CAP_SYS_PTRACE, outside of any container",
        ) from error
    except OSError as error:
        raise IoFailure(f"cannot look into process {pid}: {error.strerror}") from error


def namespace(pid: int, kind: str) -> str:
    """The namespace of a process as the kernel names it."""
    with looking_at(pid):
        return os.readlink(f"/proc/{pid}/ns/{kind}")


def is_kernel_thread(pid: int) -> bool:
    with looking_at(pid):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return bool(int(fields[6]) & _KERNEL_THREAD)


def own_ancestors() -> frozenset[int]:
    """This process and all it descends from."""
    pid = os.getpid()
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = _stat_fields(pid)[1]
        except OSError:
            break
    return frozenset(found)


def process_tree(root_pid: int) -> tuple[ProcessFacts, ...]:
    """The process and all its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        with suppress(OSError):
            children.setdefault(_stat_fields(pid)[1], []).append(pid)
    found: list[ProcessFacts] = []
    waiting = [root_pid]
    while waiting:
        pid = waiting.pop(0)
        try:
            found.append(_facts(pid))
        except OSError:
            if pid == root_pid:
                with looking_at(pid):
                    raise
            continue  # it ended while we looked
        waiting += children.get(pid, [])
    return tuple(found)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return _stat_fields(pid)[0] not in {"Z", "X"}
    except OSError:
        return False


def session_of(pid: int) -> int | None:
    """The session that a process is in; None where it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def process_name(pid: int) -> str:
    """The command of a process as the kernel shows it, or a question mark."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "?"


def open_files(pids: Iterable[int]) -> Iterator[OpenFile]:
    """Every descriptor of these processes."""
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            numbers = os.listdir(folder)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            raise UnavailableError(
                f"cannot see the open files of process {pid}", hint="run as root"
            ) from error
        for number in numbers:
            with suppress(OSError):
                yield _open_file(pid, number, f"{folder}/{number}")


def mount_ids(pid: int) -> frozenset[int]:
    """The mounts that a process can see, by the kernel's mount number."""
    with looking_at(pid):
        return frozenset(int(fields[0]) for fields in mountinfo(Path(f"/proc/{pid}/mountinfo")))


def output_files(pids: Iterable[int], *, outside: frozenset[int] | None = None) -> tuple[OpenFile, ...]:
    """Regular files that take standard output or error, each once.

    With `outside`, the mounts a container sees, only files that lie in none of them.
    """
    found: dict[str, OpenFile] = {}
    for file in open_files(pids):
        if file.descriptor not in _OUTPUT_DESCRIPTORS or not stat.S_ISREG(file.mode):
            continue
        if outside is None or file.mount_id not in outside:
            found.setdefault(file.key, file)
    return tuple(found.values())


def _open_file(pid: int, number: str, link: str) -> OpenFile:
    path = os.readlink(link)
    status = os.stat(link)
    # servers have tens of thousands of sockets, and nothing that we ask is told of them
    info = "" if stat.S_ISSOCK(status.st_mode) else _read(f"/proc/{pid}/fdinfo/{number}")
    mount = _MOUNT_ID.search(info)
    deleted = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
    return OpenFile(
        pid=pid,
        descriptor=int(number),
        path=path,
        mount_id=int(mount[1]) if mount else -1,
        inode=status.st_ino,
        mode=status.st_mode,
        deleted_bytes=status.st_size if deleted else 0,
        links=status.st_nlink,
        device=status.st_rdev,
        info=info,
    )


def _read(path: str) -> str:
    """A file of /proc, four times as fast as by way of a text stream."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = []
        while block := os.read(descriptor, 1 << 16):
            blocks.append(block)
    finally:
        os.close(descriptor)
    return b"".join(blocks).decode("utf-8", "replace")


def all_pids() -> list[int]:
    """Every process of this host that we can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat_fields(pid: int) -> tuple[str, int, int]:
    """State, parent and session: the command in the middle may hold blanks and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def _facts(pid: int) -> ProcessFacts:
    _, parent, session = _stat_fields(pid)
    status: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        status[name] = value.strip()
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()[:_COMMAND_LIMIT_BYTES]
    arguments = raw.decode("utf-8", "replace").split("\0")
    # it goes into messages, manifests and documents
    from coldstart_snapshot.processes.secrets_found import redact_arguments  # a dozen patterns

    command = " ".join(redact_arguments(arguments)).strip()
    return ProcessFacts(
        pid=pid,
        inner_pid=int(status.get("NSpid", str(pid)).split()[-1]),
        parent=parent,
        command=command or f"[{status.get('Name', '?')}]",
        threads=int(status.get("Threads", "1")),
        session=session,
        memory_bytes=sum(_kilobytes(status.get(name)) for name in ("RssAnon", "RssShmem", "VmSwap")),
    )


def _kilobytes(text: str | None) -> int:
    return int(text.split()[0]) * 1024 if text else 0


def end_tree(pid: int, *, grace_seconds: float = 10.0) -> None:
    """End a process and all its descendants: TERM to the first, then KILL to what is left."""
    members = {member.pid: start_ticks(member.pid) for member in _tree_or_nothing(pid)}
    if pid in members:
        _signal(pid, members[pid], signal.SIGTERM)
        _wait_gone({pid: members[pid]}, grace_seconds)
    # a member may have been born meanwhile
    for member in _tree_or_nothing(pid):
        members.setdefault(member.pid, start_ticks(member.pid))
    for number, ticks in members.items():
        _signal(number, ticks, signal.SIGKILL)
    if left := _wait_gone(members, grace_seconds):
        numbers = " ".join(map(str, left))
        raise BusyError(f"processes do not end: {numbers}", hint=f"kill -9 {numbers}")


def _tree_or_nothing(pid: int) -> tuple[ProcessFacts, ...]:
    try:
        return process_tree(pid)
    except NotFoundError:
        return ()


def _signal(pid: int, ticks: int, number: signal.Signals) -> None:
    """Signal the process that had this pid then, not one that got it since."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if start_ticks(pid) == ticks:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _wait_gone(members: Mapping[int, int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while True:
        left = []
        for pid, ticks in members.items():
            with suppress(OSError):
                if is_alive(pid) and start_ticks(pid) == ticks:
                    left.append(pid)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)
