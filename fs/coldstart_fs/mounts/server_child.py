"""The server of one mount as its keeper sees it: forked, told what to do, listened to, collected."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError, ExitCode
from coldstart_fs.mounts.channel import Channel
from coldstart_fs.mounts.image_process import BornWith, serve_image
from coldstart_fs.mounts.process_names import name_process
from coldstart_fs.mounts.processes import ProcessIdentity, reap
from coldstart_fs.mounts.refusals import as_error, as_message
from coldstart_fs.mounts.server_log import ServerLog
from coldstart_fs.mounts.server_request import ServerRequest

_MESSAGE_SECONDS = 5.0
_DYING_SECONDS = 0.2
_POLL_SECONDS = 0.005
# killed servers that are not gone yet
_hanging: set[int] = set()


class ServerChild:
    """A forked server. It says `opened`, waits for `go`, and says `negotiated` or `serving`."""

    def __init__(self, process: ProcessIdentity, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.memory: tuple[int, ...] = ()
        """Descriptors that came with what it said: of what it holds for its successors."""

    def expect(self, key: str) -> dict[str, Any]:
        """Its next message, which must be this one; its refusal is raised."""
        message = self.channel.receive(_MESSAGE_SECONDS)
        if message is None:
            raise ColdstartError("image server ended before it had mounted")
        content, descriptors = message
        self.memory += tuple(descriptors)
        if "error" in content:
            raise as_error(content)
        if key not in content:
            raise ColdstartError(f"image server said {sorted(content)} instead of {key}")
        return content

    def has_ended(self) -> str | None:
        """How it ended, in words; None while it runs.

        A thread that the kernel holds in a push, until somebody answers a read, keeps a killed process from
        ending. Its successor is who can answer: it must not wait for that end.
        """
        for hanging in tuple(_hanging):
            reap(hanging, 0.0)
            if not os.path.exists(f"/proc/{hanging}"):
                _hanging.discard(hanging)
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                pid, status = os.waitpid(self.process.pid, os.WNOHANG)
            except ChildProcessError:
                return "nobody knows how"
            if pid:
                break
            if self.process.lives():
                return None
            if time.monotonic() > deadline:
                _hanging.add(self.process.pid)
                return f"pid {self.process.pid} was killed, and the kernel holds one of its threads"
            time.sleep(_POLL_SECONDS)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"pid {pid} ended with status {code}"
        return f"pid {pid} was ended by {signal.Signals(-code).name}"

    def close(self) -> None:
        self.channel.close()


def fork_server(
    request: ServerRequest,
    folder: Path,
    root: Path,
    born_with: BornWith,
    *,
    log: ServerLog,
    in_child: Callable[[], None],
) -> ServerChild:
    """Fork a server, from a process with one thread; `in_child` gives back what is the keeper's alone."""
    ours, theirs = Channel.pair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status: int = ExitCode.SOFTWARE
        try:
            ours.close()
            in_child()
            name_process("image-server")
            status = _serve(request, folder, root, theirs, born_with, log)
        except BaseException:  # noqa: BLE001 - nothing of the keeper's may run in its child
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()
    return ServerChild(ProcessIdentity.of(pid), ours)


def _serve(
    request: ServerRequest, folder: Path, root: Path, keeper: Channel, born_with: BornWith, log: ServerLog
) -> ExitCode:
    try:
        return serve_image(request, folder, root, keeper, born_with, log)
    except ColdstartError as error:
        keeper.send(as_message(error))
        log(error.message)
        return error.exit_code
