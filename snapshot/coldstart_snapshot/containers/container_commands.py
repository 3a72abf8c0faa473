"""A command inside a running container, as its server's user, with variables of our own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from coldstart_cli.files import atomic_write
from coldstart_cli.process import Completed
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.runc import Runc


def run_inside(
    runc: Runc,
    container_id: str,
    bundle: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    timeout_seconds: float,
) -> Completed:
    """Run it to its end; the server's own variables come first, less those that are named like ours."""
    recorded = read_bundle(bundle)["process"]
    kept = [entry for entry in recorded.get("env", ()) if not entry.startswith("COLDSTART_")]
    process = {
        **recorded,
        "terminal": False,
        "args": list(arguments),
        "env": [*kept, *(f"{name}={value}" for name, value in variables.items())],
    }
    # a file, not arguments: everybody may read those of a process
    description = runc.state_root / f".{container_id}-{os.getpid()}.json"
    atomic_write(description, json.dumps(process).encode("utf-8", "surrogateescape"), mode=0o600)
    try:
        return runc.execute(container_id, description, timeout_seconds=timeout_seconds)
    finally:
        description.unlink()
