"""Does a replica answer, and as it did at its capture? What a killed capture of it left is undone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_launch.replica import last_words
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from coldstart_snapshot.answers.golden import GoldenRequest

_STILL_SECONDS = 10.0


def await_ready(url: str | None, timeout_seconds: float, pid: int, log: Path, waterfall: Waterfall) -> float:
    """Wait until it answers, and return the seconds that took; a failure shows its last words."""
    from coldstart_snapshot.answers.ready import wait_ready

    try:
        with waterfall.stage("ready"):
            return wait_ready(url, timeout_seconds, pid=pid)
    except ColdstartError as error:
        error.hint = f"{last_words(log)} (whole log: {log})"
        raise


def still_answers(url: str | None, pid: int) -> bool:
    """Whether a server that was ready is so now."""
    from coldstart_snapshot.answers.ready import wait_ready

    try:
        wait_ready(url, _STILL_SECONDS, pid=pid)
    except ColdstartError:
        return False
    return True


def replay_golden(golden: Sequence[GoldenRequest], pid: int, waterfall: Waterfall) -> None:
    """It answers; now see whether it answers what it did when it was captured."""
    if golden:
        from coldstart_snapshot.answers.golden import replay

        with waterfall.stage("golden"):
            replay(golden, pid=pid)


def settle_captures(name: str, config: Config, note: Callable[[str], None]) -> None:
    """A container that a killed capture left frozen, maybe with criu in it, cannot be taken down."""
    records: list[str] = []
    with suppress(OSError):
        records = os.listdir(config.run_folder / "captures")
    if records:  # else the import is spared
        from coldstart_snapshot.capturing.recovery import settle_abandoned

        settle_abandoned(config, note, concerns=lambda record: record.container_id == name)


def refuse_taken_address(spec: ReplicaSpec) -> None:
    """Somebody else's answer on the ready URL must not make this replica count as ready."""
    from coldstart_snapshot.answers.ready import parse_url
    from coldstart_snapshot.processes.ports import port_holder

    if spec.network != "host" or spec.ready.url is None:
        return
    url = parse_url(spec.ready.url)
    host = "127.0.0.1" if url.hostname == "localhost" else url.hostname
    address = f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    if (holder := port_holder(address)) is not None:
        from coldstart_snapshot.processes.secrets_found import redact_url

        pid, name = holder
        raise BusyError(
            f"somebody listens where the replica should: {redact_url(spec.ready.url)}: "
            f"process {pid} ({name})",
            hint="end it, or give the replica another port",
        )
