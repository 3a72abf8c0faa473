"""Serving one image: opened, mounted, answered for in an event loop, unmounted on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

# everything that will ever be imported, at once: later, a module may lie behind our own mount
import blake3  # noqa: F401
import pyfuse3
import trio
import zstandard  # noqa: F401

from coldstart_cli.errors import ColdstartError, IoFailure, PermissionNeededError, UnavailableError
from coldstart_fs.cache import ChunkCache
from coldstart_fs.fetch import ChunkSource
from coldstart_fs.flights import Flights
from coldstart_fs.images import open_image
from coldstart_fs.kernel_mounts import IMAGE_SOURCE_PREFIX
from coldstart_fs.names import parse_digest
from coldstart_fs.server import ImageOperations
from coldstart_fs.server_log import ServerLog
from coldstart_fs.server_request import ServerRequest, answer
from coldstart_fs.store_url import open_store

_COUNTERS_EVERY_SECONDS = 1.0
_LAST_ANSWERS_SECONDS = 1.0


def serve_image(request: ServerRequest) -> None:
    """Mount and serve until SIGTERM or until somebody unmounts."""
    log = ServerLog()
    store = open_store(request.store)
    cache = ChunkCache(Path(request.cache), log)
    notes = _prepare(cache)
    index, locator = open_image(store, parse_digest(request.image), cache.folder, notes.append)
    source = ChunkSource(store, locator, cache, log)
    operations = ImageOperations(index, cache, log)
    # from the mounting to the receiver, SIGTERM would leave a dead mount
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pyfuse3.init(operations, request.mountpoint, _options(request))
    except RuntimeError as error:
        raise _mount_failure(request) from error

    async def serve() -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            async with trio.open_nursery() as nursery:
                operations.flights = Flights(source)
                nursery.start_soon(operations.flights.write_behind)
                nursery.start_soon(_terminate_on, signals, nursery.cancel_scope)
                nursery.start_soon(_keep_counters, operations, request.counters)
                # who started us may be gone already: then nobody wants this mount
                if answer(request, {"mounted": True, "notes": notes}):
                    await pyfuse3.main()
                nursery.cancel_scope.cancel()

    try:
        trio.run(serve)
    finally:
        log(f"unmounting {request.mountpoint}")
        pyfuse3.close(unmount=True)


async def _terminate_on(signals: AsyncIterator[int], serving: trio.CancelScope) -> None:
    async for _ in signals:
        pyfuse3.terminate()
        await trio.sleep(_LAST_ANSWERS_SECONDS)
        serving.cancel()  # a fetch hangs: its readers get the kernel's error when the mount goes


def _prepare(cache: ChunkCache) -> list[str]:
    """Make the cache ready; a full disk under it must not keep an image from being served."""
    try:
        cache.prepare()
    except ColdstartError as error:
        cache.store_failure = error.message
        return [f"cache cannot keep chunks, serving through it: {error.message}"]
    return []


async def _keep_counters(operations: ImageOperations, path: str) -> None:
    written = ""
    while True:
        text = json.dumps(operations.counters())
        if text != written:
            _replace(path, text)
            written = text
        await trio.sleep(_COUNTERS_EVERY_SECONDS)


def _replace(path: str, text: str) -> None:
    with suppress(OSError):
        with open(path + ".new", "w", encoding="ascii") as stream:
            stream.write(text)
        os.rename(path + ".new", path)


def _options(request: ServerRequest) -> set[str]:
    options = {
        "ro",
        "default_permissions",
        f"fsname={IMAGE_SOURCE_PREFIX}{request.image}",
        "subtype=coldstart",
    }
    if os.geteuid() == 0 or _others_are_allowed():
        options.add("allow_other")
    return options | {name for name, wanted in (("suid", request.suid), ("dev", request.dev)) if wanted}


def _others_are_allowed() -> bool:
    """Whether fusermount3 lets users mount for others too."""
    try:
        lines = Path("/etc/fuse.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def _mount_failure(request: ServerRequest) -> ColdstartError:
    """Why libfuse, which only prints to stderr, could not mount."""
    if not os.path.exists("/dev/fuse"):
        return UnavailableError("this host has no FUSE: /dev/fuse is absent", hint="modprobe fuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return PermissionNeededError("cannot open /dev/fuse", hint="run as root")
    if os.geteuid() != 0:
        return PermissionNeededError(f"cannot mount: {request.mountpoint}", hint="run as root")
    return IoFailure(f"cannot mount: {request.mountpoint}")
