"""Capture: wait until ready, suspend, freeze, dump, thaw, resume, verify, publish; or all as before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, UsageError
from coldstart_cli.files import make_directory
from coldstart_cli.signals import undisturbed, unstopped
from coldstart_snapshot.answers.golden import GoldenRequest, record_answers, replay
from coldstart_snapshot.answers.ready import parse_url, wait_ready
from coldstart_snapshot.capturing.describe import describe
from coldstart_snapshot.capturing.dump import Dump, Timings
from coldstart_snapshot.capturing.journal import CaptureRecord
from coldstart_snapshot.capturing.on_record import CaptureState, server_lock
from coldstart_snapshot.capturing.pre_dump import wants_pre_dump
from coldstart_snapshot.capturing.recovery import settle, settle_abandoned
from coldstart_snapshot.containers.container import kill_and_delete
from coldstart_snapshot.containers.roots import RootSource
from coldstart_snapshot.containers.target import (
    ContainerTarget,
    ProcessTarget,
    Target,
    TargetFacts,
    find_target,
    require_one,
    target_facts,
)
from coldstart_snapshot.cpu.capped import CappedStart
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.criu.calls import DUMP_LOG, DumpOptions, kept_log
from coldstart_snapshot.criu.program import Criu, check_host, find_criu, network_lock
from coldstart_snapshot.criu.zero_pages import punch_zero_pages
from coldstart_snapshot.cuda.capturing import (
    GpuCapture,
    held_bytes,
    prepare_capture,
    remeasured,
    without_host_memory,
)
from coldstart_snapshot.engines.asleep import asleep, engine_in
from coldstart_snapshot.engines.sentinel import SentinelEngine
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.kept.cold import ColdCommand, read_cold_command
from coldstart_snapshot.kept.inventory import publish, snapshot_lock, staging_folder, variant_folder
from coldstart_snapshot.kept.manifest import (
    MANIFEST_NAME,
    Manifest,
    check_name,
    read_manifest,
    write_manifest,
)
from coldstart_snapshot.kept.privacy import require_private
from coldstart_snapshot.kept.restore_command import RestoreCommand
from coldstart_snapshot.kept.staged import remove_staged
from coldstart_snapshot.kept.verify import digest_files, remember_verified, verify_files
from coldstart_snapshot.preflight.check import check_target, refuse_blockers
from coldstart_snapshot.processes.rights import refuse_unrestorable, require_rights
from coldstart_snapshot.processes.secrets_found import redact_url
from coldstart_snapshot.processes.tree import end_tree, process_tree

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
    golden: tuple[GoldenRequest, ...] = ()
    pre_dump: bool | None = None
    """Dump memory ahead; None: where that is possible and worth it."""
    stop: bool = False
    dry_run: bool = False
    restore_command: RestoreCommand | None = None
    stream: tuple[str, ...] = ()
    """Weights, by their paths in the container, to be read while it is restored."""
    engine: EngineSettings | None = None
    """How the server is put to sleep while it is captured, and woken after a restore."""
    capped: CappedStart | None = None
    """Of a server that was started for a CPU level: proves it, holding the server, and lets go."""


@dataclass(frozen=True)
class SnapshotVariant:
    """A captured variant; not `published` after a dry run, whose manifest lists no files."""

    folder: Path
    manifest: Manifest
    published: bool
    replaced: bool = False
    stopped: bool = False
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Findings that nobody may miss: what comes back will not serve."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever keeps the snapshot should know."""
        secrets = self.manifest.secrets
        told = (f"the snapshot's memory holds these secrets: {', '.join(secrets)}",) if secrets else ()
        return (*self.doubts, *told)


def create_snapshot(
    request: CaptureRequest, config: Config, say: Callable[[str], None] = lambda _: None
) -> SnapshotVariant:
    """Capture a running server, which goes on serving; on any failure too, and the error says so."""
    check_name(request.name)
    require_one(request.container_id, request.pid)
    seconds = request.ready_timeout_seconds
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(
            f"ready timeout is not a positive number of seconds: {seconds:g}", hint="for example 600"
        )
    if request.ready_url is not None:
        parse_url(request.ready_url)
    if request.restore_command is not None and request.container_id is None:
        raise UsageError("a restore command runs inside a container", hint="capture one: `--container ID`")
    require_rights("capturing", container=request.container_id is not None)
    criu = find_criu(config.text("programs.criu"))
    check_host(criu)
    run_folder = config.run_folder
    if not request.dry_run:
        settle_abandoned(config, say, concerns=lambda record: _concerns(record, request))
    target = find_target(
        config,
        container_id=request.container_id,
        pid=request.pid,
        runc_root=request.runc_root,
        root=request.root,
    )
    with (
        snapshot_lock(run_folder, request.name, wait_seconds=config.number("lock_wait_seconds")),
        server_lock(run_folder, target),
    ):
        told = None if request.dry_run else settle(run_folder, request.name, say)
        return _Capture(request, config, criu, target, say, [told] if told else []).run()


def _concerns(record: CaptureRecord, request: CaptureRequest) -> bool:
    """Whether an earlier capture has to be put right before this one."""
    if record.name == request.name:
        return True
    if request.container_id is not None:
        return record.container_id == request.container_id
    return record.server_pid == request.pid


class _Capture:
    """One capture, from the ready wait to the published folder."""

    def __init__(
        self,
        request: CaptureRequest,
        config: Config,
        criu: Criu,
        target: Target,
        say: Callable[[str], None],
        notes: list[str],
    ) -> None:
        self._request = request
        self._config = config
        self._criu = criu
        self._target = target
        self._say = say
        self._notes = notes
        self._timeout_seconds = config.number("snapshot.create_timeout_seconds")
        self._engine = engine_in(request.engine, target, request.name) if request.engine else None
        self._state = CaptureState(target, request.ready_url, config, request.engine)
        self._timings = Timings(entered=self._state.entered)
        self._told = False

    def run(self) -> SnapshotVariant:
        request, target = self._request, self._target
        # a worker that is told by files listens only when it was told to go on
        if request.ready_url is not None and not isinstance(self._engine, SentinelEngine):
            self._say(f"waiting for {redact_url(request.ready_url)}")
            with self._timings.phase("ready"):
                wait_ready(request.ready_url, request.ready_timeout_seconds, pid=target.pid)
        refuse_unrestorable(member.pid for member in process_tree(target.pid))
        facts = target_facts(target)
        gpu = prepare_capture(facts.tree, self._config)
        if gpu is not None and self._engine is not None:
            gpu = without_host_memory(gpu)
        with closing(gpu.client) if gpu is not None else nullcontext():
            return self._captured(facts, gpu)

    def _captured(self, facts: TargetFacts, gpu: GpuCapture | None) -> SnapshotVariant:
        request, target = self._request, self._target
        checked = check_target(target, self._criu, self._config.state_folder, gpu)
        refuse_blockers(target, checked.findings)
        doubts = tuple(
            f"{each.what}, and comes back so" for each in checked.findings if each.code == "stopped"
        )
        self._notes += [finding.what for finding in checked.findings if finding.code != "stopped"]
        options = DumpOptions(
            network_lock=network_lock(self._criu),
            ghost_limit_bytes=facts.largest_deleted_bytes + _MIB,
            timeout_seconds=max(1, int(self._timeout_seconds)),
            external=facts.external_keys,
        )
        # before it is captured such a worker answers nobody
        silent = isinstance(self._engine, SentinelEngine)
        golden = request.golden if silent else self._golden()
        manifest = describe(
            request,
            target,
            self._criu,
            options,
            facts,
            gpu=gpu,
            caps=self._caps(gpu),
            engine=self._engine_at_restore(),
        )
        manifest = replace(manifest, golden=golden, cold=self._cold_command())
        ahead = self._pre_dump(facts, gpu)
        folder = variant_folder(self._config.state_folder, request.name, manifest.variant)
        if request.dry_run:
            return SnapshotVariant(
                folder,
                manifest,
                published=False,
                replaced=folder.exists(),
                notes=tuple(self._notes),
                doubts=doubts,
            )
        dump = Dump(self._criu, target, options, gpu, self._timings, self._notes, self._say, pre_dump=ahead)
        if request.capped is not None:
            dump = replace(dump, let_go=request.capped.let_go)
        self._make_place(folder)
        with self._telling():
            with (
                self._state.guarded(manifest, gpu, self._timeout_seconds, self._notes),
                staging_folder(self._config.state_folder, request.name, manifest.variant) as staging,
            ):
                try:
                    self._state.begin(staging)
                    with unstopped():
                        with self._asleep():
                            manifest = self._lighter(manifest, gpu, facts)
                            dump.fill(staging, kept_log(self._config.run_folder, request.name, DUMP_LOG))
                        # on record before a terminal may stop us: the guardian lets go on who stands still
                        self._state.entered("serving")
                    self._say("verifying")
                    with self._timings.phase("serving"):
                        self._notes.append(self._state.prove())
                        if not silent:
                            replay(manifest.golden, pid=target.pid)
                    if silent:
                        manifest = replace(manifest, golden=self._golden())
                    manifest = self._finish(staging, manifest)
                    self._state.entered("publish")
                    with undisturbed():
                        replaced = publish(staging, folder)
                        self._state.published = True
                except ColdstartError as error:
                    error.add(self._state.in_words(error.message))
                    raise
                except BaseException:
                    self._tell_interrupted()
                    raise
            remember_verified(folder, manifest, self._config.run_folder)
            remove_staged(self._config.run_folder, manifest.name, manifest.variant)  # of an earlier capture
        if request.stop:
            self._say(f"ending {target.label}")
            self._stop()
        return SnapshotVariant(
            folder,
            manifest,
            published=True,
            replaced=replaced,
            stopped=request.stop,
            notes=tuple(self._notes),
            doubts=doubts,
        )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Who interrupts the capture, or what follows on it, hears how the server is."""
        try:
            yield
        except ColdstartError:
            raise
        except BaseException:
            self._tell_interrupted()
            raise

    def _tell_interrupted(self) -> None:
        """Everything was undone on the way here, which is looked at before we leave."""
        if not self._told:
            with undisturbed():
                self._say(f"interrupted; {self._state.in_words()}")
                self._told = True

    def _lighter(self, manifest: Manifest, gpu: GpuCapture | None, facts: TargetFacts) -> Manifest:
        """What is on the GPU while the engine sleeps is what has to fit, here and at a restore."""
        if gpu is None or self._engine is None:
            return manifest
        now = remeasured(gpu, facts.tree)
        gib = (held_bytes(gpu) - held_bytes(now)) / (1 << 30)
        self._notes.append(f"GPU memory that the engine gave up: {gib:.1f} GiB")
        return replace(manifest, gpu=now.state)

    def _caps(self, gpu: GpuCapture | None) -> CapProof | None:
        """The proof of a capped start, after all that the server is asked; it stands still from here on."""
        capped = self._request.capped
        if capped is None:
            return None
        proof = capped.prove([member.pid for member in process_tree(self._target.pid)])
        # a GPU's driver works inside of the server before the freeze, an engine is told to sleep
        if gpu is not None or self._engine is not None:
            capped.let_go()
        return proof

    def _make_place(self, folder: Path) -> None:
        make_directory(self._config.state_folder)
        for path in (folder.parent.parent, folder.parent):
            make_directory(path, mode=0o700)
        require_private(folder.parent, self._config.state_folder)

    def _cold_command(self) -> ColdCommand | None:
        """How a plain process was started; a container has its bundle."""
        if not isinstance(self._target, ProcessTarget):
            return None
        command = read_cold_command(self._target.pid)
        self._notes += command.notes
        return command

    def _pre_dump(self, facts: TargetFacts, gpu: GpuCapture | None) -> bool:
        return wants_pre_dump(
            self._request.pre_dump,
            self._criu,
            memory_bytes=facts.memory_bytes,
            has_gpu=gpu is not None,
            folder=self._config.state_folder,
        )

    def _golden(self) -> tuple[GoldenRequest, ...]:
        """The answers of now; the server's after the dump, and a restored one's, are compared with them."""
        requests = self._request.golden
        for request in requests:
            if names := request.secret_headers:
                self._notes.append(
                    f"stored in the snapshot, for root alone: {request.label}: {', '.join(names)}"
                )
        if not requests or self._request.dry_run:
            return requests
        self._say(f"recording {len(requests)} golden answers")
        with self._timings.phase("golden"):
            return record_answers(requests, pid=self._target.pid)

    @contextmanager
    def _asleep(self) -> Iterator[None]:
        """The engine sleeps while the block runs, where the request says which it is."""
        if self._engine is None:
            yield
            return
        with asleep(self._engine, self._state.entered, self._notes, self._say):
            yield

    def _finish(self, staging: Path, manifest: Manifest) -> Manifest:
        with self._timings.phase("zero_pages"):
            pages = punch_zero_pages(staging / "images")
        with self._timings.phase("digests"):
            files = digest_files(staging)
        complete = replace(manifest, files=files, pages=pages, timings=dict(self._timings.seconds))
        write_manifest(staging, complete)
        (staging / MANIFEST_NAME).chmod(0o600)
        # what was written must be what will be read
        written = read_manifest(staging)
        verify_files(staging, written, digests=False)
        return written

    def _engine_at_restore(self) -> EngineSettings | None:
        """What a restore must know: the control folder, too, that the worker was told of by its variables."""
        settings = self._request.engine
        if isinstance(self._engine, SentinelEngine) and settings is not None:
            return replace(settings, control_folder=self._engine.folder)
        return settings

    def _stop(self) -> None:
        """End the original: the snapshot is published."""
        if isinstance(self._target, ContainerTarget):
            runc = self._target.runc
            kill_and_delete(self._target.container_id, runc_root=runc.state_root, runc=runc.program)
        else:
            end_tree(self._target.pid)
