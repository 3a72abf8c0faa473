"""A link between a client and a server of this host: a TCP proxy that delays and paces as a network does.

    bench/link.py --listen 127.0.0.1:8001 --to 127.0.0.1:8000 --rtt-ms 50 --mbit 200

The rate is shared by all connections, for each direction. A connection costs a round trip before its first
byte, begins with ten segments in flight, and doubles them every round trip; after a silence it begins anew,
as on Linux. It runs in a process of its own, so that its cost is not the client's; `link` starts and ends it.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from relay import Relay


@dataclass(frozen=True)
class LinkKind:
    """What a link is like. No rate: only the delay counts."""

    rtt_seconds: float
    bytes_per_second: float | None


LAN = LinkKind(0.001, 125e6)
WAN = LinkKind(0.050, 25e6)


@contextmanager
def link(target: str, kind: LinkKind, *, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """A running link to `target`; yields the HOST:PORT to use in its place."""
    rate = [] if kind.bytes_per_second is None else ["--mbit", str(kind.bytes_per_second * 8 / 1e6)]
    pace = ["--rtt-ms", str(kind.rtt_seconds * 1000)]
    process = subprocess.Popen(
        [sys.executable, __file__, "--listen", listen, "--to", target, *pace, *rate],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit(f"bench: the link to {target} does not start")
        yield address
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _in_microseconds() -> None:
    """Waits end when they should instead of up to 50 us later, and large pieces come from the heap."""
    with suppress(OSError), open("/proc/self/timerslack_ns", "w") as slack:
        slack.write("1")
    bytes(16 << 20)  # let go at once: glibc then no longer maps every large piece for itself


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), metavar="HOST:PORT")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--mbit", type=float, help="per direction; without: no limit")
    given = parser.parse_args()
    kind = LinkKind(given.rtt_ms / 1000, given.mbit and given.mbit * 1e6 / 8)
    listener = socket.create_server(given.listen, backlog=1024)
    listener.setblocking(False)
    host, port = listener.getsockname()[:2]
    print(f"{host}:{port}", flush=True)
    _in_microseconds()
    with suppress(KeyboardInterrupt):
        Relay(given.to, kind.rtt_seconds, kind.bytes_per_second).serve(listener)


if __name__ == "__main__":
    main()
