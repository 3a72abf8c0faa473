"""What nobody reads any more: formats of older versions, and what was put aside long ago."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

QUARANTINE = "quarantine-v1"
_OLD_FORMATS = ("chunks-v1",)
# a mount of an older version that lives writes now and then; what it misses it fetches again
_IDLE_SECONDS = 86400.0
_QUARANTINE_SECONDS = 30 * 86400.0


def sweep(folder: Path, *, dry_run: bool = False) -> list[Path]:
    """Remove orphans of the cache; those that are, or would be, removed."""
    now = time.time()
    orphans = [folder / name for name in _OLD_FORMATS if 0 < _newest(folder / name) < now - _IDLE_SECONDS]
    with suppress(OSError):
        orphans += [
            Path(entry.path)
            for entry in (() if (folder / QUARANTINE).is_symlink() else os.scandir(folder / QUARANTINE))
            if entry.stat(follow_symlinks=False).st_mtime < now - _QUARANTINE_SECONDS
        ]
    if not dry_run:
        for orphan in orphans:
            if orphan.is_dir():
                shutil.rmtree(orphan, ignore_errors=True)
            else:
                orphan.unlink(missing_ok=True)
    return orphans


def _newest(folder: Path) -> float:
    """When a file was last put into the folder, or into one of those in it; 0 where there is none."""
    newest = 0.0
    with suppress(OSError):
        newest = folder.stat().st_mtime
        for entry in os.scandir(folder):
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest
