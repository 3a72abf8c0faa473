"""What coldstart may do here: all as root; with CAP_CHECKPOINT_RESTORE alone a user's own processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from coldstart_cli.errors import ColdstartError, PermissionNeededError, UnavailableError
from coldstart_snapshot.processes.capabilities import capability_names, read_capabilities

# mounts and namespaces; other processes' memory
_NEEDED_BY_ROOT = frozenset({"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"})
_NEEDED_BY_USERS = "CAP_CHECKPOINT_RESTORE"
_TAKING_AWAY = "CAP_SETPCAP"


def is_unprivileged() -> bool:
    """Whether criu has to do with what a user may do."""
    return os.geteuid() != 0


def require_root(what: str) -> None:
    """Refuse who is not root, and root that has been left too little, as in a container."""
    if is_unprivileged():
        raise PermissionNeededError(f"{what} needs root", hint="run with sudo")
    if missing := sorted(_NEEDED_BY_ROOT - own_capabilities()):
        options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
        raise PermissionNeededError(
            f"{what} needs capabilities that root lacks here: {', '.join(missing)}",
            hint=f"run on the host itself, or start the container that this is with `{options}`",
        )


def require_rights(what: str, *, container: bool) -> None:
    """Root for containers; for a plain process of the same user one capability does."""
    if container or not is_unprivileged():
        require_root(f"{what} containers" if container else what)
    elif _NEEDED_BY_USERS not in own_capabilities():
        user, group = os.geteuid(), os.getegid()
        raise PermissionNeededError(
            f"{what} needs root, or for processes of one's own {_NEEDED_BY_USERS}",
            hint=f"sudo setpriv --reuid {user} --regid {group} --init-groups --inh-caps +checkpoint_restore"
            " --ambient-caps +checkpoint_restore coldstart ...",
        )


def refuse_unrestorable(pids: Iterable[int]) -> None:
    """Raise for the first process that cannot be captured without root, or not be restored."""
    for _, error in unrestorable(pids):
        raise error


def unrestorable(pids: Iterable[int]) -> Iterator[tuple[int, ColdstartError]]:
    """Without root: processes of others, and those that a restore would have to take capabilities from.

    criu 4.2 drops what a process may never gain one by one, for which the kernel wants CAP_SETPCAP even
    where nothing is left to drop.
    """
    if not is_unprivileged():
        return
    every = capability_names(2 ** (_last_capability() + 1) - 1)
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (error := _unrestorable(pid, every)) is not None:
                yield pid, error


def _unrestorable(pid: int, every: frozenset[str]) -> ColdstartError | None:
    if (owner := os.stat(f"/proc/{pid}").st_uid) != os.geteuid():
        return PermissionNeededError(
            f"process {pid} belongs to user {owner}: capturing it needs root", hint="run with sudo"
        )
    lacks = every - read_capabilities(pid, "CapBnd")
    if lacks and _TAKING_AWAY not in own_capabilities():
        return UnavailableError(
            f"process {pid} could not be restored without {_TAKING_AWAY}: its bounding set lacks"
            f" {', '.join(sorted(lacks))}",
            hint="start the server with a full bounding set, or run coldstart as root",
        )
    return None


def own_capabilities() -> frozenset[str]:
    """The effective capabilities of this process."""
    return read_capabilities(os.getpid(), "CapEff")


def _last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())
