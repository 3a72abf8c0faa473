"""A replica of the small server under test."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from conftest import Coldstart, Result


@dataclass
class Replica:
    """A replica of the small server: its specification, its port, and the command to run it with."""

    coldstart: Coldstart
    spec: Path
    name: str
    port: int
    run_folder: Path

    def launch(self, *options: str, timeout_seconds: float = 120) -> Result:
        return self.coldstart("launch", self.spec, *options, timeout_seconds=timeout_seconds)

    def stop(self) -> Result:
        return self.launch("--stop")

    def foreground(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a command that stays, and wait until it says that the replica is ready."""
        process = subprocess.Popen(
            [self.coldstart.program, *arguments],
            env=self.coldstart.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert b"ready after" in process.stdout.readline()
        return process

    def write(self, **changes: str) -> None:
        """Change lines `KEY = VALUE` of the specification, or add them."""
        lines = self.spec.read_text().splitlines()
        for key, value in changes.items():
            found = [number for number, line in enumerate(lines) if line.startswith(f"{key} =")]
            if found:
                lines[found[0]] = f"{key} = {value}"
            else:
                lines.insert(2, f"{key} = {value}")
        self.spec.write_text("\n".join(lines) + "\n")
