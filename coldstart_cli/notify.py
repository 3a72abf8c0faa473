"""systemd's notification protocol: one datagram to $NOTIFY_SOCKET; silent when there is none."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from coldstart_cli.plain import plain


def notify(*lines: str) -> bool:
    """Send e.g. `READY=1`, `STATUS=...`; return whether a service manager was told."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto("\n".join(map(plain, lines)).encode(), address)
        return True
    return False
