"""What a new image host finds: dead mounts, servers of other versions, servers without a keeper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_cli.version import __version__
from coldstart_fs.mounts.obtain import take_over
from coldstart_fs.mounts.server_records import key_of, read_server, server_folders, server_lock
from coldstart_fs.mounts.unmount import sweep_stale

_TAKE_OVER_SECONDS = 30.0
_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class UpkeepReport:
    """`swept`: mount points freed of dead mounts; `renewed`: servers that were replaced while in use."""

    swept: tuple[Path, ...]
    renewed: tuple[Path, ...]
    problems: tuple[str, ...]


def look_after(run_folder: Path) -> UpkeepReport:
    """Free what is dead, renew what is old or unprotected. One that refuses delays others for seconds."""
    swept = tuple(sweep_stale(run_folder))
    renewed, problems = [], []
    for folder in server_folders(run_folder):
        server = read_server(folder)
        if server is None or not server.lives():
            continue
        if server.version == __version__ and server.is_protected():
            continue
        try:
            with server_lock(run_folder, key_of(folder), wait_seconds=_LOCK_SECONDS):
                renewed.append(take_over(server, timeout_seconds=_TAKE_OVER_SECONDS).root)
        except ColdstartError as error:
            problems.append(f"cannot take over {server.root}: {error.message}")
    return UpkeepReport(swept, tuple(renewed), tuple(problems))
