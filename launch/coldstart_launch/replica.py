"""One replica on this host: its folders, its record, and how it is taken down, also after a crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, DataError, NotFoundError
from coldstart_cli.files import atomic_write, exclusive_lock, make_directory, remove_tree
from coldstart_cli.process import last_lines, start_ticks
from coldstart_cli.regular import open_own

_RECORD_SCHEMA = "coldstart.replica"
# for whoever takes down what a killed launch left, criu's last moments included
TAKE_DOWN_SECONDS = 60.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class ReplicaRecord:
    """What a launch has made so far; written before each step, so that a crash leaves nothing unknown."""

    name: str
    state: str
    supervisor_pid: int = 0
    supervisor_start_ticks: int = 0
    container: bool = False
    mounted: bool = False
    method: str | None = None
    image: str | None = None
    pid: int | None = None

    def supervisor_lives(self) -> bool:
        """Whether the process that supervises this replica is still that process."""
        return self.supervisor_pid > 0 and start_ticks(self.supervisor_pid) == self.supervisor_start_ticks


class Replica:
    """The folders of one replica name, and the steps that end it. Only one process may hold a name."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.config = config
        self.folder = config.run_folder / "replicas" / name
        self.root = self.folder / "root"
        self.namespace = self.folder / "network"
        self.published = self.folder / "published"
        self.runc_root = config.run_folder / "runc"
        # the writable layer may be large: /run is memory
        self.scratch = config.state_folder / "replicas" / name
        self.overlay = self.scratch / "overlay"
        # it explains a failed launch, so it outlives the replica until the next launch of that name
        self.log = config.state_folder / "logs" / f"{name}.log"
        self._lock = config.run_folder / "replicas" / f"{name}.lock"
        self._record_path = self.folder / "record.json"

    @contextmanager
    def claim(self, note: Callable[[str], None]) -> Iterator[None]:
        """Hold the name; take down what a crashed launch of it left; take everything down at the end."""
        try:
            with ExitStack() as held:
                self._hold(held)
                if self.left_anything():
                    note(f"taking down what an earlier launch of `{self.name}` left")
                    self.take_down()
                make_directory(self.folder, mode=0o700)
                make_directory(self.scratch, mode=0o700)
                make_directory(self.log.parent, mode=0o700)
                self.log.unlink(missing_ok=True)
                try:
                    yield
                finally:
                    self.take_down()
        except BusyError as error:
            if error.message.startswith("locked by"):
                raise BusyError(
                    f"replica is already launched: {self.name} ({error.message})",
                    hint="`coldstart launch SPEC --stop` ends it",
                ) from error
            raise

    def _hold(self, held: ExitStack) -> None:
        """Take the name's lock; whoever takes down what a killed launch left is waited for."""
        deadline = time.monotonic() + TAKE_DOWN_SECONDS
        wait_seconds = self.config.number("lock_wait_seconds")
        while True:
            try:
                held.enter_context(exclusive_lock(self._lock, wait_seconds=wait_seconds))
            except BusyError:
                if self.supervised() or time.monotonic() > deadline:
                    raise
                wait_seconds = _LOOK_SECONDS
            else:
                return

    def supervised(self) -> bool:
        """Whether the process that supervises this replica is on record and lives."""
        record = self.read()
        return record is not None and record.supervisor_lives()

    def write(self, record: ReplicaRecord) -> None:
        """Put on record what is about to be made, with this process as its supervisor."""
        pid = os.getpid()
        owned = replace(record, supervisor_pid=pid, supervisor_start_ticks=start_ticks(pid))
        content = {"schema": _RECORD_SCHEMA, "version": 1, **asdict(owned)}
        atomic_write(self._record_path, json.dumps(content, indent=2).encode() + b"\n", mode=0o600)

    def read(self) -> ReplicaRecord | None:
        """The record, None when there is none; a damaged one counts as 'everything may exist'."""
        try:
            content: dict[str, Any] = json.loads(self._record_path.read_bytes())
            content.pop("schema")
            content.pop("version")
            return ReplicaRecord(**content)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return ReplicaRecord(self.name, "unknown", container=True, mounted=True)

    def record_supervisor(self) -> None:
        """Make this process the supervisor on record."""
        record = self.read()
        assert record is not None
        self.write(record)

    def left_anything(self) -> bool:
        """Whether a launch of this name made something that is still there."""
        return self.folder.exists() or self.scratch.exists()

    def take_down(self) -> None:
        """Container, network, mounts, then folders and record if those are gone; raises what failed first."""
        failures: list[ColdstartError] = []
        for step in (self.end_container, self.end_network, self.unmount):
            try:
                step()
            except ColdstartError as error:
                failures.append(error)
        if failures:
            raise failures[0]  # the record stays: the next attempt must know what there is
        self.release_gpus()
        self._remove_folders()

    def end_container(self) -> None:
        from coldstart_snapshot.containers.container import kill_and_delete

        kill_and_delete(self.name, runc_root=self.runc_root, runc=self.config.text("programs.runc"))

    def end_network(self) -> None:
        from coldstart_launch.replica_network import end_network

        end_network(self)

    def unmount(self) -> None:
        """End whatever is mounted at the root: an image with its server, or a bare overlay."""
        from coldstart_fs.mounts.kernel_mounts import mount_at, unmount_now
        from coldstart_fs.mounts.mount import find_mount, unmount

        if find_mount(self.root, self.config.run_folder) is not None:
            unmount(self.root, run_folder=self.config.run_folder)
        elif mount_at(self.root) is not None:
            unmount_now(self.root)

    @property
    def holder(self) -> str:
        """This replica's name in the pool of GPUs."""
        return f"replica:{self.name}"

    def release_gpus(self) -> None:
        """Give back what the replica had, now that nothing of it uses a GPU any more."""
        from coldstart_pool.live.state import release, state_path

        if state_path(self.config.state_folder).exists():
            # a state that cannot be read is for who takes from it to refuse
            with suppress(NotFoundError, DataError):
                release(self.config.state_folder, self.holder)

    def _remove_folders(self) -> None:
        remove_tree(self.folder)
        remove_tree(self.scratch)

    def is_held(self) -> bool:
        """Whether a live process holds this name."""
        if not self._lock.exists():
            return False
        try:
            with exclusive_lock(self._lock):
                return False
        except BusyError:
            return True


def last_words(log: Path) -> str:
    """The last lines that a server said, for a hint."""
    try:
        words = last_lines(log.read_bytes()[-16384:])
    except OSError:
        words = ""
    return f"its last words: {words}" if words else "it said nothing"


def note_end(log: Path, reason: str) -> None:
    """Leave in a server's log why it was ended: a supervisor in the background is heard by nobody."""
    with suppress(OSError):
        descriptor = open_own(log, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
            stream.write(f"coldstart: {reason}\n")


def replica_names(config: Config) -> list[str]:
    """Names of replicas that left a record on this host, live or not."""
    folder = config.run_folder / "replicas"
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
