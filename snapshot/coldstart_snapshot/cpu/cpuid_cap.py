"""Starting and ending the tracer that answers CPUID for a container, and what it saw."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError
from coldstart_cli.process import Program, kill_group, last_lines, start_piped
from coldstart_host.cpu import CpuFacts
from coldstart_host.processes import parent_of

_TRACER = "coldstart_snapshot.cpu.cpuid_tracer"
_ATTACH_SECONDS = 20.0
_RELEASE_SECONDS = 30.0


@dataclass(frozen=True)
class CpuidReport:
    """What was started under the tracer, how often it asked CPUID, and what escaped."""

    programs: tuple[str, ...]
    questions: Mapping[str, int]
    problems: tuple[str, ...]
    uncapped: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By process, the variables of the level that its program was started without."""


def can_mask(host: CpuFacts) -> bool:
    """Whether Linux can make CPUID fault here."""
    return host.architecture == "x86_64" and "cpuid_fault" in host.flags


def is_own_tracer(pid: int) -> bool:
    """Whether a tracer is one that this process started, and will end before a dump."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return parent_of(pid) == os.getpid() and _TRACER.encode() in command.split(b"\0")
    except OSError:
        return False


class CpuidCap:
    """A tracer over a process that waits to start its program; what it traces ends with it."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._tracer: Program | None = None

    def attach(self, pid: int) -> None:
        """Trace the process from here on; returns when it may start."""
        self._tracer = start_piped([sys.executable, "-m", _TRACER, self._level, str(pid)])
        self._read(_ATTACH_SECONDS)

    def hold(self) -> CpuidReport:
        """Stop everything where it is, and let CPUID answer what the CPU says from then on."""
        seen = self._ask(b"hold\n")
        uncapped = {int(pid): tuple(names) for pid, names in seen["uncapped"].items()}
        return CpuidReport(
            tuple(seen["programs"]), dict(seen["questions"]), tuple(seen["problems"]), uncapped
        )

    def release(self) -> None:
        """Let go of what is held; it goes on, or, where it was frozen meanwhile, will."""
        if self._tracer is not None:
            self._ask(b"release\n")
            self.close()

    def _ask(self, order: bytes) -> dict[str, Any]:
        assert self._tracer is not None
        assert self._tracer.stdin is not None
        with suppress(BrokenPipeError):  # it has said its last words, or died: reading tells
            self._tracer.stdin.write(order)
            self._tracer.stdin.flush()
        return self._read(_RELEASE_SECONDS)

    def close(self) -> None:
        """End the tracer; what it still traces is killed by the kernel."""
        if self._tracer is not None:
            kill_group(self._tracer)
            for stream in (self._tracer.stdin, self._tracer.stdout, self._tracer.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._tracer = None

    def _read(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._tracer is not None
        assert self._tracer.stdout is not None
        assert self._tracer.stderr is not None
        ready, _, _ = select.select([self._tracer.stdout], [], [], timeout_seconds)
        line = self._tracer.stdout.readline() if ready else b""
        if line:
            document: dict[str, Any] = json.loads(line)
            return document
        os.set_blocking(self._tracer.stderr.fileno(), False)
        words = last_lines(self._tracer.stderr.read() or b"", 1) or "it said nothing"
        self.close()
        raise ColdstartError(f"tracer of CPUID failed: {words}", hint="see `coldstart doctor`")
