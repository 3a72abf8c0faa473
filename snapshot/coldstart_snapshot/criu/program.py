"""The criu program: which one, is it fit for this kernel, what can it do here."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_cli.files import atomic_write
from coldstart_cli.process import INSTALL_HINTS
from coldstart_host.kernel import criu_needed, release_number
from coldstart_snapshot.processes.rights import is_unprivileged

_QUERY_SECONDS = 20.0


@dataclass(frozen=True)
class Criu:
    """One criu program that is new enough for the running kernel."""

    program: str
    version: str


def find_criu(
    configured: str | None = None, *, release: str | None = None, run_folder: Path | None = None
) -> Criu:
    """The configured criu, refused with the remedy when it is too old for the kernel.

    With a `run_folder` the very same file is asked for its version once a boot: to start it takes 6 ms.
    """
    program = process.find_program("criu", configured)
    version = _known_version(program, run_folder)
    check_version(version, release or os.uname().release)
    return Criu(program, version)


def _known_version(program: str, run_folder: Path | None) -> str:
    if run_folder is None:
        return _ask_version(program)
    record = run_folder / "programs" / "criu.json"
    status = os.stat(program)
    stamp = [program, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]
    with suppress(OSError, ValueError, TypeError):
        known, version = json.loads(record.read_bytes())
        if known == stamp and isinstance(version, str):
            return version
    version = _ask_version(program)
    with suppress(ColdstartError):  # a run folder that cannot be written only costs time
        atomic_write(record, json.dumps([stamp, version]).encode(), mode=0o600)
    return version


def _ask_version(program: str) -> str:
    completed = process.run([program, "--version"], deadline_seconds=_QUERY_SECONDS, check=False)
    match = re.search(r"^Version: *([\d.]+)", completed.text, re.MULTILINE)
    if match is None:
        raise UnavailableError(f"program is not criu: {program}: {completed.error_text or 'no version'}")
    return match[1]


def check_version(version: str, release: str) -> None:
    """Refuse a criu that is known to fail on this kernel."""
    needed = criu_needed(release_number(release))
    if release_number(version) < needed:
        oldest = ".".join(map(str, needed))
        raise UnavailableError(
            f"criu {version} is too old for Linux {release}: it takes criu {oldest} or newer",
            hint=INSTALL_HINTS["criu"],
        )


def check_host(criu: Criu) -> None:
    """Ask criu itself whether it can work on this host; 60 ms."""
    completed = process.run(
        [criu.program, "check", "--no-default-config", *privilege_options()],
        deadline_seconds=_QUERY_SECONDS,
        check=False,
    )
    if completed.status != 0:
        explanation = explain_lines(completed)
        raise UnavailableError(
            f"criu does not work on this host: {explanation}", hint=f"{criu.program} check"
        )


def explain_lines(completed: process.Completed) -> str:
    from coldstart_snapshot.criu.log import explain_text  # a hundred patterns, for failures only

    found = explain_text(completed.stderr.decode("utf-8", "replace"))
    return found.message if found else completed.error_text or f"status {completed.status}"


def privilege_options() -> tuple[str, ...]:
    """Criu refuses to work for users other than root unless it is told that it may."""
    return ("--unprivileged",) if is_unprivileged() else ()


def has_feature(criu: Criu, feature: str) -> bool:
    """Whether criu finds that this kernel has a feature, by criu's name for it."""
    completed = process.run(
        [criu.program, "check", "--no-default-config", *privilege_options(), "--feature", feature],
        deadline_seconds=_QUERY_SECONDS,
        check=False,
    )
    return completed.status == 0


def network_lock(criu: Criu) -> str:
    """How criu can hold TCP connections still on this host: nftables, iptables, or not at all."""
    if is_unprivileged():
        return "skip"  # a packet filter takes CAP_NET_ADMIN
    if has_feature(criu, "network_lock_nftables"):
        return "nftables"
    with suppress(UnavailableError):
        process.find_program("iptables-restore")
        return "iptables"
    return "skip"
