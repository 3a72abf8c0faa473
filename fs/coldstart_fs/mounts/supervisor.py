"""Starting a keeper, in a process of its own or forked by the image host, and hearing how it fared."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Self

from coldstart_cli.errors import BusyError, ColdstartError, IoFailure
from coldstart_cli.process import last_lines
from coldstart_fs.mounts.channel import Channel
from coldstart_fs.mounts.prepared import PreparedKeeper, take_prepared
from coldstart_fs.mounts.refusals import as_error
from coldstart_fs.mounts.server_end import end_quietly
from coldstart_fs.mounts.server_records import ServerRecord, read_server
from coldstart_fs.mounts.server_request import KeeperOrder


class StartedKeeper:
    """A keeper on its way to serving. Leaving the block with an exception ends it."""

    def __init__(
        self,
        order: KeeperOrder,
        channel: Channel,
        log_file: Path | None,
        process: PreparedKeeper | None = None,
    ) -> None:
        self._order = order
        self._process = process
        self._channel = channel
        self._log_file = log_file
        self._old_log_bytes = 0  # what was said before explains nothing
        if order.take_over and log_file is not None:
            with suppress(OSError):
                self._old_log_bytes = log_file.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._channel.close()
        if self._process is not None:
            self._process.close()
        if kind is not None and not self._order.take_over:
            record = read_server(self._order.folder)
            if record is not None:
                end_quietly(record)

    def wait_ready(self, deadline: float) -> ServerRecord:
        """Until it serves; a refusal is raised here."""
        try:
            message = self._channel.receive(max(0.1, deadline - time.monotonic()))
        except BusyError as error:
            raise BusyError("image server did not mount in time" + self._said()) from error
        if message is None:
            raise ColdstartError("image server ended before it had mounted" + self._said())
        if "error" in message[0]:
            raise as_error(message[0])
        record = read_server(self._order.folder)
        if record is None:
            raise ColdstartError("image server ended as soon as it had mounted" + self._said())
        return record

    def _said(self) -> str:
        said = b"" if self._process is None else self._process.said()
        with suppress(OSError):
            said += b"" if self._log_file is None else self._log_file.read_bytes()[self._old_log_bytes :]
        text = last_lines(said)
        return f": {text}" if text else ""


def start_keeper(order: KeeperOrder, log: int, log_file: Path | None) -> StartedKeeper:
    """Give the order to a keeper in a process of its own, which outlives ours; what it says goes to `log`."""
    keeper = take_prepared()
    if keeper is not None and not keeper.order(order.to_json(), log):
        keeper.close()
        keeper = None
    if keeper is None:
        keeper = PreparedKeeper(order.folder.parent.parent)
        keeper.order(order.to_json(), log)
    try:
        keeper.settle()
    except BaseException:
        keeper.close()
        raise
    return StartedKeeper(order, keeper.channel, log_file, keeper)


def wait_answer(record: ServerRecord, deadline: float) -> None:
    """Until the mount answers; a thread asks, since asking cannot be given up."""
    outcome: list[os.stat_result | OSError] = []

    def ask() -> None:
        try:
            outcome.append(os.stat(record.root))
        except OSError as error:
            outcome.append(error)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(max(0.1, deadline - time.monotonic()))
    if not outcome:
        raise BusyError(
            f"image server does not answer: pid {record.server.pid}: see {record.log}",
            hint="`coldstart image mount --replace` starts another one",
        )
    if isinstance(outcome[0], OSError):
        text = f"image server does not answer: {record.root}: {outcome[0].strerror}: see {record.log}"
        raise IoFailure(text) from outcome[0]
