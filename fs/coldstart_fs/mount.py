"""Mounting an image and ending a mount: server, overlay on top, and what crashes leave."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    ExitCode,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UsageError,
)
from coldstart_cli.files import exclusive_lock, make_directory, mounts_below, remove_tree
from coldstart_cli.process import kill_group, last_lines, start
from coldstart_fs.kernel_mounts import filesystem_at, mount_overlay, unmount_now
from coldstart_fs.names import digest_text
from coldstart_fs.records import (
    MountRecord,
    all_records,
    read_record,
    record_folder,
    start_ticks,
    write_record,
)
from coldstart_fs.serving import ServerRequest
from coldstart_fs.store import open_store, resolve_image

_FUSE_TYPES = {"fuse", "fuse.coldstart"}
_POLL_SECONDS = 0.02
_BUSY_SECONDS = 2.0


@dataclass(frozen=True)
class MountRequest:
    """What to mount where. `overlay` is a folder that gets `upper` and `work`, for a writable root."""

    name: str
    mountpoint: Path
    store: str
    cache: Path
    run_folder: Path
    overlay: Path | None = None
    suid: bool = False
    dev: bool = False


def check_request(request: MountRequest) -> MountRecord:
    """Everything that can be refused before anything is made; the record that the mount would get."""
    if not os.path.exists("/dev/fuse"):
        raise UnavailableError("this host has no FUSE: /dev/fuse is absent", hint="modprobe fuse")
    _check_pyfuse3()
    if request.overlay is not None and os.geteuid() != 0:
        raise PermissionNeededError(
            "a writable overlay needs root", hint="run with sudo, or leave `--overlay` out"
        )
    mountpoint = Path(os.path.realpath(request.mountpoint.parent)) / request.mountpoint.name
    _check_mountpoint(mountpoint, request.run_folder)
    image = resolve_image(open_store(request.store), request.name)
    folder = record_folder(request.run_folder, mountpoint)
    return MountRecord(
        mountpoint=mountpoint,
        image=digest_text(image.digest),
        name=image.name,
        store=request.store,
        cache=request.cache,
        fuse_mountpoint=mountpoint if request.overlay is None else folder / "lower",
        overlay=request.overlay,
    )


def mount_detached(
    request: MountRequest,
    *,
    before_overlay: Callable[[], None] | None = None,
    timeout_seconds: float = 30.0,
) -> MountRecord:
    """Mount and return once the mount answers; a process of its own serves it until `unmount`.

    `before_overlay` runs while the server starts and ends before the overlay is mounted: the time
    to fill `upper`.
    """
    lock = record_folder(request.run_folder, request.mountpoint).with_suffix(".lock")
    with exclusive_lock(lock):
        record = check_request(request)
        folder = make_directory(record_folder(request.run_folder, record.mountpoint), mode=0o700)
        write_record(folder, record)
        try:
            return _mount(request, record, folder, before_overlay, time.monotonic() + timeout_seconds)
        except BaseException:
            with suppress(ColdstartError):
                _end(read_record(folder) or record, folder, timeout_seconds=5.0)
            raise


def _mount(
    request: MountRequest,
    record: MountRecord,
    folder: Path,
    before_overlay: Callable[[], None] | None,
    deadline: float,
) -> MountRecord:
    if record.overlay is not None:
        make_directory(record.fuse_mountpoint, mode=0o700)
    reading, writing = os.pipe()
    try:
        try:
            server = _start_server(request, record, folder / "log", writing)
        finally:
            os.close(writing)
        record = replace(record, server_pid=server.pid, server_start_ticks=start_ticks(server.pid))
        write_record(folder, record)
        if before_overlay is not None:
            before_overlay()
        try:
            settings = _wait_ready(reading, folder / "log", deadline)
        except BaseException:
            kill_group(server)
            raise
    finally:
        os.close(reading)
    record = replace(record, settings=settings)
    if record.overlay is not None:
        upper, work = record.overlay / "upper", record.overlay / "work"
        make_directory(upper)
        make_directory(work)
        mount_overlay(record.fuse_mountpoint, upper, work, record.mountpoint, dev=request.dev)
    os.stat(record.mountpoint)
    write_record(folder, record)
    return record


def _start_server(request: MountRequest, record: MountRecord, log: Path, ready_descriptor: int) -> Any:
    order = ServerRequest(
        image=record.image,
        store=_absolute_store(record.store),
        cache=os.path.abspath(record.cache),
        mountpoint=str(record.fuse_mountpoint),
        suid=request.suid,
        dev=request.dev,
        ready_descriptor=ready_descriptor,
    )
    with open(log, "wb") as stream:
        # -P: a module in the caller's folder must not take the place of ours
        command = [sys.executable, "-P", "-m", "coldstart_fs.serving", json.dumps(asdict(order))]
        return start(command, log=stream, pass_descriptors=[ready_descriptor])


def _absolute_store(store: str) -> str:
    return store if "://" in store else os.path.abspath(store)


def _wait_ready(reading: int, log: Path, deadline: float) -> dict[str, int | None]:
    """The server's answer: the kernel's settings, or its refusal raised here."""
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise BusyError(f"image server did not answer in time, see its log: {_tail(log)}")
        part = os.read(reading, 65536)
        if not part:
            raise ColdstartError(f"image server ended before it served: {_tail(log)}")
        text += part
    answer = json.loads(text)
    if "error" in answer:
        raise _as_error(answer)
    settings: dict[str, int | None] = answer["settings"]
    return settings


def _tail(log: Path) -> str:
    try:
        return last_lines(log.read_bytes()) or "it said nothing"
    except OSError:
        return "it said nothing"


def _as_error(answer: dict[str, Any]) -> ColdstartError:
    """The same kind of error that the server met, so that its exit code is ours."""
    for kind in ColdstartError.__subclasses__():
        if kind.exit_code == ExitCode(answer["exit_code"]) and kind.__module__ == ColdstartError.__module__:
            return kind(answer["error"], hint=answer["hint"])
    return ColdstartError(answer["error"], hint=answer["hint"])


def _check_pyfuse3() -> None:
    from importlib.util import find_spec  # looking is enough: importing costs 0.3 s, and the server does it

    if find_spec("pyfuse3") is None:
        raise UnavailableError(
            "Python package is not installed: pyfuse3",
            hint=(
                "apt-get install fuse3 libfuse3-dev pkg-config gcc python3-dev"
                " && pip install 'coldstart[image]'"
            ),
        )


def _check_mountpoint(mountpoint: Path, run_folder: Path) -> None:
    if filesystem := filesystem_at(mountpoint):
        folder = record_folder(run_folder, mountpoint)
        record = read_record(folder)
        if record is None or record.server_lives():
            raise BusyError(
                f"already mounted: {mountpoint} ({filesystem[0]})",
                hint=f"coldstart image unmount {mountpoint}",
            )
        _end(record, folder, timeout_seconds=5.0)  # its server died: clean up and go on
    try:
        entries = os.listdir(mountpoint)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"mount point does not exist: {mountpoint}", hint=f"mkdir -p {mountpoint}"
        ) from error
    except NotADirectoryError as error:
        raise UsageError(f"mount point is not a folder: {mountpoint}") from error
    except OSError as error:
        raise PermissionNeededError(f"cannot read mount point: {mountpoint}: {error.strerror}") from error
    if entries:
        raise UsageError(f"mount point is not empty: {mountpoint}", hint="choose an empty folder")


def find_mount(path: Path, run_folder: Path) -> MountRecord | None:
    """The record of what is mounted exactly at `path`, live or dead."""
    real = Path(os.path.realpath(path.parent)) / path.name
    return read_record(record_folder(run_folder, real))


def require_mount(path: Path, run_folder: Path) -> MountRecord:
    """The record of the mount at `path`, or a refusal."""
    record = find_mount(path, run_folder)
    if record is None:
        raise NotFoundError(f"not a mount of coldstart: {path}", hint="`coldstart image status` lists them")
    return record


def wait_for_server(record: MountRecord) -> None:
    """Block until the server of a mount has ended; signals unwind through here."""
    if not record.server_lives():
        return
    descriptor = os.pidfd_open(record.server_pid)
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def live_mounts(run_folder: Path) -> list[MountRecord]:
    """Mounts whose server lives."""
    return [record for _, record in all_records(run_folder) if record.server_lives()]


def sweep_stale(run_folder: Path) -> list[Path]:
    """End what crashed servers left; the mount points that were freed."""
    swept = []
    for folder, record in all_records(run_folder):
        if record.server_lives():
            continue
        with suppress(BusyError), exclusive_lock(folder.with_suffix(".lock")):
            if (current := read_record(folder)) is not None and not current.server_lives():
                _end(current, folder, timeout_seconds=5.0)
                swept.append(current.mountpoint)
    return swept


def unmount(mountpoint: Path, *, run_folder: Path, timeout_seconds: float = 20.0) -> None:
    """End a mount: overlay, FUSE, server, record. What was written to the overlay's `upper` stays."""
    real = Path(os.path.realpath(mountpoint.parent)) / mountpoint.name
    folder = record_folder(run_folder, real)
    with exclusive_lock(folder.with_suffix(".lock"), wait_seconds=timeout_seconds):
        record = require_mount(mountpoint, run_folder)
        _end(record, folder, timeout_seconds=timeout_seconds)


def _end(record: MountRecord, folder: Path, *, timeout_seconds: float) -> None:
    if record.overlay is not None and (found := filesystem_at(record.mountpoint)) and found[0] == "overlay":
        _unmount_patiently(record.mountpoint, detach=not record.server_lives())
    _stop_server(record, timeout_seconds)
    if (found := filesystem_at(record.fuse_mountpoint)) and found[0] in _FUSE_TYPES:
        unmount_now(
            record.fuse_mountpoint, detach=True
        )  # its server is gone: nothing in it can be used any more
    if record.overlay is not None:
        _remove_work(record.overlay / "work")
    remove_tree(folder)
    with suppress(FileNotFoundError):
        folder.with_suffix(".lock").unlink()


def _unmount_patiently(mountpoint: Path, *, detach: bool) -> None:
    """Unmount; a user that is just ending is waited for, one that stays is an error that names the mount."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            unmount_now(mountpoint, detach=detach)
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _stop_server(record: MountRecord, timeout_seconds: float) -> None:
    if not record.server_lives():
        return
    try:
        descriptor = os.pidfd_open(record.server_pid)
    except ProcessLookupError:
        return
    try:
        for number, wait_seconds in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, 5.0)):
            if not record.server_lives():
                return
            signal.pidfd_send_signal(descriptor, number)
            select.select([descriptor], [], [], wait_seconds)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _remove_work(work: Path) -> None:
    """Remove what the overlay keeps in `work`, an inaccessible folder among it."""
    if not mounts_below(work):
        with suppress(OSError, ColdstartError):
            remove_tree(work)
