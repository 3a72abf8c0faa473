"""Ports for servers that a test starts: none that the kernel or another worker gives away meanwhile."""

from __future__ import annotations

import os
import socket
from itertools import count

# below those that the kernel gives to whoever asks for any, a restored server finds its port free again
_FIRST, _PER_WORKER, _WORKERS = 12_000, 2_500, 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
# another run on this machine begins elsewhere
_numbers = count(os.getpid())


def free_port() -> int:
    """A port that nobody listens on, another each time."""
    for _ in range(_PER_WORKER):
        port = _FIRST + _worker * _PER_WORKER + next(_numbers) % _PER_WORKER
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            continue
    raise AssertionError("no port is free")
