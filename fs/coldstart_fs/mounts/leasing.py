"""A mount's lease on its image: `image gc` on another host must not take what this one serves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from coldstart_cli.errors import ColdstartError
from coldstart_fs.mounts.kernel_mounts import file_system_of
from coldstart_fs.stores.leases import LEASE_DAYS, lease, release
from coldstart_fs.stores.store import MARKER, Store

_RENEW_SECONDS = LEASE_DAYS / 3 * 86400
_AGAIN_SECONDS = 3600.0
_LAST_SECONDS = 1.0
_NETWORK_KINDS = ("nfs", "cifs", "smb", "ceph", "glusterfs", "lustre", "fuse")


class ImageLease:
    """Held by a thread of its own while the block runs; what cannot be held is said once, and tried again.

    A store that only this host has needs none: `image gc` here knows its mounts. Nor has a web server any.
    """

    def __init__(self, store: Store, image: bytes, server: Path, log: Callable[[str], None]) -> None:
        self._store = store
        self._image = image
        # the same for a successor, so that it goes on with the lease
        self._holder = f"{_host()}_{server.name}"
        self._log = log
        self._ended = Event()
        self._thread = Thread(target=self._run, name="lease", daemon=True)
        self._held = False

    def __enter__(self) -> None:
        if _is_shared(self._store):
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)  # one that is left ends by itself

    def _run(self) -> None:
        said = False
        while True:
            pause_seconds = _RENEW_SECONDS
            try:
                lease(self._store, self._image, self._holder)
                self._held = True
            except ColdstartError as error:
                pause_seconds = _AGAIN_SECONDS
                if not said:
                    said = True
                    self._log(f"image is not leased, only a name keeps it from `image gc`: {error.message}")
            if self._ended.wait(pause_seconds):
                break
        if self._held:
            try:
                release(self._store, self._image, self._holder)
            except ColdstartError as error:
                self._log(f"lease is left, it ends by itself: {error.message}")


def hold_on_this_host(store: Store, image: bytes, what: str, *, dry_run: bool) -> bool:
    """Lease an image for something of this host that lasts; false where its store is nobody else's."""
    if not _is_shared(store):
        return False
    if not dry_run:
        lease(store, image, f"{_host()}_{what}")
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename).strip(".-")[:64] or "host"


def _is_shared(store: Store) -> bool:
    path = store.local_path(MARKER)
    if path is None:
        return not store.url.startswith(("http://", "https://"))
    return (file_system_of(path.parent) or "").startswith(_NETWORK_KINDS)
