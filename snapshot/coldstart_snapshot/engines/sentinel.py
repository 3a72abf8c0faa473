"""Workers that speak through files, as those of NVIDIA's Dynamo Snapshot do, which run unchanged.

The worker writes `ready-for-snapshot` when it is initialised and paused. `restore-complete` lets it go on, in
the source after a capture as in each restored copy. `snapshot-complete` is never written: a worker that reads
it ends, and the source of a capture goes on serving. With a framework named, `FRAMEWORK-restore-ready` is
waited for. The folder can be written by the container, so nothing below it is followed. Names and
meaning: ai-dynamo/dynamo, components/src/dynamo/common/snapshot.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from coldstart_cli.errors import NotFoundError, UsageError
from coldstart_cli.own_folders import open_folder_beneath
from coldstart_snapshot.engines.engine import EngineError, Quiesced, Served
from coldstart_snapshot.engines.settings import CONTROL_FOLDER, EngineSettings
from coldstart_snapshot.processes.tree import is_alive, looking_at

VARIABLES = ("SNAPSHOT_CONTROL_DIR", "DYN_SNAPSHOT_CONTROL_DIR")
READY = ("ready-for-snapshot", "ready-for-checkpoint")
SNAPSHOT_COMPLETE = "snapshot-complete"
RESTORE_COMPLETE = "restore-complete"
RESTORE_READY = "-restore-ready"
_POLL_SECONDS = 0.05


class SentinelEngine:
    def __init__(
        self, settings: EngineSettings, served: Served, environment: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._served = served
        self.folder = settings.control_folder or control_folder_of(environment or {})

    def quiesce(self, releasing: Callable[[], None]) -> Quiesced:
        del releasing
        # left by an earlier capture or restore: the worker, or we, would take them for this one's
        for name in (SNAPSHOT_COMPLETE, RESTORE_COMPLETE, *self._restore_ready):
            self._remove(name)
        name = self._wait_for(READY, "says that it is ready for a snapshot")
        return Quiesced(f"the worker has written {name}")

    def undo(self, *, released: bool, late: bool) -> str:
        del late
        if not released:
            return "the worker was told nothing"  # it waits, or is not there yet: as before
        self._write(RESTORE_COMPLETE, "source")
        return "the worker was told to go on"

    def resume(self, *, restored: bool) -> str:
        if restored:
            for name in self._restore_ready:
                self._remove(name)  # it waits to be told: this is another's
        self._write(RESTORE_COMPLETE, "copy" if restored else "source")
        if not self._restore_ready:
            return "the worker was told to go on"
        name = self._wait_for(self._restore_ready, "is ready")
        if not is_alive(self._served.pid):
            raise EngineError(f"the worker ended after it had written {name}: process {self._served.pid}")
        return f"the worker has written {name}"

    def wait_paused(self) -> None:
        """Until a worker that was started cold waits to be captured, or to be told to go on."""
        self._wait_for(READY, "says that it is ready for a snapshot")

    @property
    def _restore_ready(self) -> tuple[str, ...]:
        framework = self._settings.framework
        return () if framework is None else (f"{framework}{RESTORE_READY}",)

    def _wait_for(self, names: tuple[str, ...], what: str) -> str:
        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            with suppress(NotFoundError):  # ended meanwhile
                for name in names:
                    if self._exists(name):
                        return name
            if not is_alive(self._served.pid):
                raise EngineError(f"the worker ended before it {what}: process {self._served.pid}")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"no worker {what} within {self._settings.timeout_seconds:g} s: {self.folder}/{names[0]}",
                    hint=f"the worker must write it, in the folder that {VARIABLES[0]} names",
                )
            time.sleep(_POLL_SECONDS)

    def _open(self) -> int:
        root = Path(f"/proc/{self._served.pid}/root")
        with looking_at(self._served.pid):
            os.stat(root)
        try:
            return open_folder_beneath(root, Path(*PurePosixPath(self.folder).parts[1:]))
        except OSError as error:
            raise EngineError(
                f"control folder cannot be used: {self.folder}: {error.strerror}",
                hint=f"make it in the container, or set {VARIABLES[0]}; links are not followed",
            ) from error

    def _exists(self, name: str) -> bool:
        try:
            folder = self._open()
        except EngineError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False  # the worker makes it
            raise
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except OSError:
            return False
        finally:
            os.close(folder)

    def _remove(self, name: str) -> None:
        folder = self._open()
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise EngineError(f"cannot remove {self.folder}/{name}: {error.strerror}") from error
        finally:
            os.close(folder)

    def _write(self, name: str, text: str) -> None:
        """A new file under that name: whatever stood there is replaced, not opened."""
        folder = self._open()
        temporary = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            # readable for a worker that is not root
            descriptor = os.open(temporary, flags, 0o644, dir_fd=folder)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(f"{text}\n")
                os.fchmod(stream.fileno(), 0o644)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise EngineError(f"cannot write {self.folder}/{name}: {error.strerror}") from error
        finally:
            os.close(folder)


def control_folder_of(environment: Mapping[str, str]) -> str:
    """The control folder that a worker was told of, by the older variable too."""
    for variable in VARIABLES:
        if value := environment.get(variable, ""):
            if not value.startswith("/") or ".." in value.split("/"):
                raise UsageError(
                    f"control folder cannot be used: {variable}={value}",
                    hint=f"start the worker with an absolute path in {variable}",
                )
            return value
    return CONTROL_FOLDER


def forget_in_bundle(bundle: Mapping[str, Any], folder: str) -> None:
    """Before a restore: remove what an earlier one left where the control folder lies on the host."""
    forget_in_mounts(
        [
            (mount["destination"], mount["source"])
            for mount in bundle.get("mounts", ())
            if {"bind", "rbind"} & set(mount.get("options", ()))
        ],
        folder,
    )


def forget_in_mounts(mounts: Iterable[tuple[str, str]], folder: str, *, ready: bool = False) -> None:
    """The same of a container's mounts, each from a place on the host: (destination, source)."""
    wanted = PurePosixPath(folder)
    inside = [pair for pair in mounts if wanted.is_relative_to(pair[0])]
    if inside:
        destination, source = max(inside, key=lambda pair: len(PurePosixPath(pair[0]).parts))
        forget(Path(source), Path(*wanted.relative_to(destination).parts), ready=ready)


def forget(root: Path, folder: Path, *, ready: bool = False) -> None:
    """Remove what an earlier restore left in a control folder; with `ready` all that a worker writes, too.

    A restored worker runs before its GPU state is back, and must not find an old `restore-complete`; the
    `FRAMEWORK-restore-ready` of another copy is not its own.
    """
    try:
        descriptor = open_folder_beneath(root, folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise EngineError(f"control folder cannot be used: {root / folder}: {error.strerror}") from error
    try:
        stale = {RESTORE_COMPLETE, SNAPSHOT_COMPLETE, *(READY if ready else ())}
        for name in os.listdir(descriptor):
            if name in stale or name.endswith(RESTORE_READY):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
    except OSError as error:
        raise EngineError(f"cannot remove {root / folder}/{error.filename}: {error.strerror}") from error
    finally:
        os.close(descriptor)
