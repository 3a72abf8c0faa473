"""Restore: choose the variant that fits, verify it, bring the server back, or leave nothing running."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, DataError, UnavailableError, UsageError
from coldstart_cli.files import make_directory, remove_tree
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_snapshot.bundle import read_bundle, write_restored_bundle
from coldstart_snapshot.container import (
    RunningContainer,
    bundle_folder,
    kill_and_delete,
    refuse_taken_id,
    require_root,
)
from coldstart_snapshot.criu import RESTORE_LOG, RestoreOptions, keep_log, kept_log
from coldstart_snapshot.criu import restore_process as criu_restore
from coldstart_snapshot.criu_program import Criu, check_host, find_criu
from coldstart_snapshot.cuda import CudaClient, cuda_client
from coldstart_snapshot.gpu_facts import driver_version
from coldstart_snapshot.inventory import (
    DamagedVariant,
    StoredVariant,
    list_variants,
    load_variant,
    require_snapshot,
    snapshot_lock,
)
from coldstart_snapshot.manifest import Manifest
from coldstart_snapshot.outputs import open_outputs
from coldstart_snapshot.ports import port_holder
from coldstart_snapshot.processes import end_tree, is_alive, process_name, process_tree
from coldstart_snapshot.runc import Runc
from coldstart_snapshot.variants import choose_variant
from coldstart_snapshot.verify import Verification, verify_for_restore

_UPPER = "upper.tar"
_ZOMBIE_SECONDS = 2.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class RestorePlan:
    """A verified variant that fits this host, and the criu that will restore it."""

    name: str
    variant: str
    folder: Path
    manifest: Manifest
    criu: Criu
    reason: str
    digests_checked: bool
    warnings: tuple[str, ...] = ()

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def upper_archive(self) -> Path | None:
        """The archived writable layer; None when the container had none."""
        archive = self.folder / _UPPER
        return archive if any(file.path == _UPPER for file in self.manifest.files) else None


@dataclass(frozen=True)
class RestoredProcess:
    """The first process of a restored plain tree."""

    pid: int


def plan_restore(
    name: str,
    config: Config,
    *,
    variant: str | None = None,
    verify: Verification = Verification.FIRST,
    host: CpuFacts | None = None,
) -> RestorePlan:
    """Choose and verify; nothing is started, and everything that speaks against it is raised here."""
    state_folder = config.state_folder
    require_snapshot(state_folder, name)
    cpu = host or read_cpu_facts()
    candidates, warnings = _candidates(state_folder, name, variant)
    choice = choose_variant(
        [(stored.manifest.variant, stored.manifest.cpu) for stored in candidates],
        cpu,
        required={stored.manifest.variant: stored.manifest.required_flags for stored in candidates},
    )
    stored = next(stored for stored in candidates if stored.manifest.variant == choice.name)
    manifest = stored.manifest
    criu = find_criu(config.text("programs.criu"))
    warnings = (*warnings, *choice.warnings, *_gpu_warnings(manifest, config))
    checked = verify_for_restore(stored.folder, manifest, config.run_folder, verify)
    return RestorePlan(name, choice.name, stored.folder, manifest, criu, choice.reason, checked, warnings)


def restore_container(
    plan: RestorePlan,
    config: Config,
    *,
    root: Path,
    container_id: str,
    log: Path,
    runc_root: Path | None = None,
) -> RunningContainer:
    """Bring a container back over `root`, GPU state included; a failure leaves nothing of it."""
    require_root("restoring")
    manifest = plan.manifest
    if not manifest.is_container:
        raise UsageError(f"snapshot is of a plain process, not of a container: {plan.name}")
    runc = Runc.find(config.text("programs.runc"), runc_root or config.run_folder / "runc")
    refuse_taken_id(runc, container_id)
    if not root.is_dir():
        raise DataError(f"root file system is not there: {root}")
    _refuse_taken_ports(manifest)
    with snapshot_lock(config.run_folder, plan.name, shared=True):
        bundle = make_directory(bundle_folder(runc.state_root, container_id), mode=0o700)
        try:
            recorded = read_bundle(plan.folder / "bundle")
            write_restored_bundle(bundle, recorded, root=root, container_id=container_id)
            # runc hands the first process's pipes over by itself
            with open_outputs(plan.images, (), log) as outputs:
                pid = runc.restore(
                    container_id,
                    bundle,
                    plan.images,
                    bundle,
                    plan.criu,
                    RestoreOptions(outputs.inherit).lines(),
                    output=outputs.stdout,
                    error_output=outputs.stderr,
                    timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
                )
            _resume_gpu(manifest, pid, config)
        except BaseException as error:
            _after_failure(error, plan, config, bundle)
            kill_and_delete(container_id, runc_root=runc.state_root, runc=runc.program)
            raise
    return RunningContainer(container_id, pid, runc.state_root, bundle)


def restore_process(plan: RestorePlan, config: Config, *, log: Path) -> RestoredProcess:
    """Bring a plain process tree back under its old pids; a failure leaves nothing of it."""
    require_root("restoring")
    manifest = plan.manifest
    if manifest.is_container:
        raise UsageError(f"snapshot is of a container, not of a plain process: {plan.name}")
    _refuse_taken_pids(manifest)
    _refuse_taken_ports(manifest)
    make_directory(config.run_folder)
    work = Path(tempfile.mkdtemp(prefix=f"restore-{plan.name}-", dir=config.run_folder))
    try:
        with (
            snapshot_lock(config.run_folder, plan.name, shared=True),
            open_outputs(plan.images, manifest.output_keys, log) as outputs,
        ):
            pid = criu_restore(
                plan.criu,
                plan.images,
                work,
                RestoreOptions(outputs.inherit),
                timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
                output=outputs.stdout,
                error_output=outputs.stderr,
            )
        try:
            _resume_gpu(manifest, pid, config)
        except BaseException:
            end_tree(pid, grace_seconds=1.0)
            raise
    except BaseException as error:
        _after_failure(error, plan, config, work)
        raise
    finally:
        remove_tree(work)
    return RestoredProcess(pid)


def _candidates(
    state_folder: Path, name: str, variant: str | None
) -> tuple[list[StoredVariant], tuple[str, ...]]:
    """The variants that can be read; damaged ones are warned of unless none is left."""
    if variant is not None:
        return [load_variant(state_folder, name, variant)], ()
    found = list_variants(state_folder, name)
    stored = [entry for entry in found if isinstance(entry, StoredVariant)]
    damaged = [entry for entry in found if isinstance(entry, DamagedVariant)]
    if not stored:
        # what a newer coldstart can read must not be removed on our advice
        entry = next((entry for entry in damaged if entry.newer), damaged[0])
        hint = entry.hint if entry.newer else f"coldstart snap remove {name}, then capture again"
        raise DataError(entry.problem, hint=hint)
    return stored, tuple(entry.problem for entry in damaged)


def _gpu_warnings(manifest: Manifest, config: Config) -> tuple[str, ...]:
    """Refuse GPU state where there is nothing to resume it with; warn of another driver."""
    if manifest.gpu is None:
        return ()
    _gpu_client(config)
    version = driver_version()
    if version != manifest.gpu.driver_version:
        return (f"GPU state was captured with driver {manifest.gpu.driver_version}, this host has {version}",)
    return ()


def _gpu_client(config: Config) -> CudaClient:
    client = cuda_client(config.text("programs.cuda_checkpoint"))
    if client is None:
        raise UnavailableError(
            "the snapshot has GPU state, and this host has neither an NVIDIA driver nor cuda-checkpoint",
            hint="restore on a host with a GPU",
        )
    return client


def _resume_gpu(manifest: Manifest, pid: int, config: Config) -> None:
    """Give the restored processes their GPU state back: they are found by their pids inside the tree."""
    if manifest.gpu is None:
        return
    by_inner_pid: Mapping[int, int] = {member.inner_pid: member.pid for member in process_tree(pid)}
    missing = [number for number in manifest.gpu.processes if number not in by_inner_pid]
    if missing:
        raise ColdstartError(f"processes with GPU state are gone after the restore: {missing}")
    _gpu_client(config).resume(
        [by_inner_pid[number] for number in manifest.gpu.processes],
        timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
    )


def _refuse_taken_ports(manifest: Manifest) -> None:
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
