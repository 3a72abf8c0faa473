"""After a capture that was cut short: let criu end, thaw, give GPU state back, clean up, say how it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, DataError, NotFoundError
from coldstart_cli.process import start_ticks
from coldstart_snapshot.answers.serving import prove_serving
from coldstart_snapshot.capturing.journal import (
    CaptureRecord,
    read_record,
    read_records,
    remove_record,
    write_record,
)
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.containers.target import ContainerTarget, is_same
from coldstart_snapshot.criu.calls import DUMP_LOG, keep_log, kept_log, release_network
from coldstart_snapshot.cuda.choice import chosen_client
from coldstart_snapshot.cuda.driver_api import works_for
from coldstart_snapshot.engines.asleep import ENGINE_PHASES, QUIESCE_PHASE, RELEASE_PHASE, engine_in
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.kept.inventory import (
    remove_leftovers,
    snapshot_lock,
    snapshots_folder,
    variant_folder,
)
from coldstart_snapshot.kept.manifest import read_manifest
from coldstart_snapshot.processes.tree import all_pids

_SERVING_SECONDS = 30.0
# what criu and runc get beyond their deadline to undo what they did
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.02
# how long another process that puts a capture right may take beyond criu
_RECOVERY_SECONDS = 90.0
# the freezer of cgroup v1 may need more than one request
_THAW_SECONDS = 10.0
_RUNC_VERBS = frozenset({"pause", "checkpoint", "resume"})
_PHASES = {
    "begin": "preparing",
    "quiesce": "putting the engine to sleep",
    "engine_release": "putting the engine to sleep",
    "wake": "waking the engine",
    "gpu_suspend": "moving GPU state to host memory",
    "freeze": "freezing",
    "pre_dump": "dumping memory ahead",
    "dump": "dumping",
    "upper": "archiving the writable layer",
    "thaw": "thawing",
    "gpu_resume": "giving GPU state back",
    "serving": "looking at the server",
    "digests": "computing digests",
    "publish": "publishing",
    "stop": "ending the original",
}


def settle(run_folder: Path, name: str, say: Callable[[str], None]) -> str | None:
    """Under the snapshot's lock: undo an earlier capture that was cut short; say once what became of it."""
    record = read_record(run_folder, name)
    if record is None:
        remove_record(run_folder, name)  # one that cannot be read says nothing to anybody
        return None
    if record.is_open:
        say(f"putting an earlier capture right: {name}")
        record = recover(run_folder, record)
    remove_record(run_folder, name)
    return record.outcome


def settle_abandoned(
    config: Config, say: Callable[[str], None], *, concerns: Callable[[CaptureRecord], bool]
) -> None:
    """Undo every capture whose command is gone; those that concern the caller are waited for."""
    for record in read_records(config.run_folder):
        if not record.is_open or record.command_lives():
            continue
        wait_seconds = patience_seconds(record) if concerns(record) else 0.0
        try:
            with snapshot_lock(config.run_folder, record.name, wait_seconds=wait_seconds):
                current = read_record(config.run_folder, record.name)
                if current is not None and current.is_open and not current.command_lives():
                    say(f"putting an earlier capture right: {record.name}")
                    recover(config.run_folder, current)
        except BusyError:
            if concerns(record):
                raise


def settle_server(
    config: Config, say: Callable[[str], None], *, container_id: str | None, pid: int | None
) -> None:
    """Undo what a killed capture did to this server, under whatever name."""

    def is_it(record: CaptureRecord) -> bool:
        return record.container_id == container_id if container_id else record.server_pid == pid

    settle_abandoned(config, say, concerns=is_it)


def patience_seconds(record: CaptureRecord | None) -> float:
    """How long to wait for the lock of a name whose capture is just being put right by somebody else."""
    if record is None or not record.is_open or record.command_lives():
        return 0.0
    # an engine is looked at for as long as it may take to fall asleep, then woken
    engine_seconds = 2 * float((record.engine or {}).get("timeout_seconds", 0.0))
    return record.patience_seconds + _RECOVERY_SECONDS + engine_seconds


def recover(run_folder: Path, record: CaptureRecord) -> CaptureRecord:
    """Bring the server back, remove what is left, write down how it went; the snapshot's lock is held.

    One step that fails does not keep the others from being tried.
    """
    log = Path(record.staging) / "work" / DUMP_LOG
    problems: list[str] = []
    done: list[str] = []
    if record.same_boot:
        for step in (_end_engines, _release_network, _thaw_container, _resume_gpu, _wake_engine):
            try:
                if text := step(record):
                    done.append(text)
            except (ColdstartError, OSError) as error:
                problems.append(str(error))
    with suppress(OSError):
        keep_log(log, kept_log(run_folder, record.name, DUMP_LOG))
    published = _is_published(record)
    try:
        _remove_leftovers(record)
    except OSError as error:
        problems.append(f"cannot remove what it left: {error.filename}: {error.strerror}")
    serving, state = _look(record)
    settled = replace(
        record, serving=serving, outcome=_sentence(record, [*done, *problems, state], published)
    )
    write_record(run_folder, settled)
    return settled


def thaw(runc: Runc, container_id: str) -> bool:
    """Let the container go on; false when it was not frozen, or has ended: the caller's to notice."""
    deadline = time.monotonic() + _THAW_SECONDS
    thawed = False
    while True:
        state = runc.state(container_id)
        if state is None or state.status != "paused":
            return thawed
        runc.resume(container_id)
        thawed = True
        if time.monotonic() > deadline:
            raise BusyError(
                f"container does not thaw: {container_id}",
                hint=f"{runc.program} --root {runc.state_root} resume {container_id}",
            )
        time.sleep(_POLL_SECONDS)


def engines_at_work(record: CaptureRecord) -> list[int]:
    """The runc, criu and cuda-checkpoint processes that a dead command left at work on the server.

    Without the command nobody holds their ends; they are known by what they were told to work on.
    """
    return [pid for pid in all_pids() if pid != os.getpid() and _works_for(pid, record)]


def _works_for(pid: int, record: CaptureRecord) -> bool:
    if not record.staging or not start_ticks(pid):
        return False
    arguments = _strings(pid, "cmdline")
    if any(record.staging in argument for argument in arguments):
        return True
    if any(record.staging in variable for variable in _strings(pid, "environ")):
        return True
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/cwd").startswith(f"{record.staging}/"):
            return True
    if record.container_id is not None and record.container_id in arguments:
        return bool(_RUNC_VERBS & set(arguments)) and record.runc_root in arguments
    return works_for(arguments, record.command_pid) or any(
        option == "--pid" and value.isdecimal() and int(value) in record.gpu_processes
        for option, value in pairwise(arguments)
    )


def _strings(pid: int, kind: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{kind}").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return []


def _end_engines(record: CaptureRecord) -> str | None:
    """Wait until criu has ended by itself: halfway it would leave its code in the server."""
    deadline = time.monotonic() + record.patience_seconds + _GRACE_SECONDS
    while at_work := engines_at_work(record):
        if time.monotonic() > deadline:
            return _kill(record, at_work)
        time.sleep(_POLL_SECONDS)
    return None


def _kill(record: CaptureRecord, pids: list[int]) -> str:
    names = ", ".join(sorted({_name(pid) for pid in pids}))
    deadline = time.monotonic() + _KILL_SECONDS
    while pids:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BusyError(f"still at work on the server: {', '.join(map(str, pids))}")
        time.sleep(_POLL_SECONDS)
        pids = engines_at_work(record)
    return f"{names} had not ended at the deadline and was killed"


def _name(pid: int) -> str:
    return os.path.basename(next(iter(_strings(pid, "cmdline")), "")) or str(pid)


def _release_network(record: CaptureRecord) -> None:
    release_network(Path(record.staging) / "work" / DUMP_LOG)


def _thaw_container(record: CaptureRecord) -> str | None:
    target = record.target
    if isinstance(target, ContainerTarget) and is_same(target) and thaw(target.runc, target.container_id):
        return "thawed"
    return None


def _resume_gpu(record: CaptureRecord) -> str | None:
    alive = [pid for pid in record.gpu_processes if start_ticks(pid)]
    if not alive or not is_same(record.target):
        return None
    with closing(chosen_client(record.cuda_backend, record.cuda_program)) as client:
        return "GPU state given back" if client.bring_back(alive) else None


def _require_gpu(record: CaptureRecord) -> None:
    if record.gpu_processes:
        with closing(chosen_client(record.cuda_backend, record.cuda_program)) as client:
            client.require_running(record.gpu_processes)


def _wake_engine(record: CaptureRecord) -> str | None:
    if record.engine is None or not is_same(record.target) or record.phase not in ENGINE_PHASES:
        return None
    settings = EngineSettings.from_document(record.engine)
    released, late = record.phase != QUIESCE_PHASE, record.phase == RELEASE_PHASE
    return engine_in(settings, record.target, record.name).undo(released=released, late=late)


def _is_published(record: CaptureRecord) -> bool:
    folder = variant_folder(Path(record.state_folder), record.name, record.variant)
    try:
        return read_manifest(folder).created == record.created
    except (DataError, NotFoundError):
        return False


def _remove_leftovers(record: CaptureRecord) -> None:
    state_folder = Path(record.state_folder)
    remove_leftovers(state_folder, record.name)
    parent = snapshots_folder(state_folder) / record.name
    with suppress(OSError):
        parent.rmdir()  # only where no other variant is


def _look(record: CaptureRecord) -> tuple[bool, str]:
    if not record.same_boot:
        return False, "the host was restarted since"
    try:
        return True, prove_serving(
            record.target, record.ready_url, _SERVING_SECONDS, partial(_require_gpu, record)
        )
    except ColdstartError as error:
        return False, f"the server does not serve: {error.message}"


def _sentence(record: CaptureRecord, parts: list[str], published: bool) -> str:
    when = _PHASES.get(record.phase, record.phase)
    result = "the snapshot is complete" if published else "nothing was published"
    return "; ".join([f"an earlier capture of {record.name} was cut short while {when}: {result}", *parts])


def told_by(run_folder: Path) -> Iterator[tuple[str, str]]:
    """Names and sentences of captures that were cut short, for whoever lists snapshots."""
    for record in read_records(run_folder):
        if record.outcome is not None:
            yield record.name, record.outcome
        elif not record.command_lives():
            yield (
                record.name,
                f"a capture of {record.name} was cut short, and the server may stand still: "
                f"`coldstart snap create {record.name}` puts it right",
            )
