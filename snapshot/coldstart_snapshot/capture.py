"""Capture: wait until ready, suspend, freeze, dump, thaw, resume, verify, publish; or all as before."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, UsageError
from coldstart_cli.version import __version__
from coldstart_host.cpu import read_cpu_facts
from coldstart_snapshot.container import kill_and_delete, require_root
from coldstart_snapshot.cpu_match import required_flags
from coldstart_snapshot.criu import DUMP_LOG, DumpOptions, kept_log
from coldstart_snapshot.criu_program import Criu, check_host, find_criu, network_lock
from coldstart_snapshot.cuda import cuda_client
from coldstart_snapshot.dump import Dump, Timings, undisturbed
from coldstart_snapshot.gpu_facts import gpu_state
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
from coldstart_snapshot.processes import end_tree
from coldstart_snapshot.ready import parse_url, wait_ready
from coldstart_snapshot.roots import RootSource
from coldstart_snapshot.runc import Runc
from coldstart_snapshot.target import (
    ContainerTarget,
    Target,
    TargetFacts,
    container_target,
    process_target,
    prove_serving,
    target_facts,
)
from coldstart_snapshot.variants import variant_name
from coldstart_snapshot.verify import digest_files, remember_verified, verify_files

_SERVING_SECONDS = 60.0
_MIB = 1 << 20


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
    seconds = request.ready_timeout_seconds
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(
            f"ready timeout is not a positive number of seconds: {seconds:g}", hint="for example 600"
        )
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
        self._timings = Timings()
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
        dump = Dump(self._criu, target, options, cuda, gpu, self._timings, self._notes, self._say)
        with staging_folder(self._config.state_folder, request.name, manifest.variant) as staging:
            try:
                dump.fill(staging, kept_log(self._config.run_folder, request.name, DUMP_LOG))
            except ColdstartError as error:
                error.add(self._state_in_words())
                raise
            except BaseException:
                # interrupted: everything was undone on the way here, which is looked at before we leave
                with undisturbed():
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
        with undisturbed():
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
