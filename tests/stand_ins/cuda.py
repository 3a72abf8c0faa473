"""Drives the cuda-checkpoint stand-in: processes with CUDA state, faults on demand, what was called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("cuda_checkpoint")
RUNNING = "CUDA_STAND_IN_STATE=running......."


class CudaStandIn:
    """One test's stand-in; `environment` must reach whoever calls the program."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.program = str(self._install())
        self.environment = {"CUDA_STAND_IN_FOLDER": str(folder)}
        self._children: list[subprocess.Popen[bytes]] = []
        self._settings: dict[str, Any] = {"faults": []}

    def set(self, **settings: Any) -> None:
        """Change control.json: version, attach_seconds, seconds, devices."""
        self._settings |= settings
        self._write()

    def fault(
        self, operation: str, fault: str, *, pid: int | None = None, skip: int = 0, times: int = 1
    ) -> None:
        """Let the next call of `operation` (`*`: any) fail, after `skip` good ones, `times` times."""
        number = len(self._settings["faults"])
        entry = {
            "id": number,
            "operation": operation,
            "pid": pid,
            "fault": fault,
            "skip": skip,
            "times": times,
        }
        self._settings["faults"].append(entry)
        self._write()

    def spawn(self, command: Sequence[str] = ("sleep", "600"), *, cuda: bool = True) -> int:
        """Start a process, with CUDA state or without; `close` ends it."""
        name, _, value = RUNNING.partition("=")
        environment = dict(os.environ) | ({name: value} if cuda else {})
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._children.append(child)
        # until exec has happened /proc shows our own environment
        while cuda and state_of(child.pid) is None:
            assert child.poll() is None
        return child.pid

    def calls(self) -> list[str]:
        """Operation and pid of every call, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.rsplit(" ", 1)[0] for line in lines]

    def reap(self, pid: int) -> None:
        """Take leave of a process that something else has ended, so that its number is free again."""
        (child,) = [child for child in self._children if child.pid == pid]
        child.wait(timeout=30)
        self._children.remove(child)

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def _install(self) -> Path:
        # this very interpreter: `env python3` may be a shim that takes longer than the program
        program = self.folder / "cuda-checkpoint"
        body = SOURCE.read_text().partition("\n")[2]
        program.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{body}")
        program.chmod(0o755)
        return program

    def _write(self) -> None:
        temporary = self.folder / "control.tmp"
        temporary.write_text(json.dumps(self._settings))
        temporary.replace(self.folder / "control.json")


def state_of(pid: int) -> str | None:
    """The CUDA state in a process's memory; None for a process without one."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    match = re.search(rb"(?:^|\0)CUDA_STAND_IN_STATE=([a-z]+)", block)
    return match[1].decode() if match else None
