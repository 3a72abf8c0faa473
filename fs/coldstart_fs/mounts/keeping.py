"""Entry point of a keeper's process: one order over a socket, then service until the mount is gone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldstart_fs.mounts.channel import Channel

INSTALL_HINT = "pip install 'coldstart[image]'"


def main() -> int:
    """Keep what the order on the descriptor in the first argument asks for; the others are for `ps`.

    It may take its time to come. With it comes the descriptor for what is to be said from then on.
    """
    if os.fork():  # nobody has to collect a keeper: its parent is init
        os._exit(0)
    from coldstart_fs.mounts.channel import Channel

    os.chdir("/")
    channel = Channel.from_descriptor(int(sys.argv[1]))
    with suppress(ImportError):  # `keep` says what is wrong
        from coldstart_fs.mounts import keeper  # noqa: F401
        from coldstart_fs.tiers import http_source  # noqa: F401
    message = channel.receive(None)
    if message is None:  # nobody needs a keeper after all
        return 1
    content, descriptors = message
    for log in descriptors:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    return keep(content["order"], channel)


def keep(order: dict[str, Any], channel: Channel) -> int:
    """Everything that is imported is imported here, at once: later, a module may lie behind the mount."""
    from coldstart_cli.errors import UnavailableError
    from coldstart_fs.mounts.refusals import as_message

    try:
        from coldstart_fs.mounts.keeper import Keeper
    except ImportError as error:
        text = f"Python package cannot be used: {error.name}: {error}"
        channel.send(as_message(UnavailableError(text, hint=INSTALL_HINT)))
        return int(UnavailableError.exit_code)
    from coldstart_fs.mounts.process_names import name_process
    from coldstart_fs.mounts.server_log import ServerLog
    from coldstart_fs.mounts.server_request import KeeperOrder

    name_process("image-keeper")
    return Keeper(KeeperOrder.from_json(order), channel, ServerLog()).run()


if __name__ == "__main__":
    sys.exit(main())
