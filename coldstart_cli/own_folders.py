"""Folders that are ours alone: who else could change them, and files below them without following links."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from coldstart_cli.errors import ConfigError
from coldstart_cli.regular import NotRegularError, open_own

_MOST_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def require_own_folder(path: Path, key: str) -> Path:
    """Refuse, for root, a folder whose names another user could make: root would write where that user wants.

    `key` is the setting that names it. A folder that is not there yet is judged by those above it.
    """
    if os.geteuid() == 0:
        for place in _way(path):
            if (doubt := _doubt(place, is_last=_is_same(place, path))) is not None:
                why, remedy = doubt
                which = "it" if _is_same(place, path) else str(place)
                raise ConfigError(
                    f"another user can change what root keeps in `{key}`: {path}: {which} {why}",
                    hint=f"{remedy} {shlex.quote(str(place))}, or choose another `{key}`",
                )
    return path


def open_own_beneath(folder: Path, relative: Path, flags: int, mode: int = 0o600) -> int:
    """`open_own` for a file below `folder`, with no link followed on the way. Raises `OSError`."""
    parent = open_folder_beneath(folder, relative.parent)
    try:
        return open_own(relative.name, flags, mode, dir_fd=parent)
    except OSError as error:
        error.filename = str(folder / relative)
        raise
    finally:
        os.close(parent)


def open_folder_beneath(folder: Path, relative: Path, *, create: bool = False) -> int:
    """A descriptor of a folder below `folder`, with no link followed on the way; `create` for us alone.

    Raises `OSError`.
    """
    descriptor = os.open(folder, _FOLDER)
    place = folder
    for name in relative.parts:
        place /= name
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                what = "a link, which is not followed" if place.is_symlink() else "not a folder"
                raise NotRegularError(place, what) from None
            error.filename = str(place)
            raise
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def files_beneath(folder: Path, pattern: str) -> list[Path]:
    """What matches below a folder, in order; nothing that only a link leads to."""
    return [
        path
        for path in sorted(folder.glob(pattern))
        if not any(place.is_symlink() for place in (path, *path.parents) if place.is_relative_to(folder))
    ]


def _way(path: Path) -> Iterator[Path]:
    """Every folder and link that leads to a path, as far as they are there, then what it is."""
    left = list(reversed(path.absolute().parts[1:]))
    place, links = Path("/"), 0
    yield place
    while left:
        name = left.pop()
        place = place.parent if name == ".." else place / name
        try:
            is_link = stat.S_ISLNK(place.lstat().st_mode)
        except OSError:
            return
        yield place
        if is_link:
            links += 1
            if links > _MOST_LINKS:
                return
            target = Path(os.readlink(place))
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            place = Path("/") if target.is_absolute() else place.parent


def _is_same(place: Path, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(place.lstat(), path.stat())
    return False


def _doubt(place: Path, *, is_last: bool) -> tuple[str, str] | None:
    """Why another user could make names there, and the command against it."""
    status = place.lstat()
    # who owns / owns all of it, also in a user namespace; who owns our code decides what we do
    trusted = {0, Path("/").stat().st_uid}
    if not is_last:
        trusted.add(Path(__file__).stat().st_uid)
    if status.st_uid not in trusted:
        return f"belongs to uid {status.st_uid}", "chown -h root"
    # in a sticky folder others make names of their own, and leave ours alone
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_last):
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"may be written to by every user (mode {stat.S_IMODE(status.st_mode):04o})", "chmod o-w"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in {0, Path("/").stat().st_gid}:
        is_own = status.st_uid != 0  # a person's folder, open to the group of that person
        return None if is_own else (f"may be written to by the group {status.st_gid}", "chmod g-w")
    return None
