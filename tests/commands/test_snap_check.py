"""`coldstart snap check` and `snap explain` as the installed command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldstart_snapshot.processes.tree import process_name
from conftest import Coldstart, Result
from snapshot.servers import Lab, ask, free_port, laboratory
from snapshot.troubles import process_with


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


# a FUSE mount that nobody serves yet, in the mount namespace of a process
_MOUNT_FUSE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
device = os.open('/dev/fuse', os.O_RDWR)
space = os.open(f'/proc/{sys.argv[1]}/ns/mnt', os.O_RDONLY)
assert libc.setns(space, 0x20000) == 0, ctypes.get_errno()
options = f'fd={device},rootmode=40000,user_id=0,group_id=0'.encode()
assert libc.mount(b'models', b'/srv/models', b'fuse', 0, options) == 0, ctypes.get_errno()
print('mounted', flush=True)
time.sleep(60)
"""


def _document(result: Result, schema: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == (f"coldstart.snap.{schema}", 1)
    return document


def test_a_server_that_can_be_captured_is_exit_0_and_goes_on(coldstart: Coldstart, lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "child", "lock", "pair", "semaphore")
    result = coldstart("snap", "check", "--container", container.id)
    assert (result.status, result.stdout) == (0, f"container {container.id} can be captured\n")
    document = _document(coldstart("snap", "check", "--container", container.id, "--json"), "check")
    assert document["capturable"]
    assert document["processes"] >= 2
    assert document["needed_bytes"] > 1 << 20
    assert document["findings"] == []
    assert ask(port) == "1"
    assert not (lab.config.state_folder / "snapshots").exists()


def test_every_blocker_is_exit_3_with_its_remedy(coldstart: Coldstart, lab: Lab, tmp_path: Path) -> None:
    trouble = "vsock = socket.socket(40, socket.SOCK_STREAM); made = file('deleted', 1000)"
    with process_with(tmp_path, f"{trouble}; watched = os.pidfd_open(os.getppid())") as pid:
        result = coldstart("snap", "check", "--pid", str(pid))
        document = _document(coldstart("snap", "check", "--pid", str(pid), "--json"), "check")
        created = coldstart("snap", "create", "web", "--pid", str(pid))
    assert result.status == 3
    assert result.stderr == f"coldstart: error: process {pid} cannot be captured, for 2 reasons\n"
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[::2]] == [
        ["blocker", "pidfd-outside:"],
        ["blocker", "socket-family:"],
        ["note", "deleted-file:"],
    ]
    assert all(line.startswith("         remedy: ") for line in lines[1::2])
    assert not document["capturable"]
    assert document["findings"][0] == {
        "code": "pidfd-outside",
        "severity": "blocker",
        "what": document["findings"][0]["what"],
        "remedy": "close the descriptor before the capture",
        "pid": pid,
        "program": "python3",
        "descriptor": document["findings"][0]["descriptor"],
        "path": "anon_inode:[pidfd]",
        "size_bytes": None,
        "peer": {"pid": os.getpid(), "program": process_name(os.getpid()), "address": None},
    }
    assert document["findings"][2]["size_bytes"] == 1000
    assert created.status == 65
    assert "for 2 reasons" in created.stderr
    assert created.stderr.endswith(f"hint: coldstart snap check --pid {pid}\n")


def test_a_fuse_file_system_inside_a_container_is_named(coldstart: Coldstart, lab: Lab) -> None:
    container, overlay, _ = lab.start("web", free_port())
    (overlay.root / "srv" / "models").mkdir()
    mounting = subprocess.Popen(
        [sys.executable, "-c", _MOUNT_FUSE, str(container.pid)], stdout=subprocess.PIPE, text=True
    )
    with mounting:
        try:
            assert mounting.stdout is not None
            assert mounting.stdout.readline() == "mounted\n"
            document = _document(coldstart("snap", "check", "--container", container.id, "--json"), "check")
        finally:
            mounting.kill()
    (finding,) = document["findings"]
    assert (finding["code"], finding["path"]) == ("fuse-mount", "/srv/models")
    assert "/srv/models (models)" in finding["what"]


def test_who_is_not_there_or_cannot_be_looked_at_ends_in_its_own_code(coldstart: Coldstart, lab: Lab) -> None:
    container, _, _ = lab.start("web", free_port())
    assert coldstart("snap", "check").status == 2
    assert coldstart("snap", "check", "--pid", "1", "--container", "x").status == 2
    assert coldstart("snap", "check", "--pid", "4194304").status == 66
    assert coldstart("snap", "check", "--pid", "-1").status == 66
    assert coldstart("snap", "check", "--container", "cs-absent").status == 66
    assert coldstart("snap", "check", "--container", "../x").status == 2
    assert coldstart("snap", "check", "--pid", str(os.getpid())).status == 65
    assert coldstart("snap", "check", "--pid", str(container.pid)).status == 65


# --- explain ---

LOG = (
    "(00.01) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
    "(00.02) Error (criu/files-ext.c:98): Can't dump file 36 of that type [20666] (chr 506:0)\n"
    "(00.03) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"
)


def test_a_log_is_told_in_one_sentence_with_its_code_and_line(coldstart: Coldstart, tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text(LOG)
    result = coldstart("snap", "explain", log)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "device: descriptor 36 is of a kind that cannot be captured: chr 506:0",
        "  remedy: close it before the capture: `cat /sys/dev/char/506:0/uevent` names the device",
        "  criu:   Can't dump file 36 of that type [20666] (chr 506:0)",
    ]
    document = _document(coldstart("snap", "explain", log, "--json"), "explain")
    assert (document["found"], document["code"], document["log"]) == (True, "device", str(log))
    # the folder that the log is in will do
    assert coldstart("snap", "explain", tmp_path).stdout == result.stdout


def test_a_log_comes_through_a_pipe_too(coldstart: Coldstart) -> None:
    piped = subprocess.run(
        [coldstart.program, "snap", "explain", "-", "--json"],
        input=f"Nov 30 12:00:00 host dockerd[8]: {LOG}", capture_output=True, text=True,
        env=coldstart.environment, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(piped.stdout)["code"] == "device"
    assert json.loads(piped.stdout)["log"] is None


def test_a_log_without_an_error_is_exit_3(coldstart: Coldstart, tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    log.write_text("(00.10) Restore finished successfully. Tasks resumed.\n")
    result = coldstart("snap", "explain", log, "--json")
    assert result.status == 3
    assert result.stderr == f"coldstart: error: no error of criu in {log}\n"
    assert not _document(result, "explain")["found"]


def test_an_engine_that_only_names_the_log_is_followed(coldstart: Coldstart, tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "criu-dump.log").write_text(LOG)
    path = tmp_path / "criu-dump.log"
    said.write_text(f"criu failed: type NOTIFY errno 0\nlog file: {path}\n")
    assert json.loads(coldstart("snap", "explain", said, "--json").stdout)["log"] == str(path)
    path.unlink()
    result = coldstart("snap", "explain", said)
    assert result.status == 3
    assert f"names another log: {path}" in result.stderr


def test_a_snapshot_s_last_failed_run_is_told_by_its_name(coldstart: Coldstart, tmp_path: Path) -> None:
    logs = tmp_path / "coldstart" / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "web-server-dump.log").write_text(LOG)
    os.utime(logs / "web-server-dump.log", (1_000_000, 1_000_000))
    (logs / "web-server-restore.log").write_text(
        "(00.1) Error (criu/cr-restore.c:1): Can't fork for 8: File exists\n"
    )
    assert coldstart("snap", "explain", "web-server").stdout.startswith("pid-taken: ")
    (logs / "web-server-restore.log").unlink()
    result = coldstart("snap", "explain", "web-server")
    assert result.stdout.startswith("device: ")
    assert "written 1970-01-12 13:46:40 UTC" in result.stderr
    wrong = coldstart("snap", "explain", "web-sever")
    assert wrong.status == 66
    assert "did you mean `web-server`?" in wrong.stderr


def test_what_is_no_log_is_refused(coldstart: Coldstart, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert coldstart("snap", "explain", tmp_path / "empty").status == 66
    assert coldstart("snap", "explain", tmp_path / "absent.log").status == 66
    assert coldstart("snap", "explain", "/dev/zero").status == 65
    assert coldstart("snap", "explain", "/bin/ls").status == 3


def test_a_log_of_gigabytes_is_told_at_once(coldstart: Coldstart, tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    with log.open("wb") as stream:
        stream.truncate(40 << 30)
        stream.seek(0, 2)
        stream.write(b"\n" + LOG.encode())
    # the whole file would take longer than the command may
    assert coldstart("snap", "explain", log, timeout_seconds=20).stdout.startswith("device: ")
