"""Capture: wait until ready, suspend, freeze, dump, thaw, resume, verify, publish; or all as before."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError, UsageError
from coldstart_cli.version import __version__
from coldstart_host.cpu import read_cpu_facts
from coldstart_snapshot.bundle import CONFIG_NAME
from coldstart_snapshot.container import kill_and_delete, require_root
from coldstart_snapshot.cpu_match import required_flags
from coldstart_snapshot.criu import (
    DUMP_LOG,
    Criu,
    DumpOptions,
    check_host,
    dump_process,
    find_criu,
    keep_log,
    network_lock,
)
from coldstart_snapshot.cuda import CudaClient, cuda_client
from coldstart_snapshot.gpu_facts import gpu_state
from coldstart_snapshot.images import linked_remaps
from coldstart_snapshot.inventory import publish, snapshot_lock, staging_folder, variant_folder
from coldstart_snapshot.manifest import (
    MANIFEST_NAME,
    Manifest,
    ReadyCheck,
    TreeMember,
    check_name,
    read_manifest,
    write_manifest,
)
from coldstart_snapshot.outputs import check_outputs
from coldstart_snapshot.processes import end_tree
from coldstart_snapshot.ready import parse_url, wait_ready
from coldstart_snapshot.roots import RootSource, tmpfs_mounts
from coldstart_snapshot.runc import Runc, running_container
from coldstart_snapshot.target import (
    ContainerTarget,
    Target,
    TargetFacts,
    container_target,
    process_target,
    prove_serving,
    target_facts,
)
from coldstart_snapshot.upper import archive_upper
from coldstart_snapshot.variants import variant_name
from coldstart_snapshot.verify import digest_files, remember_verified, verify_files

_SERVING_SECONDS = 60.0
_MIB = 1 << 20
_ROOM_FACTOR = 1.05


@dataclass(frozen=True)
class CaptureRequest:
    """What to capture under which name. Exactly one of `container_id` and `pid` is given."""

    name: str
    container_id: str | None = None
    runc_root: Path | None = None
    pid: int | None = None
    root: RootSource | None = None
    ready_url: str | None = None
    ready_timeout_seconds: float = 600.0
    stop: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class SnapshotVariant:
    """A captured variant; not `published` after a dry run, whose manifest lists no files."""

    folder: Path
    manifest: Manifest
    published: bool
    replaced: bool = False
    stopped: bool = False
    notes: tuple[str, ...] = ()


def create_snapshot(
    request: CaptureRequest, config: Config, say: Callable[[str], None] = lambda _: None
) -> SnapshotVariant:
    """Capture a running server, which goes on serving; on any failure too, and the error says so."""
    check_name(request.name)
    if (request.container_id is None) == (request.pid is None):
        raise UsageError("name either a container or a process", hint="--container ID, or --pid PID")
    if request.ready_url is not None:
        parse_url(request.ready_url)
    require_root("capturing")
    criu = find_criu(config.text("programs.criu"))
    check_host(criu)
    target = _find_target(request, config)
    with snapshot_lock(config.run_folder, request.name, wait_seconds=config.number("lock_wait_seconds")):
        return _Capture(request, config, criu, target, say).run()


def _find_target(request: CaptureRequest, config: Config) -> Target:
    if request.pid is not None:
        return process_target(request.pid)
    assert request.container_id is not None
    runc = Runc.find(config.text("programs.runc"), request.runc_root or config.run_folder / "runc")
    return container_target(runc, request.container_id, request.root)


@dataclass
class _Timings:
    """Seconds of each phase, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 6)


class _Capture:
    """One capture, from the ready wait to the published folder."""

    def __init__(
        self, request: CaptureRequest, config: Config, criu: Criu, target: Target, say: Callable[[str], None]
    ) -> None:
        self._request = request
        self._config = config
        self._criu = criu
        self._target = target
        self._say = say
        self._timings = _Timings()
        self._notes: list[str] = []
        self._timeout_seconds = config.number("snapshot.create_timeout_seconds")

    def run(self) -> SnapshotVariant:
        request, target = self._request, self._target
        if request.ready_url is not None:
            self._say(f"waiting for {request.ready_url}")
            with self._timings.phase("ready"):
                wait_ready(request.ready_url, request.ready_timeout_seconds, pid=target.pid)
        facts = target_facts(target)
        self._notes += facts.notes
        cuda = cuda_client(self._config.text("programs.cuda_checkpoint"))
        gpu = cuda.find_gpu_processes([member.pid for member in facts.tree]) if cuda else ()
        options = DumpOptions(
            network_lock=network_lock(self._criu),
            ghost_limit_bytes=facts.largest_deleted_bytes + _MIB,
            timeout_seconds=max(1, int(self._timeout_seconds)),
            external=facts.external_keys,
        )
        manifest = self._manifest(facts, gpu, options)
        folder = variant_folder(self._config.state_folder, request.name, manifest.variant)
        if request.dry_run:
            return SnapshotVariant(
                folder, manifest, published=False, replaced=folder.exists(), notes=facts.notes
            )
        with staging_folder(self._config.state_folder, request.name, manifest.variant) as staging:
            try:
                self._dump(staging, facts, cuda, gpu, options)
            except ColdstartError as error:
                error.add(self._state_in_words())
                raise
            except BaseException:
                # interrupted: everything was undone on the way here, which is looked at before we leave
                with _undisturbed():
                    prove_serving(target, request.ready_url, _SERVING_SECONDS)
                raise
            self._say("verifying")
            serving = prove_serving(target, request.ready_url, _SERVING_SECONDS)
            self._notes.append(serving)
            manifest = self._finish(staging, manifest)
            replaced = publish(staging, folder)
        remember_verified(folder, manifest, self._config.run_folder)
        if request.stop:
            self._stop()
        return SnapshotVariant(
            folder,
            manifest,
            published=True,
            replaced=replaced,
            stopped=request.stop,
            notes=tuple(self._notes),
        )

    def _dump(
        self,
        staging: Path,
        facts: TargetFacts,
        cuda: CudaClient | None,
        gpu: Sequence[int],
        options: DumpOptions,
    ) -> None:
        """Fill the staging folder; whatever happens, the server runs again afterwards."""
        images = staging / "images"
        images.mkdir(mode=0o700)
        work = staging / "work"
        work.mkdir(mode=0o700)
        try:
            with self._suspended(cuda, gpu):
                self._refuse_small_disk(staging, facts)
                if isinstance(self._target, ContainerTarget):
                    self._dump_container(self._target, staging, images, work, options)
                else:
                    self._say(f"dumping {self._target.label}")
                    with self._timings.phase("dump"):
                        dump_process(self._criu, self._target.pid, images, work, options)
        except ColdstartError:
            keep_log(work / DUMP_LOG, self._config.run_folder, self._request.name)
            raise
        check_outputs(images)
        self._refuse_deleted_links(images)
        shutil.rmtree(work)

    def _refuse_deleted_links(self, images: Path) -> None:
        """Links that criu made for the dump are gone again; only those in a container's tmpfs were dumped."""
        kept = tmpfs_mounts(self._target.pid) if isinstance(self._target, ContainerTarget) else ()
        for path in linked_remaps(images):
            if not any(path.startswith(f"{point}/") for point in kept):
                raise DataError(
                    "a file that was deleted under one of its names is still open, in "
                    f"{os.path.dirname(path)}",
                    hint="close it before the capture, or keep the name",
                )

    def _dump_container(
        self, target: ContainerTarget, staging: Path, images: Path, work: Path, options: DumpOptions
    ) -> None:
        bundle = staging / "bundle"
        bundle.mkdir(mode=0o700)
        shutil.copyfile(target.bundle / CONFIG_NAME, bundle / CONFIG_NAME)
        self._say(f"freezing and dumping {target.label}")
        started = time.monotonic()
        with _frozen(target):
            with self._timings.phase("dump"):
                # a cgroup that was frozen before criu stays so: the layer cannot change until we are done
                target.runc.checkpoint(
                    target.container_id, images, work, self._criu, options.lines(), self._timeout_seconds
                )
            if target.root.upper is not None:
                with self._timings.phase("upper"):
                    archived = archive_upper(target.root.upper, staging / "upper.tar")
                if archived.skipped_sockets:
                    self._notes.append(f"{archived.skipped_sockets} sockets in the writable layer left out")
        self._timings.seconds["frozen"] = round(time.monotonic() - started, 6)

    @contextmanager
    def _suspended(self, cuda: CudaClient | None, pids: Sequence[int]) -> Iterator[None]:
        """GPU state is in host memory while the block runs."""
        if cuda is None or not pids:
            yield
            return
        self._say(f"moving GPU state of {len(pids)} processes to host memory")
        with self._timings.phase("gpu_suspend"):
            cuda.suspend(pids, self._timeout_seconds)
        try:
            yield
        finally:
            with _undisturbed(), self._timings.phase("gpu_resume"):
                cuda.resume(pids, timeout_seconds=self._timeout_seconds)

    def _refuse_small_disk(self, staging: Path, facts: TargetFacts) -> None:
        needed = int((facts.memory_bytes + facts.deleted_bytes) * _ROOM_FACTOR)
        free = shutil.disk_usage(staging).free
        if free < needed:
            raise CannotCreateError(
                f"not enough space for the snapshot: {needed} bytes needed, {free} free in {staging.parent}",
                hint="free some, or set `state_dir` to a larger disk",
            )

    def _finish(self, staging: Path, manifest: Manifest) -> Manifest:
        with self._timings.phase("digests"):
            files = digest_files(staging)
        complete = replace(manifest, files=files, timings=dict(self._timings.seconds))
        write_manifest(staging, complete)
        (staging / MANIFEST_NAME).chmod(0o600)
        # what was written must be what will be read
        written = read_manifest(staging)
        verify_files(staging, written, digests=False)
        return written

    def _manifest(self, facts: TargetFacts, gpu: Sequence[int], options: DumpOptions) -> Manifest:
        cpu = read_cpu_facts()
        target, request = self._target, self._request
        inner = {member.pid: member.inner_pid for member in facts.tree}
        container = isinstance(target, ContainerTarget)
        system = os.uname()
        return Manifest(
            name=request.name,
            variant=variant_name(cpu),
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            coldstart_version=__version__,
            kind="container" if container else "process",
            cpu=cpu,
            required_flags=required_flags(cpu),
            kernel_release=system.release,
            kernel_version=system.version,
            criu_version=self._criu.version,
            criu_path=self._criu.program,
            criu_options=options.lines(),
            root_pid=facts.tree[0].inner_pid,
            command=facts.tree[0].command,
            tree=tuple(
                TreeMember(
                    pid=member.inner_pid,
                    parent=inner.get(member.parent, 0),
                    command=member.command,
                    threads=member.threads,
                    gpu=member.pid in gpu,
                )
                for member in facts.tree
            ),
            files=(),
            runc_version=target.runc.version() if isinstance(target, ContainerTarget) else None,
            root=target.root if isinstance(target, ContainerTarget) else None,
            network=facts.network,
            listen=facts.listen,
            output_keys=facts.output_keys,
            ready=ReadyCheck(request.ready_url, request.ready_timeout_seconds) if request.ready_url else None,
            gpu=gpu_state([inner[pid] for pid in gpu]) if gpu else None,
        )

    def _state_in_words(self) -> str:
        with _undisturbed():
            try:
                serving = prove_serving(self._target, self._request.ready_url, _SERVING_SECONDS)
            except ColdstartError as error:
                return f"nothing was published, and the server does not serve: {error.message}"
            return f"nothing was published; {serving}"

    def _stop(self) -> None:
        """End the original: the snapshot is published."""
        if isinstance(self._target, ContainerTarget):
            runc = self._target.runc
            kill_and_delete(self._target.container_id, runc_root=runc.state_root, runc=runc.program)
        else:
            end_tree(self._target.pid)


@contextmanager
def _frozen(target: ContainerTarget) -> Iterator[None]:
    """Nothing in the container runs while the block does."""
    try:
        target.runc.pause(target.container_id)
        yield
    finally:
        with _undisturbed():
            _thaw(target)


def _thaw(target: ContainerTarget) -> None:
    """Let the container go on; one that has ended meanwhile is the caller's to notice."""
    state = target.runc.state(target.container_id)
    if state is None or state.status != "paused":
        return
    target.runc.resume(target.container_id)
    running_container(target.runc, target.container_id)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold INT and TERM back: a server must not stay frozen because somebody is impatient."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
