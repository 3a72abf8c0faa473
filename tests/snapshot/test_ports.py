from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from coldstart_snapshot.processes import listening, sock_diag
from coldstart_snapshot.processes.ports import port_holder

PLACES = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET, "0.0.0.0"),
    (socket.AF_INET6, "::1"),
    (socket.AF_INET6, "::"),
    (socket.AF_INET6, "::ffff:127.0.0.2"),
]


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Addresses that this process listens on."""
    with ExitStack() as stack:
        found = []
        for family, host in PLACES:
            server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            server.bind((host, 0))
            server.listen()
            shown = f"[{host}]" if ":" in host else host
            found.append(f"{shown}:{server.getsockname()[1]}")
        yield found


@pytest.mark.parametrize("told", [True, False])
def test_who_listens_is_named_whether_the_kernel_tells_sockets_or_proc_has_to_be_read(
    addresses: list[str], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not told:
        monkeypatch.setattr(listening, "listening_sockets", lambda: None)
    elif listening.listening_sockets() is None:
        pytest.skip("this kernel does not tell sockets by sock_diag")
    for address in addresses:
        holder = port_holder(address)
        assert holder is not None
        assert holder[0] == os.getpid()


def test_a_port_that_is_bound_and_not_listened_on_has_no_holder() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert port_holder(f"127.0.0.1:{bound.getsockname()[1]}") is None


def test_a_kernel_without_sock_diag_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sock_diag, "_NETLINK_SOCK_DIAG", 31)
    assert listening.listening_sockets() is None
