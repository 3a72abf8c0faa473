"""The criu program: which one, is it fit for this kernel, what can it do here."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from coldstart_cli import process
from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import INSTALL_HINTS
from coldstart_host.kernel import criu_needed, release_number
from coldstart_snapshot.criu_log import explain_text

_QUERY_SECONDS = 20.0


@dataclass(frozen=True)
class Criu:
    """One criu program that is new enough for the running kernel."""

    program: str
    version: str


def find_criu(configured: str | None = None, *, release: str | None = None) -> Criu:
    """The configured criu, refused with the remedy when it is too old for the kernel."""
    program = process.find_program("criu", configured)
    completed = process.run([program, "--version"], deadline_seconds=_QUERY_SECONDS, check=False)
    match = re.search(r"^Version: *([\d.]+)", completed.text, re.MULTILINE)
    if match is None:
        raise UnavailableError(f"program is not criu: {program}: {completed.error_text or 'no version'}")
    version = match[1]
    check_version(version, release or os.uname().release)
    return Criu(program, version)


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
        [criu.program, "check", "--no-default-config"], deadline_seconds=_QUERY_SECONDS, check=False
    )
    if completed.status != 0:
        explanation = explain_lines(completed)
        raise UnavailableError(
            f"criu does not work on this host: {explanation}", hint=f"{criu.program} check"
        )


def explain_lines(completed: process.Completed) -> str:
    found = explain_text(completed.stderr.decode("utf-8", "replace"))
    return found.message if found else completed.error_text or f"status {completed.status}"


def network_lock(criu: Criu) -> str:
    """How criu can hold TCP connections still on this host: nftables, iptables, or not at all."""
    completed = process.run(
        [criu.program, "check", "--no-default-config", "--feature", "network_lock_nftables"],
        deadline_seconds=_QUERY_SECONDS,
        check=False,
    )
    if completed.status == 0:
        return "nftables"
    with suppress(UnavailableError):
        process.find_program("iptables-restore")
        return "iptables"
    return "skip"
