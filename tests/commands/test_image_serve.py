"""`coldstart image serve` as its users meet it; the host itself is tested in tests/fs/test_image_host.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from coldstart_cli.process import start_ticks
from conftest import wait_until
from image_desk import Desk


def socket_of(desk: Desk) -> Path:
    return desk.folder / "coldstart" / "run" / "image-server.socket"


def test_a_dry_run_says_where_it_would_listen(desk: Desk) -> None:
    done = desk.run("image", "serve", "--dry-run")
    assert (done.status, done.stdout) == (0, f"would listen at {socket_of(desk)}\n")
    assert not socket_of(desk).exists()


def test_mounts_are_forked_by_it_until_it_is_told_to_end(desk: Desk) -> None:
    host = subprocess.Popen(
        [desk.run.program, "image", "serve", "--json"],
        env=desk.run.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert host.stdout is not None
        document = json.loads(b"".join(iter(host.stdout.readline, b"}\n")) + b"}")
        assert document["socket"] == str(socket_of(desk))
        assert document["pid"] == host.pid
        mounted = json.loads(desk.mount("--detach", "--json").stdout)
        status = Path(f"/proc/{mounted['keeper_pid']}/status").read_text()
        assert f"PPid:\t{host.pid}\n" in status
        host.terminate()
        _, stderr = host.communicate(timeout=60)
        assert host.returncode == 143
        assert f"pid {mounted['keeper_pid']} keeps ".encode() in stderr
    finally:
        host.kill()
        host.communicate(timeout=60)
    assert (desk.point / "hello").read_bytes() == b"hello world\n"
    assert desk.unmount().status == 0
    wait_until(lambda: not start_ticks(mounted["keeper_pid"]), "the end of the keeper")
