"""What makes one copy of a snapshot differ from the next: its host name, and a command that reseeds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.containers.bundle import has_hostname_of_its_id, hostname_of
from coldstart_snapshot.containers.container import RunningContainer
from coldstart_snapshot.containers.container_commands import run_inside
from coldstart_snapshot.containers.network import set_hostname
from coldstart_snapshot.containers.runc import Runc

if TYPE_CHECKING:
    from coldstart_snapshot.kept.restore_command import RestoreCommand

_SEED_BYTES = 32


def name_copy(recorded: Mapping[str, Any], pid: int, container_id: str) -> None:
    """Give a restored container its own host name, where the captured one was named after its id."""
    if has_hostname_of_its_id(recorded):
        set_hostname(pid, hostname_of(container_id))


def run_restore_command(
    command: RestoreCommand, container: RunningContainer, runc_program: str | None
) -> None:
    """Run the command as the server's user, with what tells this copy from the others; it must succeed."""
    completed = run_inside(
        Runc.find(runc_program, container.runc_root),
        container.id,
        container.bundle,
        command.arguments,
        {"COLDSTART_COPY_ID": container.id, "COLDSTART_RANDOM_SEED": os.urandom(_SEED_BYTES).hex()},
        timeout_seconds=command.timeout_seconds,
    )
    if completed.status != 0:
        said = f": {completed.error_text}" if completed.error_text else ""
        raise ColdstartError(
            f"restore command failed with status {completed.status}: {command.arguments[0]}{said}",
            hint="it runs inside the container after each restore: see `[restore]` in the specification",
        )
