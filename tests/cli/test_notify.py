"""systemd's notification protocol, over real datagram sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from coldstart_cli.notify import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_arrive_in_one_datagram(
    tmp_path: Path, abstract: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@coldstart-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(name.replace("@", "\0", 1) if abstract else name)
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1", "STATUS=serving h\u00e9")
        assert channel.recv(4096).decode() == "READY=1\nSTATUS=serving h\u00e9"


def test_without_a_service_manager_nobody_is_told() -> None:
    assert not notify("READY=1")


def test_a_socket_that_is_gone_or_wrong_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "absent"), "/" + "x" * 200, "relative"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not notify("READY=1")


def test_a_name_with_a_line_break_or_any_byte_says_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify("STATUS=a\nREADY=1\udcff")
        assert channel.recv(4096) == b"STATUS=a\\nREADY=1\\xff"
