"""Findings about containers, with a real capture as the judge."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.checking import check_server
from coldstart_snapshot.containers.new_bundle import ContainerSpec, Mount, write_bundle
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.preflight.check import Checked
from conftest import wait_until
from snapshot.servers import PYTHON, Lab, laboratory

_WATCH = (
    "import ctypes; libc = ctypes.CDLL(None); watch = libc.inotify_init()\n"
    "assert libc.inotify_add_watch(watch, {path!r}, 2) > 0"
)

_UNSHARE = (
    "import os, subprocess, time; made = subprocess.Popen(['unshare', {!r}, 'sleep', '60'])\n"
    "while os.path.basename(os.readlink(f'/proc/{{made.pid}}/exe')) != 'sleep': time.sleep(0.01)"
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _start(lab: Lab, trouble: str, **changes: object) -> str:
    """A container whose process has made its trouble."""
    name = f"web-{len(lab.containers)}"
    overlay = lab.overlay(name).mount()
    (overlay.root / "srv").mkdir(exist_ok=True)
    spec = lab.spec(name, overlay, 0, **changes)
    code = f"{trouble}\nimport time\nprint('made', flush=True)\nwhile True: time.sleep(0.05)"
    container = lab.run(replace(spec, arguments=(PYTHON, "-W", "ignore", "-c", code)))
    wait_until(lambda: spec.log.read_text() != "", "the process made its trouble")
    assert spec.log.read_text() == "made\n"
    return container.id


def _checked(lab: Lab, container_id: str) -> Checked:
    return check_server(lab.config, container_id=container_id, pid=None)


def _capture(lab: Lab, container_id: str) -> None:
    create_snapshot(CaptureRequest("web", container_id=container_id), lab.config)


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (_WATCH.format(path=b"/srv"), "file-watch"),
        (_WATCH.format(path=b"/usr/lib/python3"), "file-watch"),
        (_UNSHARE.format("--user"), "nested-namespace"),
    ],
)  # fmt: skip
def test_what_a_capture_would_fail_at_is_named_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, trouble: str, code: str
) -> None:
    container_id = _start(lab, trouble)
    assert [finding.code for finding in _checked(lab, container_id).findings] == [code]
    with pytest.raises(DataError):
        _capture(lab, container_id)
    monkeypatch.setattr("coldstart_snapshot.capturing.capture.refuse_blockers", lambda *_: None)
    with pytest.raises(ColdstartError, match=f"container {container_id} runs"):
        _capture(lab, container_id)


@pytest.mark.parametrize(
    ("trouble", "codes"),
    [
        (
            "import ctypes; libc = ctypes.CDLL(None); number = libc.shmget(0, 4096, 0o1600)\n"
            "libc.shmat.restype = ctypes.c_void_p; libc.shmat(number, None, 0)",
            [],
        ),
        (
            "import os; made = open('/dev/shm/a', 'w'); made.write('x'); made.flush()\n"
            "os.link('/dev/shm/a', '/dev/shm/b'); os.unlink('/dev/shm/a')",
            [],
        ),
        ("import multiprocessing; made = multiprocessing.get_context('spawn').Semaphore(3)", []),
        ("import os; watched = os.pidfd_open(1)", []),
        (_WATCH.format(path=b"/etc/hostname"), []),
        (_WATCH.format(path=b"/etc"), []),
        ("import os; made = os.open('/srv', os.O_TMPFILE | os.O_RDWR)", ["deleted-file"]),
        (
            "import mmap, os; made = open('/srv/m', 'w+b')\n"
            "made.write(os.urandom(3 << 20)); made.flush()\n"
            "area = mmap.mmap(made.fileno(), 3 << 20); made.close(); os.unlink('/srv/m')",
            ["deleted-file"],
        ),
    ],
)
def test_what_a_container_brings_along_is_no_blocker(lab: Lab, trouble: str, codes: list[str]) -> None:
    container_id = _start(lab, trouble)
    assert [finding.code for finding in _checked(lab, container_id).findings] == codes
    _capture(lab, container_id)


def test_a_watched_bind_mount_of_a_plain_file_system_is_no_blocker(lab: Lab) -> None:
    watched = lab.tmp_path / "watched"
    watched.mkdir()
    where = ["stat", "--file-system", "--format=%T", str(watched)]
    kind = subprocess.run(where, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if "overlay" in kind:
        pytest.skip("these tests run on an overlay themselves")
    container_id = _start(lab, _WATCH.format(path=b"/mnt"), mounts=(Mount(watched, "/mnt"),))
    assert _checked(lab, container_id).findings == ()
    _capture(lab, container_id)


@pytest.fixture
def privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may make namespaces, as those of other tools."""

    def write(folder: Path, spec: ContainerSpec, *arguments: Any) -> tuple[str, ...]:
        warnings = write_bundle(folder, spec, *arguments)
        path = folder / "config.json"
        configuration = json.loads(path.read_text())
        for names in configuration["process"]["capabilities"].values():
            names.append("CAP_SYS_ADMIN")
        configuration["linux"].pop("seccomp", None)
        path.write_text(json.dumps(configuration))
        return warnings

    monkeypatch.setattr("coldstart_snapshot.containers.new_bundle.write_bundle", write)


@pytest.mark.usefixtures("privileged")
def test_a_mount_namespace_inside_a_container_is_captured_and_a_network_one_is_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = _start(lab, _UNSHARE.format("--mount"))
    assert _checked(lab, container_id).findings == ()
    _capture(lab, container_id)
    container_id = _start(lab, _UNSHARE.format("--net"))
    assert [finding.code for finding in _checked(lab, container_id).findings] == ["nested-namespace"]
    monkeypatch.setattr("coldstart_snapshot.capturing.capture.refuse_blockers", lambda *_: None)
    with pytest.raises(ColdstartError, match="network namespace of its own"):
        _capture(lab, container_id)


def test_a_process_that_was_put_into_the_container_is_noted(lab: Lab) -> None:
    container_id = _start(lab, "")
    runc = Runc.find(None, lab.runc_root)
    subprocess.run(
        [runc.program, "--root", lab.runc_root, "exec", "--detach", container_id, "/bin/sleep", "60"],
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (finding,) = _checked(lab, container_id).findings
    assert (finding.code, finding.severity, finding.program) == ("exec-process", "note", "sleep")


def test_a_tree_that_changes_all_the_time_is_looked_at_without_a_crash(lab: Lab) -> None:
    trouble = (
        "import os, threading, time\n"
        "def churn():\n"
        "    while True:\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            files = [open('/etc/hostname') for _ in range(20)]; os._exit(0)\n"
        "        os.waitpid(pid, 0)\n"
        "for _ in range(4): threading.Thread(target=churn, daemon=True).start()"
    )
    container_id = _start(lab, trouble)
    codes = {finding.code for _ in range(20) for finding in _checked(lab, container_id).findings}
    # one that has just ended may still be there
    assert codes <= {"zombie"}
