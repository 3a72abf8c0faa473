"""The process of one image server: opens what it needs, mounts, says that it answers, unmounts on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError, ExitCode, IoFailure, PermissionNeededError, UnavailableError

_LOG_LIMIT_LINES = 20000


@dataclass(frozen=True)
class ServerRequest:
    """What to serve where; handed over as JSON in the server's argument list."""

    image: str
    store: str
    cache: str
    mountpoint: str
    suid: bool
    dev: bool
    ready_descriptor: int


class _Log:
    """One line a message on stderr, which is the mount's log file; bounded."""

    def __init__(self) -> None:
        self._lines = 0

    def __call__(self, text: str) -> None:
        self._lines += 1
        if self._lines <= _LOG_LIMIT_LINES:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            sys.stderr.write(f"{stamp} {text}\n")
            sys.stderr.flush()


def main() -> int:
    """Serve until SIGTERM; the answer on the ready descriptor is one JSON line."""
    request = ServerRequest(**json.loads(sys.argv[1]))
    os.set_inheritable(request.ready_descriptor, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # a terminal's Ctrl-C is for the supervisor, which ends us in order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    try:
        _serve(request)
    except ColdstartError as error:
        _answer(request, {"error": error.message, "hint": error.hint, "exit_code": int(error.exit_code)})
        return error.exit_code
    return ExitCode.OK


def _answer(request: ServerRequest, content: dict[str, Any]) -> None:
    with suppress(OSError):
        os.write(request.ready_descriptor, json.dumps(content).encode() + b"\n")


def _serve(request: ServerRequest) -> None:
    import pyfuse3
    import trio

    from coldstart_fs.cache import ChunkCache
    from coldstart_fs.fetch import ChunkSource
    from coldstart_fs.images import open_image
    from coldstart_fs.names import parse_digest
    from coldstart_fs.server import ImageOperations
    from coldstart_fs.store import open_store
    from coldstart_fs.tuning import tune

    log = _Log()
    digest = parse_digest(request.image)
    store = open_store(request.store)
    cache = ChunkCache(Path(request.cache))
    cache.prepare()
    index, locator = open_image(store, digest, Path(request.cache))
    operations = ImageOperations(index, ChunkSource(store, locator, cache, log), log)
    options = {
        "ro",
        "allow_other",
        "default_permissions",
        f"fsname=coldstart:{request.image}",
        "subtype=coldstart",
    }
    options |= {name for name, wanted in (("suid", request.suid), ("dev", request.dev)) if wanted}
    try:
        pyfuse3.init(operations, request.mountpoint, options)
    except RuntimeError as error:
        raise _mount_failure(request) from error

    async def announce(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        settings = tune(_device_of(request.mountpoint))
        # the parent may be gone already: then nobody wants this mount
        try:
            os.write(
                request.ready_descriptor, json.dumps({"ready": True, "settings": settings}).encode() + b"\n"
            )
        except OSError:
            pyfuse3.terminate()

    async def until_told() -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(announce)
                nursery.start_soon(_end_on_signal, signals, nursery.cancel_scope)
                await pyfuse3.main()
                nursery.cancel_scope.cancel()

    async def _end_on_signal(signals: Any, scope: trio.CancelScope) -> None:
        del scope
        async for _ in signals:
            pyfuse3.terminate()

    try:
        trio.run(until_told)
    finally:
        log(f"unmounting {request.mountpoint}")
        pyfuse3.close(unmount=True)


def _device_of(mountpoint: str) -> int:
    """The mount's device number from the mount table: the server must not touch its own mount."""
    from coldstart_cli.files import unescape_mountinfo

    device = 0
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        fields = line.split()
        if unescape_mountinfo(fields[4]) == mountpoint:
            major, minor = fields[2].split(":")
            device = os.makedev(int(major), int(minor))
    return device


def _mount_failure(request: ServerRequest) -> ColdstartError:
    """Why libfuse, which only prints to stderr, could not mount."""
    if not os.path.exists("/dev/fuse"):
        return UnavailableError("this host has no FUSE: /dev/fuse is absent", hint="modprobe fuse")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return PermissionNeededError("cannot open /dev/fuse", hint="run as root")
    if os.geteuid() != 0:
        return PermissionNeededError(
            f"cannot mount: {request.mountpoint}",
            hint="run as root, or install fuse3 and allow `user_allow_other` in /etc/fuse.conf",
        )
    return IoFailure(f"cannot mount: {request.mountpoint}", hint="see the mount's log")


if __name__ == "__main__":
    sys.exit(main())
