"""Plain processes that hold one thing that is hard to capture, or looks so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldstart_snapshot.containers.target import process_target, target_facts
from coldstart_snapshot.criu.calls import DumpOptions, RestoreOptions, dump_process, restore_process
from coldstart_snapshot.criu.program import Criu, network_lock
from coldstart_snapshot.preflight.check import Checked, check_target
from coldstart_snapshot.processes.tree import end_tree, process_tree
from conftest import wait_until
from left_behind import Watch

PYTHON = "/usr/bin/python3"
_MIB = 1 << 20
_SECONDS = 30
_HEAD = """
import ctypes, fcntl, mmap, os, signal, socket, struct, subprocess, sys, time
folder = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def child(*command):
    made = subprocess.Popen(command)
    # not before it is that program
    while os.readlink(f'/proc/{made.pid}/exe') == os.readlink('/proc/self/exe'): time.sleep(0.01)
    return made
def nested(*options):
    made = child('unshare', *options, 'sleep', '60')
    def inner():
        return (open(f'/proc/{made.pid}/task/{made.pid}/children').read().split() or [made.pid])[0]
    while os.path.basename(os.readlink(f'/proc/{inner()}/exe')) != 'sleep': time.sleep(0.01)
    return inner()
def zeros(size):
    return (ctypes.c_char * size)()
def file(name, size, delete=True):
    made = open(f'{folder}/{name}', 'w+b'); made.write(os.urandom(size)); made.flush()
    if delete: os.unlink(f'{folder}/{name}')
    return made
"""
_TAIL = """
open(f'{folder}/ready', 'w').close()
while True: time.sleep(0.05)
"""


@contextmanager
def process_with(
    folder: Path, trouble: str, *, before: tuple[str, ...] = (), **options: Any
) -> Iterator[int]:
    """A process that leads a session and has made its trouble; ended with all its descendants."""
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True} | options
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*before, PYTHON, "-c", _HEAD + trouble + _TAIL, str(folder)],
            stdout=output,
            stderr=output,
            **options,
        )
    try:
        wait_until(
            lambda: (folder / "ready").exists() or process.poll() is not None, "the process made its trouble"
        )
        if process.poll() is not None:
            pytest.skip(f"cannot be made here: {log.read_text().strip().splitlines()[-1]}")
        yield process.pid
    finally:
        end(process)


@contextmanager
def follower_with(folder: Path, trouble: str) -> Iterator[int]:
    """The same in a session that a shell leads; that of the tests may have its leader out of sight."""
    with process_with(folder, trouble, before=("/bin/sh", "-c", '"$@"; true', "sh")) as leader:
        (follower,) = [member.pid for member in process_tree(leader) if member.pid != leader]
        yield follower


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and wait until the numbers of its tree are free again."""
    if process.poll() is None:
        members = [member.pid for member in process_tree(process.pid)]
        end_tree(process.pid, grace_seconds=0.2)
        process.wait(timeout=60)
        for pid in members:
            wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"process {pid} is gone")


def checked_process(pid: int, criu: Criu, folder: Path) -> Checked:
    return check_target(process_target(pid), criu, folder)


def dump(pid: int, criu: Criu, folder: Path) -> None:
    """What a capture does with a plain process, whatever the preflight says."""
    for name in ("images", "work"):
        (folder / name).mkdir()
    limit = target_facts(process_target(pid)).largest_deleted_bytes + _MIB
    options = DumpOptions(network_lock(criu), limit, _SECONDS)
    dump_process(criu, pid, folder / "images", folder / "work", options)


@contextmanager
def restored(criu: Criu, folder: Path, timeout_seconds: float = _SECONDS) -> Iterator[int]:
    """The process back from its dump; it is ended, and so is what a restore that failed had begun.

    Without that, what criu had begun goes on when it can: once the lock that it waits for is free.
    """
    watch = Watch(folder)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        yield restore_process(
            criu,
            folder / "images",
            folder / "work",
            RestoreOptions(),
            timeout_seconds=timeout_seconds,
            output=null,
            error_output=null,
        )
    finally:
        os.close(null)
        watch.kill()
