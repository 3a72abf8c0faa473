"""A snapshot is code and secrets: nobody but root, or whoever runs coldstart, may change it or see it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from coldstart_cli.errors import NotFoundError, PermissionNeededError

_OTHERS_WRITE = 0o022
_OTHERS_READ = 0o055


def require_private(folder: Path, state_folder: Path) -> tuple[str, ...]:
    """Refuse a snapshot's folder that others could change, by itself or by what it lies in; warnings.

    Below the state folder no link is followed. Above it links and sticky folders such as /tmp are fine as
    long as root, or we, own them.
    """
    inside = [folder, *(parent for parent in folder.parents if parent.is_relative_to(state_folder))]
    for path in inside:
        _refuse_changeable(path, sticky_is_fine=False, link_is_fine=path == state_folder)
    for start in {Path(os.path.abspath(state_folder)), Path(os.path.realpath(state_folder))}:
        for path in start.parents:
            _refuse_changeable(path, sticky_is_fine=True, link_is_fine=True)
    if os.lstat(folder).st_mode & _OTHERS_READ:
        return (f"other users may read the snapshot's memory: chmod 700 {folder}",)
    return ()


def exposed_entries(folder: Path) -> Iterator[str]:
    """Whatever below a variant's folder somebody else owns, may write to, or has another name for."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in sorted(os.scandir(folder / prefix), key=lambda entry: entry.name):
            path, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if status.st_uid not in {0, os.geteuid()}:
                yield f"belongs to user {status.st_uid}: {path}"
            elif status.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(status.st_mode):
                yield f"others may write to it, mode {status.st_mode & 0o7777:04o}: {path}"
            elif not is_folder and status.st_nlink != 1:
                yield f"has {status.st_nlink} names, of which one lies elsewhere or twice here: {path}"
            if is_folder:
                waiting.append(f"{path}/")


def _refuse_changeable(path: Path, *, sticky_is_fine: bool, link_is_fine: bool) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"folder does not exist: {path}") from error
    if status.st_uid not in {0, os.geteuid()}:
        raise PermissionNeededError(
            f"snapshots do not lie safely: {path} belongs to user {status.st_uid}",
            hint=f"chown root: {path}, if you trust what is in it",
        )
    if stat.S_ISLNK(status.st_mode):
        if link_is_fine:
            return
        raise PermissionNeededError(
            f"snapshots do not lie safely: {path} is a link", hint="put the folder itself there"
        )
    sticky = bool(status.st_mode & stat.S_ISVTX) and sticky_is_fine
    if status.st_mode & _OTHERS_WRITE and not sticky:
        raise PermissionNeededError(
            f"snapshots do not lie safely: others may write to {path}: mode {status.st_mode & 0o7777:04o}",
            hint=f"chmod go-w {path}, if you trust what is in it",
        )
