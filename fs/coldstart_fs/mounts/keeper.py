"""The keeper of one FUSE connection: it mounts, holds the descriptor, and forks the server that answers.

A server that dies is replaced by a successor on the same descriptor, which asks the kernel for what was left
unanswered. One thread, so that it can fork whenever it must; it never touches its own mount.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from socket import socket
from typing import Any

from coldstart_cli.errors import BusyError, ColdstartError, ExitCode
from coldstart_cli.files import remove_tree
from coldstart_cli.version import __version__
from coldstart_fs.fuse.device import mount_fuse
from coldstart_fs.fuse.journal import has_gaps, make_journal
from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.mounts import out_of_memory, users
from coldstart_fs.mounts.channel import Channel, listen
from coldstart_fs.mounts.connections import abort, waiting
from coldstart_fs.mounts.handover import Handover, receive_connection
from coldstart_fs.mounts.image_process import BornWith
from coldstart_fs.mounts.kernel_mounts import IMAGE_SOURCE_PREFIX, mount_at
from coldstart_fs.mounts.processes import ProcessIdentity, end_process
from coldstart_fs.mounts.refusals import as_message
from coldstart_fs.mounts.restarts import Restarts
from coldstart_fs.mounts.server_child import ServerChild, fork_server
from coldstart_fs.mounts.server_log import ServerLog
from coldstart_fs.mounts.server_records import ServerRecord, socket_path, write_server
from coldstart_fs.mounts.server_request import KeeperOrder
from coldstart_fs.mounts.tuning import tune
from coldstart_fs.mounts.wakeups import Wakeups

# what a server that is told to end gets for its last answers and its trace, and then to die
_LAST_ANSWERS_SECONDS = 4.0
_KILL_SECONDS = 2.0
# whoever wanted the server has put its mount on record by then, or was killed
_UNUSED_SECONDS = 1.0
_LOOK_AFTER_SECONDS = 0.3
_LOOK_AGAIN_SECONDS = 1.0
_HELD_SECONDS = 5.0
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL


class Keeper:
    """One connection from its mount to its end. `starter` is told when it serves, or why not."""

    def __init__(self, order: KeeperOrder, starter: Channel, log: ServerLog) -> None:
        self.order = order
        self.log = log
        self._starter: Channel | None = starter
        self._wakeups = Wakeups()
        self._restarts = Restarts()
        self._child: ServerChild | None = None
        self._restart_at: float | None = None
        self._look_at: float | None = None
        self._is_held = False
        self._score = out_of_memory.spare_this_process()
        self._descriptor = self._journal = -1
        self._memory: tuple[int, ...] = ()
        self._listener: socket | None = None
        self.record = ServerRecord(
            folder=order.folder,
            request=order.request,
            root=order.root,
            shared=order.shared,
            version=__version__,
            keeper=ProcessIdentity.of(os.getpid()),
        )

    def run(self) -> ExitCode:
        """Keep until the mount is gone, SIGTERM, or a successor takes over."""
        try:
            self._begin()
        except ColdstartError as error:
            self._refuse(error)
            return error.exit_code
        return self._keep()

    # --- the beginning ---

    def _begin(self) -> None:
        deadline = time.monotonic() + self.order.timeout_seconds
        if self.order.take_over:
            self._take_over(deadline)
        else:
            self._mount(deadline)
        self._listener = listen(socket_path(self.order.folder))
        self._look_at = time.monotonic() + _UNUSED_SECONDS
        write_server(self.record)
        assert self._starter is not None
        if not self._starter.send({"ready": True}):
            raise BusyError("whoever wanted the mount has gone")
        self._starter.close()
        self._starter = None

    def _mount(self, deadline: float) -> None:
        self._journal = make_journal()
        self.record = replace(self.record, journal=self._journal)
        write_server(self.record)  # from here on anybody can end what we are about to make
        child = self._fork(None)
        opened = self._hear("opened", child, deadline)
        source = IMAGE_SOURCE_PREFIX + self.order.request.image.removeprefix(IMAGE_SOURCE_PREFIX)
        self._descriptor = mount_fuse(str(self.order.root), source=source)
        child.channel.send({"go": True}, [self._descriptor])
        negotiated = self._hear("negotiated", child, deadline)
        self._describe(
            child,
            negotiated=negotiated["negotiated"],
            notes=tuple(opened["notes"]),
            descriptor=negotiated["descriptor"],
        )

    def _take_over(self, deadline: float) -> None:
        with receive_connection(self.order.folder, deadline) as taken:
            self._descriptor, self._journal = taken.descriptor, taken.journal
            # the credentials of the store are there; what our caller has set anew counts
            os.environ.update(taken.environment | dict(os.environ))
            self.record = replace(
                taken.record,
                keeper=self.record.keeper,
                request=self.order.request,
                journal=taken.journal,
                version=__version__,
                failure=None,
            )
            child = self._fork(self._negotiated())
            opened = self._hear("opened", child, deadline)
            taken.stop_predecessor(deadline)
            child.channel.send({"go": True})
            serving = self._hear("serving", child, deadline)
            self._describe(child, notes=tuple(opened["notes"]), descriptor=serving["descriptor"])
            write_server(self.record)
            taken.confirm()
        self.log(f"took over {self.order.root}")

    def _describe(self, child: ServerChild, **changes: Any) -> None:
        """What the connection turned out to be; read-ahead is set after INIT, which sets it too."""
        found = mount_at(self.order.root)
        device = self.record.device if found is None else found.device
        self.record = replace(
            self.record,
            server=child.process,
            device=device,
            settings=tune(device),
            **changes,
        )

    def _fork(self, negotiated: Negotiated | None) -> ServerChild:
        gc.collect()
        gc.freeze()  # what lies still is not copied
        self._child = fork_server(
            self.order.request,
            self.order.folder,
            self.order.root,
            BornWith(self._descriptor, self._journal, negotiated, self._memory),
            log=self.log,
            in_child=self._forget,
        )
        self._started_seconds = time.monotonic()
        return self._child

    def _forget(self) -> None:
        """In the child: what is the keeper's alone."""
        out_of_memory.undo(self._score)
        self._wakeups.close()
        if self._starter is not None:
            self._starter.close()
        if self._listener is not None:
            self._listener.close()

    def _hear(self, key: str, child: ServerChild, deadline: float) -> dict[str, Any]:
        """The child's next message, which must be this one; its refusal is raised here."""
        while True:
            poll = select.poll()
            poll.register(child.channel, select.POLLIN)
            poll.register(self._wakeups, select.POLLIN)
            if self._starter is not None:
                poll.register(self._starter, 0)
            events = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not events:
                raise BusyError("image server did not mount in time")
            if self._wakeups.fileno() in events and self._wakeups.told_to_end():
                raise BusyError("told to end before the mount was made")
            if self._starter is not None and events.get(self._starter.fileno()):
                raise BusyError("whoever wanted the mount has gone")
            if child.channel.fileno() in events:
                content = child.expect(key)
                self._memory = child.memory
                return content

    def _refuse(self, error: ColdstartError) -> None:
        self._end_child(at_once=True)
        if self._starter is not None:
            self._starter.send(as_message(error))
        if self.order.take_over:
            return
        if self._descriptor >= 0:
            users.unmount_root(self.record)
            os.close(self._descriptor)
        with suppress(ColdstartError):
            remove_tree(self.order.folder)

    # --- keeping ---

    def _keep(self) -> ExitCode:
        assert self._listener is not None
        with open("/proc/self/mountinfo", "rb", buffering=0) as table:
            poll = select.poll()
            poll.register(self._descriptor, 0)
            poll.register(self._wakeups, select.POLLIN)
            poll.register(self._listener, select.POLLIN)
            poll.register(table, select.POLLPRI)
            while True:
                events = dict(poll.poll(self._timeout_milliseconds()))
                if events.get(self._descriptor, 0) & _GONE:
                    return self._end("the mount is gone")
                if self._wakeups.fileno() in events and self._wakeups.told_to_end():
                    users.unmount_users(self.record)
                    users.unmount_root(self.record)
                    return self._end(f"told to end, unmounted {self.order.root}")
                if self._listener.fileno() in events and self._hand_over():
                    return ExitCode.OK
                if table.fileno() in events:
                    soon = time.monotonic() + _LOOK_AFTER_SECONDS
                    self._look_at = soon if self._look_at is None else min(soon, self._look_at)
                if self._is_unused():
                    users.unmount_root(self.record)
                    return self._end("nobody uses the mount any more")
                if (failure := self._look_after_child()) is not None:
                    return self._give_up(failure)

    def _timeout_milliseconds(self) -> float | None:
        moments = [moment for moment in (self._restart_at, self._look_at) if moment is not None]
        now = time.monotonic()
        if self._child is not None:  # nobody says that a server is dead of which the kernel holds a thread
            moments.append(now + _LOOK_AGAIN_SECONDS)
        return max(0.0, min(moments) - now) * 1000 + 1 if moments else None

    def _is_unused(self) -> bool:
        """Whether every mount point has gone, as when somebody called umount instead of us.

        A container may still use what was unmounted on the host alone.
        """
        if self._look_at is None or time.monotonic() < self._look_at:
            return False
        if users.is_unmounted(self.record) and (holder := users.holder_of(self.record)) is not None:
            if not self._is_held:
                self.log(f"no mount point is left, but {holder}")
            self._is_held, self._look_at = True, time.monotonic() + _HELD_SECONDS
            return False
        unused = users.retire(self.record, "nobody used it")
        self._look_at = time.monotonic() + _LOOK_AGAIN_SECONDS if unused is None else None
        return unused is True

    def _look_after_child(self) -> str | None:
        """Start a successor for a server that has died; why that cannot be done."""
        if self._child is not None and (words := self._child.has_ended()) is not None:
            self._child.close()
            self._child = None
            return self._died(words)
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._restart_at = None
            child = self._fork(self._negotiated())
            child.channel.send({"go": True})
            self.record = replace(
                self.record,
                server=child.process,
                descriptor=self._descriptor,
                restarts=self.record.restarts + 1,
            )
            with suppress(ColdstartError):  # a full disk must not end the mount
                write_server(self.record)
        return None

    def _died(self, words: str) -> str | None:
        self.log(f"image server died: {words}")
        lost = not self._negotiated().has_resend and has_gaps(self._journal)
        if lost and waiting(self.record.device) != 0:
            return "image server died with more requests unanswered than could be noted"
        now = time.monotonic()
        delay_seconds = self._restarts.delay_seconds(now - self._started_seconds, now_seconds=now)
        if delay_seconds is None:
            return f"image server died {self._restarts.words}, the last time: {words}"
        self._restart_at = now + delay_seconds
        return None

    def _negotiated(self) -> Negotiated:
        return Negotiated.from_json(dict(self.record.negotiated))

    def _hand_over(self) -> bool:
        """Whether a keeper that asked for the connection has it now; if not, all goes on."""
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False
        with Handover(Channel(connection), self._descriptor, self._journal) as handover:
            if not handover.is_wanted() or self._child is None:
                return False
            self._end_child()
            if handover.complete():
                self.log("handed over to another keeper")
                return True
            self.log("another keeper wanted to take over and failed")
            self._restart_at = time.monotonic()
            return False

    # --- the end ---

    def _end(self, reason: str) -> ExitCode:
        self.log(reason)
        self.record = replace(self.record, failure=reason)
        with suppress(ColdstartError):
            write_server(self.record)  # who waits for the end need not wait for that of the server
        self._end_child()
        os.close(self._descriptor)
        if not users.users_of(self.record):  # else the log stays: somebody may ask for it
            with suppress(ColdstartError):
                remove_tree(self.order.folder)
        return ExitCode.OK

    def _give_up(self, failure: str) -> ExitCode:
        """Let nobody hang: every request that waits, and each that comes, gets an error."""
        self.log(f"{failure}: giving up")
        self.record = replace(self.record, failure=failure)
        with suppress(ColdstartError):
            write_server(self.record)
        abort(self.record.device)
        os.close(self._descriptor)
        return ExitCode.FAILURE

    def _end_child(self, *, at_once: bool = False) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if not at_once:
            end_process(child.process, (signal.SIGTERM, _LAST_ANSWERS_SECONDS))
        if not end_process(child.process, (signal.SIGKILL, _KILL_SECONDS)):
            self.log(f"image server {child.process.pid} cannot be killed")
        child.close()
