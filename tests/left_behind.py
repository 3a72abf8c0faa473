"""Processes and mounts that a test left behind: found by the test's folder, named, and ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.files import mountinfo, mounts_below

MARKER = "TESTS_FOLDER"
"""The variable in the environment of everything that is started: the folder of its test, or of all tests."""

# what is just ending may take that long on a busy machine; whoever leaves nothing behind waits for nothing
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Process:
    """One process, how it is known to be the test's, and the test that started it where that is known."""

    pid: int
    ticks: int
    command: str
    sign: str
    test: str | None

    def __str__(self) -> str:
        started = f", started by {self.test}" if self.test else ""
        return f"process {self.pid} ({self.command}), by its {self.sign}{started}"

    def kill(self) -> None:
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # the number may be another's by now
                if _stat(self.pid).ticks == self.ticks:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    ticks: int


@dataclass
class Watch:
    """What begins below a folder from now on has to have ended at the end."""

    folder: Path
    before: frozenset[int] = field(default_factory=lambda: frozenset(_pids()))
    shared: Path | None = None
    """The folder that is named by what outlives this watch: servers of a module, of the session."""

    def processes(self) -> list[Process]:
        """Those that began since, belong to the folder or descend from this process, and live."""
        # a folder's name may be the beginning of another's
        mention = re.compile(re.escape(os.fsencode(self.folder)) + rb"(?!\w)")
        stats: dict[int, _Stat] = {}
        # looking at each process of a host is slow, listing them is not
        for pid in _pids():
            if pid not in self.before:
                with suppress(OSError):
                    stats[pid] = _stat(pid)
        others = _helpers()
        if self.shared is not None:
            outlives = b"%s=%s\0" % (MARKER.encode(), os.fsencode(self.shared))
            others |= {pid for pid in stats if outlives in _read(pid, "environ") + b"\0"}
        return [
            process
            for pid, stat in stats.items()
            if stat.state not in "ZX"
            and (process := _belonging(pid, stat, stats, mention, others)) is not None
        ]

    def kill(self) -> None:
        """End what is there at once, and wait until it is gone."""
        for process in self.processes():
            process.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := self.processes():
            assert time.monotonic() < deadline, f"killed, and there still: {left}"
            time.sleep(0.01)

    def end(self) -> list[str]:
        """What is left after a bounded wait, in words; it is ended, so that it disturbs no other test."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            processes, mounts = self.processes(), mounts_below(self.folder)
            if not (processes or mounts) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        for process in processes:
            process.kill()
        for point in mounts:
            subprocess.run(["umount", "-l", point], check=False, timeout=60)
        return [*map(str, processes), *(f"mount {point}" for point in mounts)]


def _belonging(
    pid: int, stat: _Stat, stats: dict[int, _Stat], mention: re.Pattern[bytes], others: set[int]
) -> Process | None:
    if pid in others:
        return None
    environment = _read(pid, "environ")
    signs = (sign for sign, content in _traces(pid, environment) if mention.search(content))
    if (sign := next(signs, "parent" if _descends(stat, stats, others) else None)) is None:
        return None
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    # pytest's own variable: which test it was when this process began, and which phase of it
    test = re.search(rb"(?:^|\0)PYTEST_CURRENT_TEST=([^\0]*)", environment)
    return Process(
        pid,
        stat.ticks,
        " ".join(command.split())[:200],
        sign,
        test[1].decode("utf-8", "replace") if test else None,
    )


def _traces(pid: int, environment: bytes) -> Iterator[tuple[str, bytes]]:
    """What may mention the folder, and what it is called."""
    yield "environment", environment
    yield "command line", _read(pid, "cmdline")
    for name, sign in (("cwd", "working folder"), ("exe", "program")):
        yield sign, _link(f"/proc/{pid}/{name}")
    yield "root", _root(pid)
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            yield f"descriptor {number}", _link(f"/proc/{pid}/fd/{number}")


def _root(pid: int) -> bytes:
    """The mount that a container has as its root; others may be copies of ours in a stranger's namespace."""
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return b""
        table = [" ".join(fields) for fields in mountinfo(Path(f"/proc/{pid}/mountinfo")) if fields[4] == "/"]
    except OSError:
        return b""
    return os.fsencode("\n".join(table))


def _descends(stat: _Stat, stats: dict[int, _Stat], others: set[int]) -> bool:
    while stat.parent != os.getpid():
        if stat.parent not in stats or stat.parent in others:
            return False
        stat = stats[stat.parent]
    return True


def _helpers() -> set[int]:
    """Processes that Python itself starts once, when they are first needed, and keeps until it ends."""
    kept = set()
    for module, instance, attribute in (
        ("resource_tracker", "_resource_tracker", "_pid"),
        ("forkserver", "_forkserver", "_forkserver_pid"),
    ):
        helper = getattr(sys.modules.get(f"multiprocessing.{module}"), instance, None)
        if (pid := getattr(helper, attribute, None)) is not None:
            kept.add(pid)
    return kept


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> _Stat:
    # the command in the middle may hold blanks and brackets
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _link(path: str) -> bytes:
    try:
        return os.readlink(os.fsencode(path))
    except OSError:
        return b""
