"""What to mount where, and every reason to refuse it before anything is made."""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UsageError,
)
from coldstart_cli.process import find_program
from coldstart_fs.content.fetch_mode import parse_fetch_mode
from coldstart_fs.format.names import digest_text
from coldstart_fs.mounts.keeping import INSTALL_HINT
from coldstart_fs.mounts.kernel_mounts import mount_at, real_mountpoint
from coldstart_fs.mounts.overlay import check_overlay, check_overlay_image
from coldstart_fs.mounts.records import MountRecord, read_record, record_folder
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store import MARKER, Store
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.tiers.settings import parse_tiers
from coldstart_fs.traces.options import TraceOptions


@dataclass(frozen=True)
class MountRequest:
    """What to mount where. `overlay` is a folder that gets `upper` and `work`, for a writable root.

    `alone`: with a server of its own; else mounts of the same image share one.
    """

    name: str
    mountpoint: Path
    store: str
    cache: Path
    run_folder: Path
    overlay: Path | None = None
    suid: bool = False
    dev: bool = False
    alone: bool = False
    traces: TraceOptions | None = None
    tiers: tuple[str, ...] = ()
    cache_quota_bytes: int | None = None
    cache_free_bytes: int | None = None
    fetch: str = "auto"
    lease: bool = True

    @classmethod
    def configured(
        cls,
        config: Config,
        *,
        name: str,
        mountpoint: Path,
        store: str,
        traces: TraceOptions | None,
        overlay: Path | None = None,
        suid: bool = False,
        dev: bool = False,
        alone: bool = False,
    ) -> MountRequest:
        """A mount as the configuration says how mounts are served."""
        return cls(
            name=name,
            mountpoint=mountpoint,
            store=store,
            cache=config.cache_folder,
            run_folder=config.run_folder,
            overlay=overlay,
            suid=suid,
            dev=dev,
            alone=alone,
            traces=traces,
            tiers=config.texts("tiers"),
            cache_quota_bytes=config.optional_integer("cache.quota_bytes"),
            cache_free_bytes=config.optional_integer("cache.free_bytes"),
            fetch=parse_fetch_mode(config.text("image.fetch"), config.value("image.fetch").source),
            lease=config.switch("image.lease"),
        )


def check_request(request: MountRequest, *, replacing: bool = False) -> MountRecord:
    """The record that the mount would get; what a dead server left at the mount point is not in the way.

    When `replacing`, a mount of ours that is there is in nobody's way either.
    """
    _check_host(request)
    mountpoint = real_mountpoint(request.mountpoint)
    notes: list[str] = []
    try:
        _check_mountpoint(mountpoint, request.run_folder, replacing=replacing)
    except (NotFoundError, UsageError):
        # to make a mount point would be in vain for an image that does not exist
        resolve_image(open_store(request.store), request.name, cache=request.cache)
        raise
    store = open_store(request.store, tell=notes.append)
    _check_places(request, mountpoint, store)
    if request.overlay is not None:
        check_overlay(request.overlay, mountpoint, request.run_folder)
    image = resolve_image(store, request.name, cache=request.cache, tell=notes.append)
    if request.overlay is not None:
        check_overlay_image(request.overlay, digest_text(image.digest))
    return MountRecord(
        mountpoint=mountpoint,
        image=digest_text(image.digest),
        name=image.name,
        store=store.url,
        tiers=tuple(tier.as_text() for tier in parse_tiers(request.tiers)),
        cache_quota_bytes=request.cache_quota_bytes,
        cache_free_bytes=request.cache_free_bytes,
        lease=request.lease,
        fetch=request.fetch,
        cache=Path(os.path.abspath(request.cache)),
        overlay=None if request.overlay is None else Path(os.path.realpath(request.overlay)),
        suid=request.suid,
        dev=request.dev,
        notes=tuple(notes),
        traces=None if request.traces is None else request.traces.to_json(),
    )


def _check_host(request: MountRequest) -> None:
    from importlib.util import find_spec  # looking is enough: the server imports it

    if not os.path.exists("/dev/fuse"):
        raise UnavailableError("this host has no FUSE: /dev/fuse is absent", hint="modprobe fuse")
    if find_spec("zstandard") is None:
        raise UnavailableError("Python package is not installed: zstandard", hint=INSTALL_HINT)
    if os.geteuid() == 0:
        return
    if request.suid or request.dev:
        raise PermissionNeededError("`--suid` and `--dev` need root", hint="run with sudo")
    try:
        find_program("fusermount3")
    except UnavailableError as error:
        raise PermissionNeededError(
            "mounting needs root, or the program fusermount3", hint=error.hint
        ) from error


def _check_mountpoint(mountpoint: Path, run_folder: Path, *, replacing: bool) -> None:
    found = mount_at(mountpoint)
    if found is not None and found.is_image:
        record = read_record(record_folder(run_folder, mountpoint))
        if record is not None and (replacing or not record.server_lives()):
            return
        command = "umount" if record is None else "coldstart image unmount"
        raise BusyError(
            f"an image is already mounted there: {mountpoint}",
            hint=f"{command} {shlex.quote(str(mountpoint))}",
        )
    try:
        entries = os.listdir(mountpoint)
    except OSError as error:
        raise _unusable(mountpoint, error) from error
    if entries:
        raise UsageError(f"mount point is not empty: {mountpoint}", hint="choose an empty folder")


def _unusable(mountpoint: Path, error: OSError) -> ColdstartError:
    if error.errno == errno.ENOENT:
        hint = f"mkdir -p {shlex.quote(str(mountpoint))}"
        return NotFoundError(f"mount point does not exist: {mountpoint}", hint=hint)
    if error.errno == errno.ENOTDIR:
        return UsageError(f"mount point is not a folder: {mountpoint}", hint="choose an empty folder")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return PermissionNeededError(f"cannot read mount point: {mountpoint}", hint="run as root")
    if error.errno == errno.ENOTCONN:
        hint = f"umount -l {shlex.quote(str(mountpoint))}"
        return BusyError(f"a dead FUSE mount is in the way: {mountpoint}", hint=hint)
    return IoFailure(f"cannot read mount point: {mountpoint}: {error.strerror}")


def _check_places(request: MountRequest, mountpoint: Path, store: Store) -> None:
    """Nothing that a mount needs may lie behind it: its server would wait for itself."""
    places = {
        "image store": store.local_path(MARKER),
        "cache": request.cache,
        "run folder": request.run_folder,
        "overlay folder": request.overlay,
    }
    for what, path in places.items():
        if path is not None and Path(os.path.realpath(path)).is_relative_to(mountpoint):
            raise UsageError(f"{what} would lie behind the mount: {path}", hint="choose another mount point")
