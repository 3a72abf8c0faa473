"""The part of a capture that touches the server: GPU state out, frozen, dumped, thawed, GPU state back."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError, IoFailure
from coldstart_cli.signals import undisturbed
from coldstart_snapshot.capturing.pre_dump import adopt_parent, dump_ahead
from coldstart_snapshot.capturing.recovery import thaw
from coldstart_snapshot.containers.bundle import CONFIG_NAME, network_is_shared, read_bundle
from coldstart_snapshot.containers.network import foreign_network, inside
from coldstart_snapshot.containers.roots import tmpfs_mounts
from coldstart_snapshot.containers.runc import RuncError
from coldstart_snapshot.containers.target import ContainerTarget, Target
from coldstart_snapshot.containers.upper import archive_upper
from coldstart_snapshot.criu.calls import DUMP_LOG, DumpOptions, dump_process, keep_log
from coldstart_snapshot.criu.images import linked_remaps, standstill_seconds
from coldstart_snapshot.criu.program import Criu
from coldstart_snapshot.cuda.capturing import GpuCapture
from coldstart_snapshot.processes.tree import process_tree
from coldstart_snapshot.restoring.outputs import check_outputs

# beside the images until they take it in
_AHEAD = "pre-images"
_ROOM_FACTOR = 1.05
_ROOM_HINT = "free some, or set `state_dir` to a larger disk"
# runc's words, Python's, and the meaning of criu's
_FULL = re.compile("no space left on device|the disk is full", re.IGNORECASE)


@dataclass
class Timings:
    """Seconds of each phase, in order; `entered` hears of each one before it begins."""

    seconds: dict[str, float] = field(default_factory=dict)
    entered: Callable[[str], None] = field(default=lambda _: None)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.entered(name)
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
    gpu: GpuCapture | None
    timings: Timings
    notes: list[str]
    say: Callable[[str], None]
    let_go: Callable[[], None] | None = None
    """Of a server that a tracer holds still: ends that, once the freezer has it."""
    pre_dump: bool = False

    def fill(self, staging: Path, kept_log: Path) -> None:
        """Write images, bundle and layer; whatever happens, the server runs again afterwards."""
        images, work = staging / "images", staging / "work"
        images.mkdir(mode=0o700)
        work.mkdir(mode=0o700)
        started = time.monotonic()
        try:
            parent = self._dump_ahead(staging, work) if self.pre_dump else None
            started = time.monotonic()
            with self._suspended():
                self._refuse_small_disk(staging)
                if isinstance(self.target, ContainerTarget):
                    self._dump_container(self.target, staging, images, work, parent)
                else:
                    self.say(f"dumping {self.target.label}")
                    with undisturbed(), self.timings.phase("dump"):
                        dump_process(self.criu, self.target.pid, images, work, self.options, parent=parent)
                    self._note_standstill(work)
            if self.gpu is not None:
                self.timings.seconds["frozen"] = round(time.monotonic() - started, 6)
        except ColdstartError as error:
            if keep_log(work / DUMP_LOG, kept_log) and error.hint is None:
                error.hint = f"the whole log is in {kept_log}"
            if _FULL.search(error.message):
                raise CannotCreateError(error.message, hint=_ROOM_HINT) from error
            raise
        except OSError as error:
            kind = CannotCreateError if error.errno == errno.ENOSPC else IoFailure
            raise kind(f"cannot write the snapshot: {error.filename or staging}: {error.strerror}") from error
        finally:
            self._let_go()
        if parent is not None:
            adopt_parent(images, staging / _AHEAD)
        check_outputs(images)
        self._refuse_deleted_links(images)
        shutil.rmtree(work)

    def _dump_ahead(self, staging: Path, work: Path) -> str | None:
        """Where images dumped ahead lie, from the real ones; where that fails, all is dumped at once."""
        self.say(f"dumping memory of {self.target.label} ahead")
        ahead = staging / _AHEAD
        try:
            with undisturbed(), self.timings.phase("pre_dump"):
                dump_ahead(self.criu, self.target, ahead, work, self.options)
        except ColdstartError as error:
            self.notes.append(f"memory was not dumped ahead: {error.message}")
            shutil.rmtree(ahead)
            return None
        return f"../{_AHEAD}"

    def _note_standstill(self, work: Path) -> None:
        """Criu itself says how long it held a plain process; its own start and end are not part of that."""
        if (seconds := standstill_seconds(work)) is not None:
            self.timings.seconds["frozen"] = round(seconds, 6)

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

    def _dump_container(
        self, target: ContainerTarget, staging: Path, images: Path, work: Path, parent: str | None
    ) -> None:
        bundle = staging / "bundle"
        bundle.mkdir(mode=0o700)
        shutil.copyfile(target.bundle / CONFIG_NAME, bundle / CONFIG_NAME)
        self.say(f"freezing and dumping {target.label}")
        started = time.monotonic()
        with self._frozen(target):
            # criu killed halfway would leave its code in the server: only its own deadline ends it
            with undisturbed(), self.timings.phase("dump"), inside(_lent_network(target)):
                # a cgroup that was frozen before criu stays so: the layer cannot change until we are done
                extra = ("--parent-path", parent) if parent is not None else ()
                target.runc.checkpoint(
                    target.container_id, images, work, self.criu, self.options, extra=extra
                )
            if target.root.upper is not None:
                with self.timings.phase("upper"):
                    archived = archive_upper(target.root.upper, staging / "upper.tar")
                if archived.skipped_sockets:
                    self.notes.append(f"{archived.skipped_sockets} sockets in the writable layer left out")
        self.timings.seconds["frozen"] = round(time.monotonic() - started, 6)

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        """GPU state is in host memory while the block runs."""
        gpu, seconds = self.gpu, self.options.timeout_seconds
        if gpu is None:
            yield
            return
        self.say(f"moving GPU state of {len(gpu.pids)} processes to host memory")
        progress = "begun"
        try:
            with self.timings.phase("gpu_suspend"):
                try:
                    gpu.client.suspend(gpu.pids, seconds)
                except ColdstartError:
                    progress = "undone"
                    raise
            progress = "done"
            yield
        finally:
            with undisturbed(), self.timings.phase("gpu_resume"):
                if progress == "done":
                    gpu.client.resume(gpu.pids, timeout_seconds=seconds)
                elif progress == "begun":  # a signal came in between
                    gpu.client.bring_back(gpu.pids)

    @contextmanager
    def _frozen(self, target: ContainerTarget) -> Iterator[None]:
        """Nothing in the container runs while the block does."""
        try:
            with undisturbed(), self.timings.phase("freeze"):
                self._pause(target)
                self._let_go()
            yield
        finally:
            with undisturbed(), self.timings.phase("thaw"):
                thaw(target.runc, target.container_id)

    def _pause(self, target: ContainerTarget) -> None:
        try:
            target.runc.pause(target.container_id)
        except RuncError:
            if self.let_go is None:
                raise
            # a freezer of cgroup v1 before Linux 6.1 does not count what a tracer holds
            self.let_go()
            target.runc.pause(target.container_id)

    def _let_go(self) -> None:
        if self.let_go is not None:
            self.let_go()

    def _refuse_small_disk(self, staging: Path) -> None:
        # looked at now: what was in GPU memory is in the processes' own by now
        memory_bytes = sum(member.memory_bytes for member in process_tree(self.target.pid))
        needed = int((memory_bytes + self.options.ghost_limit_bytes) * _ROOM_FACTOR)
        free = shutil.disk_usage(staging).free
        if free < needed:
            raise CannotCreateError(
                f"not enough space for the snapshot: {needed} bytes needed, {free} free in {staging.parent}",
                hint=_ROOM_HINT,
            )


def _lent_network(target: ContainerTarget) -> Path | None:
    """The namespace that a container was started in, where it is neither its own nor ours.

    criu takes the network that it runs in for one that whoever restores the container will provide.
    """
    return foreign_network(target.pid) if network_is_shared(read_bundle(target.bundle)) else None
