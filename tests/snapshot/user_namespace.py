"""Runs a command as a user with few capabilities, in a user and pid namespace whose bounding set is full.

What root in a container has lost for good (CAP_SYS_RESOURCE, often) is there again in a new user namespace,
so what a user may do on an ordinary host can be tested here. Called by path: it is its own program.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_REC, MS_SLAVE = 0x4000, 0x80000


def main(command: list[str]) -> int:
    """Map all users, unlike `unshare` without newuidmap; then the namespace's first process runs it."""
    unshared_reading, unshared = os.pipe()
    mapped_reading, mapped = os.pipe()
    child = os.fork()
    if child == 0:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
        os.write(unshared, b".")
        os.read(mapped_reading, 1)
        os.setgid(0)
        os.setuid(0)
        first = os.fork()
        if first == 0:
            _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
            _call("mount", b"proc", b"/proc", b"proc", 0, None)
            os.closerange(3, 1024)
            os.execvp(command[0], command)
        os._exit(_status(first))
    os.read(unshared_reading, 1)
    for kind in ("uid", "gid"):
        with open(f"/proc/{child}/{kind}_map", "w") as stream:
            stream.write("0 0 65536")
    os.write(mapped, b".")
    return _status(child)


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
