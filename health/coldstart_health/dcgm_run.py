"""Runs DCGM's programs within deadlines, and keeps what they printed without an opinion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import atomic_write
from coldstart_cli.process import Completed, ProgramTimeoutError, find_program, last_lines, run
from coldstart_health.verdict import HOST, Finding, Verdict
from coldstart_host.gpu import normal_pci_address

LEVEL_DEADLINES_SECONDS: dict[int, float] = {1: 90.0, 2: 900.0, 3: 3600.0, 4: 4 * 3600.0}
SOURCE = "dcgm"
# on TERM dcgmi asks the host engine to stop the diagnosis, which runs outside our process group
_GRACE_SECONDS = 15.0
_QUESTION_SECONDS = 10.0
# the largest real document is below 100 KiB; what a broken release prints must not fill the disk
_OUTPUT_LIMIT_BYTES = 1 << 20
_KEPT_RUNS = 8
_MISMATCH = 244


class Ending(StrEnum):
    """How a run ended: by itself, at its deadline, or because the command was interrupted."""

    BY_ITSELF = "by itself"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class DcgmGpu:
    """One GPU as DCGM numbers it: its numbers are not NVML's where some GPUs are hidden or detached."""

    number: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class DcgmOutput:
    """What `dcgmi diag` left: `status` is None where it did not end by itself, `words` end its messages.

    `wanted` are the GPUs it was asked to test (empty: all), `known` those that DCGM sees; `versions` tells
    those of dcgmi and of its host engine where they matter; `repeats` the number of the run it repeats.
    """

    level: int
    status: int | None
    text: str
    words: str
    duration_seconds: float
    kept: tuple[Finding, ...] = ()
    wanted: tuple[int, ...] = ()
    known: tuple[DcgmGpu, ...] = ()
    ending: Ending = Ending.BY_ITSELF
    versions: str | None = None
    repeats: int | None = None


def run_dcgmi(
    config: Config,
    *,
    level: int,
    deadline_seconds: float,
    wanted: Sequence[int] = (),
    known: Sequence[DcgmGpu] = (),
    number: int = 0,
    repeats: int | None = None,
) -> DcgmOutput:
    """Run one level on all GPUs, or on those `wanted`. Raises where dcgmi is not there."""
    program = find_program("dcgmi", config.text("programs.dcgmi"))
    selection = ["-i", ",".join(map(str, wanted))] if wanted else []
    asked = DcgmOutput(level, None, "", "", 0.0, wanted=tuple(wanted), known=tuple(known), repeats=repeats)
    try:
        completed = run(
            [program, "diag", "-r", str(level), "-j", *selection],
            deadline_seconds=deadline_seconds,
            purpose=f"dcgmi diag -r {level}",
            check=False,
            output_limit_bytes=_OUTPUT_LIMIT_BYTES,
            grace_seconds=_GRACE_SECONDS,
        )
    except ProgramTimeoutError as error:
        return replace(
            asked,
            text=error.stdout.decode("utf-8", "replace"),
            words=error.message,
            duration_seconds=deadline_seconds,
            kept=_keep(config, error.stdout, number),
            ending=Ending.DEADLINE,
        )
    return replace(
        asked,
        status=completed.status,
        text=completed.text,
        words=last_lines(completed.stderr),
        duration_seconds=completed.duration_seconds,
        kept=_keep(config, completed.stdout, number),
        versions=_versions(program) if _speaks_of_versions(completed) else None,
    )


def interrupted_run(level: int, wanted: Sequence[int], known: Sequence[DcgmGpu]) -> DcgmOutput:
    """A run that was cut, or never begun, because the command had to end."""
    words = "the command was interrupted before this diagnosis ended"
    return DcgmOutput(
        level, None, "", words, 0.0, wanted=tuple(wanted), known=tuple(known), ending=Ending.INTERRUPTED
    )


def discover(config: Config) -> tuple[DcgmGpu, ...]:
    """The GPUs that DCGM sees, by its own numbers; empty where it does not answer: its diagnosis says why."""
    program = find_program("dcgmi", config.text("programs.dcgmi"))
    try:
        completed = run(
            [program, "discovery", "-l"], deadline_seconds=_QUESTION_SECONDS, check=False, grace_seconds=1.0
        )
    except ProgramTimeoutError:
        return ()
    return parse_discovery(completed.text) if completed.status == 0 else ()


def parse_discovery(text: str) -> tuple[DcgmGpu, ...]:
    """The table of `dcgmi discovery -l`: a row with a number begins a GPU, rows without belong to it."""
    gpus: list[DcgmGpu] = []
    for line in text.splitlines():
        row = re.match(r"\|\s*(\d*)\s*\|\s*([^:|]+):\s*(.*?)\s*\|", line)
        if row is None:
            if gpus and re.match(r"\d+ NvSwitch|\| Switch ID", line):
                break  # the tables of switches and CPUs look alike
            continue
        number, key, value = row.groups()
        if number:
            gpus.append(DcgmGpu(int(number)))
        if gpus and key == "Name":
            gpus[-1] = replace(gpus[-1], name=value)
        elif gpus and key == "PCI Bus ID":
            gpus[-1] = replace(gpus[-1], pci_bus_id=normal_pci_address(value))
        elif gpus and key == "Device UUID":
            gpus[-1] = replace(gpus[-1], uuid=value)
    return tuple(gpus)


def _speaks_of_versions(completed: Completed) -> bool:
    return (
        completed.status == _MISMATCH or b"version mismatch" in (completed.stdout + completed.stderr).lower()
    )


def _versions(program: str) -> str | None:
    """What `dcgmi -v` says of itself and of the host engine."""
    try:
        text = run([program, "-v"], deadline_seconds=_QUESTION_SECONDS, check=False, grace_seconds=1.0).text
    except ProgramTimeoutError:
        return None
    client, _, engine = text.partition("Hostengine")
    found = [re.search(r"[Vv]ersion\s*:\s*(\d[\w.]*)", part) for part in (client, engine)]
    words = [match[1] if match else "unknown" for match in found]
    return f"dcgmi {words[0]}, host engine {words[1]}"


def raw_output_path(state_folder: Path, number: int = 0) -> Path:
    """What dcgmi printed last, whole: evidence for a ticket, and for a release that prints another shape."""
    return state_folder / "health" / (f"dcgmi-diag.{number}.out" if number else "dcgmi-diag.out")


def _keep(config: Config, output: bytes, number: int) -> tuple[Finding, ...]:
    """One file a run of the last diagnosis; those of the one before go."""
    try:
        atomic_write(raw_output_path(config.state_folder, number), output)
        for other in range(number + 1, _KEPT_RUNS):
            raw_output_path(config.state_folder, other).unlink(missing_ok=True)
    except ColdstartError as error:
        return (Finding("dcgm_output_not_kept", Verdict.OK, HOST, SOURCE, error.message, error.hint),)
    except OSError as error:
        message = f"an older output of dcgmi cannot be removed: {error.filename}: {error.strerror}"
        return (Finding("dcgm_output_not_kept", Verdict.OK, HOST, SOURCE, message),)
    return ()
