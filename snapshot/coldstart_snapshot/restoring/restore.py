"""Restore: choose the variant that fits, verify it, bring the server back, or leave nothing running."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, DataError, UnavailableError, UsageError
from coldstart_cli.files import make_directory, remove_tree
from coldstart_host.cpu import CpuFacts
from coldstart_snapshot.containers.bundle import read_bundle, write_restored_bundle
from coldstart_snapshot.containers.cdi_edits import injected, make_nodes
from coldstart_snapshot.containers.container import (
    RunningContainer,
    bundle_folder,
    host_devices,
    kill_and_delete,
    refuse_taken_id,
)
from coldstart_snapshot.containers.network import inside
from coldstart_snapshot.containers.privileges import refuse_more_capabilities, refuse_unrecorded
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.criu.calls import RESTORE_LOG, RestoreOptions, keep_log, kept_log
from coldstart_snapshot.criu.calls import restore_process as criu_restore
from coldstart_snapshot.criu.program import Criu, check_host, find_criu
from coldstart_snapshot.kept.inventory import snapshot_lock
from coldstart_snapshot.kept.manifest import Manifest
from coldstart_snapshot.kept.privacy import require_private
from coldstart_snapshot.kept.staged import verified_copy
from coldstart_snapshot.kept.verify import UPPER_NAME, Verification, VerifyPass, parse_verification
from coldstart_snapshot.processes.ports import port_holder
from coldstart_snapshot.processes.rights import require_rights
from coldstart_snapshot.processes.tree import all_pids, end_tree, is_alive, process_name, session_of
from coldstart_snapshot.restoring.copies import name_copy
from coldstart_snapshot.restoring.meter import Meter
from coldstart_snapshot.restoring.outputs import open_outputs
from coldstart_snapshot.restoring.selection import select_variant

if TYPE_CHECKING:
    from coldstart_snapshot.criu.budget import RestoreBudget
    from coldstart_snapshot.cuda.restoring import GpuRestore

_ZOMBIE_SECONDS = 2.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class RestorePlan:
    """A verified variant that fits this host, and the criu that will restore it, `lazy` or all at once."""

    name: str
    variant: str
    folder: Path
    manifest: Manifest
    criu: Criu
    reason: str
    verified: VerifyPass
    warnings: tuple[str, ...] = ()
    gpu: GpuRestore | None = None
    lazy: bool = False

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def upper_archive(self) -> Path | None:
        """The archived writable layer; None when the container had none."""
        archive = self.folder / UPPER_NAME
        return archive if any(file.path == UPPER_NAME for file in self.manifest.files) else None


@dataclass(frozen=True)
class RestoredProcess:
    """The first process of a restored plain tree."""

    pid: int
    budget: RestoreBudget


def plan_restore(
    name: str,
    config: Config,
    *,
    variant: str | None = None,
    verify: Verification | None = None,
    host: CpuFacts | None = None,
    gpus: Sequence[str] | None = (),
) -> RestorePlan:
    """Choose and verify; nothing is started, and everything that speaks against it is raised here.

    `verify` is what the configuration says where it is not given. `gpus`, by UUID or index, take the places
    of those that the snapshot used; None: they are chosen at the restore.
    """
    verify = verify or parse_verification(
        config.text("snapshot.verify"), config.value("snapshot.verify").source
    )
    selection = select_variant(config.state_folder, name, variant, host)
    manifest = selection.stored.manifest
    criu = find_criu(config.text("programs.criu"), run_folder=config.run_folder)
    gpu = _plan_gpu(manifest, config, gpus)
    warnings = (*selection.warnings, *(gpu.warnings if gpu is not None else ()))
    exposed = require_private(selection.stored.folder, config.state_folder)
    folder, verified, doubts = verified_copy(selection.stored, config.run_folder, verify)
    warnings = (*warnings, *exposed, *doubts)
    if manifest.is_container:
        refuse_unrecorded(manifest.privileges, read_bundle(folder / "bundle"))
    return RestorePlan(
        name, manifest.variant, folder, manifest, criu, selection.reason, verified, warnings, gpu
    )


def restore_container(
    plan: RestorePlan,
    config: Config,
    *,
    root: Path,
    container_id: str,
    log: Path,
    runc_root: Path | None = None,
    at_criu: Callable[[], object] = lambda: None,
    before_gpu: Callable[[], object] = lambda: None,
    network: Path | None = None,
    devices: Sequence[str] = (),
    gpus: Sequence[str] = (),
) -> RunningContainer:
    """Bring a container back over `root`, GPU state included; a failure leaves nothing of it.

    `devices` take the place of those that it had, by their names on this host; `gpus`, by UUID, that of
    those whose memory it had, whatever the plan says.

    `at_criu` is called once criu is at work, when this process waits. `before_gpu` is called before a GPU is
    touched, and may refuse that by what it raises.
    `network` is the namespace that its sockets are made in, where it had shared the host's; None: ours.
    """
    require_rights("restoring", container=True)
    manifest = plan.manifest
    if not manifest.is_container:
        raise UsageError(f"snapshot is of a plain process, not of a container: {plan.name}")
    runc = Runc.find(config.text("programs.runc"), runc_root or config.run_folder / "runc")
    refuse_taken_id(runc, container_id)
    if not root.is_dir():
        raise DataError(f"root file system is not there: {root}")
    if network is None:
        refuse_taken_ports(manifest)
    if manifest.gpu is not None and (gpus or plan.gpu is None):
        plan = replace(plan, gpu=_plan_gpu(manifest, config, gpus))
    meter = Meter(manifest, plan.verified)
    with snapshot_lock(config.run_folder, plan.name, shared=True):
        bundle = make_directory(bundle_folder(runc.state_root, container_id), mode=0o700)
        try:
            recorded = read_bundle(plan.folder / "bundle")
            known = host_devices(config) if devices or injected(recorded) else None
            configuration = write_restored_bundle(
                bundle, recorded, root=root, container_id=container_id, devices=known, names=devices
            )
            if manifest.engine is not None and manifest.engine.control_folder is not None:
                from coldstart_snapshot.engines.sentinel import forget_in_bundle

                forget_in_bundle(configuration, manifest.engine.control_folder)
            # runc hands the first process's pipes over by itself
            with (
                open_outputs(plan.images, (), log) as outputs,
                inside(network),
                _lazily(plan, bundle),
                meter.criu(plan.images, lazy=plan.lazy) as read_ahead,
            ):
                pid = runc.restore(
                    container_id,
                    bundle,
                    plan.images,
                    bundle,
                    plan.criu,
                    RestoreOptions(outputs.inherit, plan.lazy).lines(),
                    output=outputs.stdout,
                    error_output=outputs.stderr,
                    timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
                    once_started=lambda: (read_ahead(), at_criu()),
                )
            refuse_more_capabilities(pid, recorded)
            name_copy(recorded, pid, container_id)
            if known is not None or manifest.gpu is not None:
                before_gpu()
            make_nodes(pid, configuration)
            with meter.phase("gpu"):
                _resume_gpu(plan, pid, config)
        except BaseException as error:
            _after_failure(error, plan, config, bundle)
            kill_and_delete(container_id, runc_root=runc.state_root, runc=runc.program)
            raise
    return RunningContainer(container_id, pid, runc.state_root, bundle, budget=meter.budget(bundle))


def restore_process(plan: RestorePlan, config: Config, *, log: Path) -> RestoredProcess:
    """Bring a plain process tree back under its old pids; a failure leaves nothing of it."""
    require_rights("restoring", container=False)
    manifest = plan.manifest
    if manifest.is_container:
        raise UsageError(f"snapshot is of a container, not of a plain process: {plan.name}")
    _refuse_taken_pids(manifest)
    _refuse_taken_session(manifest)
    refuse_taken_ports(manifest)
    make_directory(config.run_folder)
    if manifest.engine is not None and manifest.engine.control_folder is not None:
        from coldstart_snapshot.engines.sentinel import forget

        forget(Path("/"), Path(manifest.engine.control_folder.lstrip("/")))
    meter = Meter(manifest, plan.verified)
    work = Path(tempfile.mkdtemp(prefix=f"restore-{plan.name}-", dir=config.run_folder))
    try:
        with (
            snapshot_lock(config.run_folder, plan.name, shared=True),
            open_outputs(plan.images, manifest.output_keys, log) as outputs,
            _lazily(plan, work),
            meter.criu(plan.images, lazy=plan.lazy) as read_ahead,
        ):
            pid = criu_restore(
                plan.criu,
                plan.images,
                work,
                RestoreOptions(outputs.inherit, plan.lazy),
                timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
                output=outputs.stdout,
                error_output=outputs.stderr,
                once_started=read_ahead,
            )
        try:
            with meter.phase("gpu"):
                _resume_gpu(plan, pid, config)
        except BaseException:
            end_tree(pid, grace_seconds=1.0)
            raise
        budget = meter.budget(work)
    except BaseException as error:
        _end_half_restored(plan)
        _after_failure(error, plan, config, work)
        raise
    finally:
        remove_tree(work)
    return RestoredProcess(pid, budget)


def _end_half_restored(plan: RestorePlan) -> None:
    """Kill what a killed criu had begun: still in its program, in a session of its own, maybe spinning."""
    for member in plan.manifest.tree:
        with suppress(OSError):
            descriptor = os.pidfd_open(member.pid)
            try:
                if os.path.samefile(f"/proc/{member.pid}/exe", plan.criu.program):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def _lazily(plan: RestorePlan, work: Path) -> AbstractContextManager[None]:
    """Where memory comes on demand: what brings it."""
    if not plan.lazy:
        return nullcontext()
    from coldstart_snapshot.restoring.lazy import lazy_daemon

    return lazy_daemon(plan.criu, plan.images, work)


def _plan_gpu(manifest: Manifest, config: Config, gpus: Sequence[str] | None) -> GpuRestore | None:
    if manifest.gpu is not None:
        if gpus is None:
            return None
        from coldstart_snapshot.cuda.restoring import plan_gpu_restore

        return plan_gpu_restore(manifest.gpu, config, gpus)
    if gpus:
        raise UsageError(f"the snapshot has no GPU state: {manifest.name}", hint="leave --gpu out")
    return None


def _resume_gpu(plan: RestorePlan, pid: int, config: Config) -> None:
    if plan.gpu is not None:
        from coldstart_snapshot.cuda.restoring import resume_restored

        resume_restored(plan.gpu, pid, config)


def refuse_taken_ports(manifest: Manifest) -> None:
    """Somebody who listens where the snapshot does would get its clients."""
    if manifest.network != "host":
        return
    for address in manifest.listen:
        if holder := port_holder(address):
            pid, name = holder
            who = f"process {pid} ({name})" if pid else "another process"
            raise BusyError(
                f"address that the snapshot listens on is in use: {address}: {who}", hint="stop it first"
            )


def _refuse_taken_pids(manifest: Manifest) -> None:
    deadline = time.monotonic() + _ZOMBIE_SECONDS
    for member in manifest.tree:
        # a process that just ended keeps its number until its parent has taken notice
        while os.path.exists(f"/proc/{member.pid}") and not is_alive(member.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if os.path.exists(f"/proc/{member.pid}"):
            state = "" if is_alive(member.pid) else ", a zombie"
            raise BusyError(
                f"process number that the snapshot needs is taken: {member.pid}"
                f" ({process_name(member.pid)}{state})",
                hint="end that process, or capture the server in a container: it has numbers of its own",
            )


def _refuse_taken_session(manifest: Manifest) -> None:
    """A number stays taken while a process is in the session of that number."""
    leader = manifest.tree[0].pid
    for pid in all_pids():
        if session_of(pid) == leader:
            raise BusyError(
                f"session of the captured server still has a process: {pid} ({process_name(pid)})",
                hint="end that process: it was left behind by the server",
            )


def _after_failure(error: BaseException, plan: RestorePlan, config: Config, work: Path) -> None:
    """Keep criu's log, point to it, and say when criu cannot work on this host at all."""
    kept = kept_log(config.run_folder, plan.name, RESTORE_LOG)
    found = keep_log(work / RESTORE_LOG, kept)
    if not isinstance(error, ColdstartError):
        return
    if error.hint is None and found:
        error.hint = f"the whole log is in {kept}"
    try:
        check_host(plan.criu)
    except UnavailableError as unfit:
        error.add(unfit.message)
        error.hint = unfit.hint
