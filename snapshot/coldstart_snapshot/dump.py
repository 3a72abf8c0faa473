"""The part of a capture that touches the server: GPU state out, frozen, dumped, thawed, GPU state back."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError
from coldstart_snapshot.bundle import CONFIG_NAME
from coldstart_snapshot.criu import DUMP_LOG, DumpOptions, dump_process, keep_log
from coldstart_snapshot.criu_program import Criu
from coldstart_snapshot.cuda import CudaClient
from coldstart_snapshot.images import linked_remaps
from coldstart_snapshot.outputs import check_outputs
from coldstart_snapshot.processes import process_tree
from coldstart_snapshot.roots import tmpfs_mounts
from coldstart_snapshot.runc import running_container
from coldstart_snapshot.target import ContainerTarget, Target
from coldstart_snapshot.upper import archive_upper

_ROOM_FACTOR = 1.05
# the freezer of cgroup v1 may need more than one request
_THAW_SECONDS = 10.0
_THAW_POLL_SECONDS = 0.02


@dataclass
class Timings:
    """Seconds of each phase, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 6)


@dataclass(frozen=True)
class Dump:
    """One dump of one target into a staging folder."""

    criu: Criu
    target: Target
    options: DumpOptions
    cuda: CudaClient | None
    gpu: Sequence[int]
    timings: Timings
    notes: list[str]
    say: Callable[[str], None]

    def fill(self, staging: Path, kept_log: Path) -> None:
        """Write images, bundle and layer; whatever happens, the server runs again afterwards."""
        images, work = staging / "images", staging / "work"
        images.mkdir(mode=0o700)
        work.mkdir(mode=0o700)
        try:
            with self._suspended():
                self._refuse_small_disk(staging)
                if isinstance(self.target, ContainerTarget):
                    self._dump_container(self.target, staging, images, work)
                else:
                    self.say(f"dumping {self.target.label}")
                    with undisturbed(), self.timings.phase("dump"):
                        dump_process(self.criu, self.target.pid, images, work, self.options)
        except ColdstartError:
            keep_log(work / DUMP_LOG, kept_log)
            raise
        check_outputs(images)
        self._refuse_deleted_links(images)
        shutil.rmtree(work)

    def _refuse_deleted_links(self, images: Path) -> None:
        """Links that criu made for the dump are gone again; only those in a container's tmpfs were dumped."""
        kept = tmpfs_mounts(self.target.pid) if isinstance(self.target, ContainerTarget) else ()
        for path in linked_remaps(images):
            if not any(path.startswith(f"{point}/") for point in kept):
                raise DataError(
                    "a file that was deleted under one of its names is still open, in "
                    f"{os.path.dirname(path)}",
                    hint="close it before the capture, or keep the name",
                )

    def _dump_container(self, target: ContainerTarget, staging: Path, images: Path, work: Path) -> None:
        bundle = staging / "bundle"
        bundle.mkdir(mode=0o700)
        shutil.copyfile(target.bundle / CONFIG_NAME, bundle / CONFIG_NAME)
        self.say(f"freezing and dumping {target.label}")
        started = time.monotonic()
        with _frozen(target):
            # criu killed halfway would leave its code in the server: only its own deadline ends it
            with undisturbed(), self.timings.phase("dump"):
                # a cgroup that was frozen before criu stays so: the layer cannot change until we are done
                target.runc.checkpoint(target.container_id, images, work, self.criu, self.options)
            if target.root.upper is not None:
                with self.timings.phase("upper"):
                    archived = archive_upper(target.root.upper, staging / "upper.tar")
                if archived.skipped_sockets:
                    self.notes.append(f"{archived.skipped_sockets} sockets in the writable layer left out")
        self.timings.seconds["frozen"] = round(time.monotonic() - started, 6)

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        """GPU state is in host memory while the block runs."""
        if self.cuda is None or not self.gpu:
            yield
            return
        self.say(f"moving GPU state of {len(self.gpu)} processes to host memory")
        with self.timings.phase("gpu_suspend"):
            self.cuda.suspend(self.gpu, self.options.timeout_seconds)
        try:
            yield
        finally:
            with undisturbed(), self.timings.phase("gpu_resume"):
                self.cuda.resume(self.gpu, timeout_seconds=self.options.timeout_seconds)

    def _refuse_small_disk(self, staging: Path) -> None:
        # looked at now: what was in GPU memory is in the processes' own by now
        memory_bytes = sum(member.memory_bytes for member in process_tree(self.target.pid))
        needed = int((memory_bytes + self.options.ghost_limit_bytes) * _ROOM_FACTOR)
        free = shutil.disk_usage(staging).free
        if free < needed:
            raise CannotCreateError(
                f"not enough space for the snapshot: {needed} bytes needed, {free} free in {staging.parent}",
                hint="free some, or set `state_dir` to a larger disk",
            )


@contextmanager
def _frozen(target: ContainerTarget) -> Iterator[None]:
    """Nothing in the container runs while the block does."""
    try:
        with undisturbed():
            target.runc.pause(target.container_id)
        yield
    finally:
        with undisturbed():
            _thaw(target)


def _thaw(target: ContainerTarget) -> None:
    """Let the container go on; one that has ended meanwhile is the caller's to notice."""
    deadline = time.monotonic() + _THAW_SECONDS
    while True:
        state = target.runc.state(target.container_id)
        if state is None or state.status != "paused":
            return
        target.runc.resume(target.container_id)
        if time.monotonic() > deadline:
            running_container(target.runc, target.container_id)
        time.sleep(_THAW_POLL_SECONDS)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold INT and TERM back: a server must not stay frozen because somebody is impatient."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
