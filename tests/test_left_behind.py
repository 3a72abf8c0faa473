"""What tests leave behind is found and named, and what is none of theirs or is just ending is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import left_behind
from conftest import REPOSITORY, wait_until
from left_behind import MARKER, Watch

_SLEEP = ("/bin/sleep", "60")
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs with an environment of nothing but what is given; they are ended afterwards."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, **options: object) -> subprocess.Popen[bytes]:
        values = {"env": {}, "stdin": subprocess.DEVNULL, "cwd": "/"} | options
        made.append(subprocess.Popen(command, **values))  # type: ignore[call-overload]
        return made[-1]

    yield begin
    for process in made:
        with process:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "watched"
    made.mkdir()
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives stays, so that there is nothing to wait for."""
    monkeypatch.setattr(left_behind, "PATIENCE_SECONDS", 0.1)


def _signs(watch: Watch) -> list[str]:
    return [process.sign for process in watch.processes()]


def _wait_for(watch: Watch, sign: str) -> None:
    # between fork and exec a process is still ours
    wait_until(lambda: _signs(watch) == [sign], f"a process is known by its {sign}")


def test_a_process_is_known_by_all_that_leads_to_the_folder(folder: Path, start: Start) -> None:
    ways: dict[str, dict[str, object]] = {
        "environment": {"env": {MARKER: str(folder / "below")}},
        "working folder": {"cwd": folder},
    }
    for sign, options in ways.items():
        watch = Watch(folder)
        process = start(*_SLEEP, **options)
        _wait_for(watch, sign)
        process.kill()
        process.wait(60)
        assert _signs(watch) == []
    watch = Watch(folder)
    start("/bin/sh", "-c", f": {folder}; read line", stdin=subprocess.PIPE)
    _wait_for(watch, "command line")


def test_a_child_is_known_whatever_it_says_of_itself(folder: Path, start: Start) -> None:
    watch = Watch(folder)
    process = start(*_SLEEP)
    _wait_for(watch, "parent")
    process.kill()
    process.wait(60)
    assert _signs(watch) == []


def test_a_process_is_known_by_a_file_that_it_holds(folder: Path, start: Start) -> None:
    watch = Watch(folder)
    with (folder / "log").open("wb") as log:
        start(*_SLEEP, stdout=log)
    _wait_for(watch, "descriptor 1")


def test_a_process_in_a_container_is_known_by_its_root(folder: Path, start: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    upper, work, root = (folder / name for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        path.mkdir()
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True, timeout=60)
    try:
        watch = Watch(folder)
        # as runc does: nothing of the host's tree remains in sight
        enter = 'cd "$0" && mount --bind /proc proc && pivot_root . . && umount -l . && exec env -i sleep 60'
        process = start("/usr/bin/unshare", "--mount", "/bin/sh", "-c", enter, str(root))
        _wait_for(watch, "root")
        process.kill()
        process.wait(60)
    finally:
        subprocess.run(["umount", root], check=True, timeout=60)


def test_who_was_there_before_and_who_only_sounds_alike_is_left_alone(
    tmp_path: Path, folder: Path, start: Start, impatient: None
) -> None:
    before = start(*_SLEEP, cwd=folder)
    other = tmp_path / "watched1"
    other.mkdir()
    watch = Watch(folder)
    # a stranger: the shell that started it has gone
    made = subprocess.run(
        ["/bin/sh", "-c", f"cd {other}; exec 2>log; /bin/sleep 60 >/dev/null & echo $!"],
        env={},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    stranger = int(made.stdout)
    try:
        wait_until(lambda: "sleep" in Path(f"/proc/{stranger}/comm").read_text(), "it is that program")
        assert watch.processes() == []
        assert watch.end() == []
        assert before.poll() is None
        (found,) = Watch(other, frozenset(watch.before)).processes()
        assert found.pid == stranger
    finally:
        os.kill(stranger, 9)


def test_who_is_just_ending_is_waited_for(folder: Path, start: Start) -> None:
    watch = Watch(folder)
    process = start("/bin/sh", "-c", "read line", cwd=folder, stdin=subprocess.PIPE)
    _wait_for(watch, "working folder")
    asked = 0
    real = watch.processes

    def ending() -> list[left_behind.Process]:
        nonlocal asked
        asked += 1
        if asked == 3:
            assert process.stdin is not None
            process.stdin.close()
        return real()

    watch.processes = ending  # type: ignore[method-assign]
    assert watch.end() == []
    assert asked >= 3
    assert process.wait(60) != -9


def test_what_stays_is_named_and_ended(folder: Path, start: Start, impatient: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    watch = Watch(folder)
    process = start(*_SLEEP, env={MARKER: str(folder), "PYTEST_CURRENT_TEST": "test_x.py::test_y (call)"})
    _wait_for(watch, "environment")
    point = folder / "mnt"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True, timeout=60)
    assert watch.end() == [
        f"process {process.pid} (/bin/sleep 60), by its environment, started by test_x.py::test_y (call)",
        f"mount {point}",
    ]
    assert process.wait(60) == -9
    assert watch.end() == []


_LEAVING = """
import subprocess
from multiprocessing import resource_tracker
import pytest
import left_behind
left_behind.PATIENCE_SECONDS = 0.1

@pytest.fixture(scope="module")
def server():
    return subprocess.Popen(["/bin/sleep", "61"])

@pytest.fixture(scope="module")
def ended_with_the_module():
    with subprocess.Popen(["/bin/sleep", "63"]) as process:
        yield
        process.kill()

def test_that_is_the_first_to_ask_for_a_server_of_all(request):
    request.getfixturevalue("ended_with_the_module")

def test_whose_interpreter_keeps_a_helper():
    resource_tracker.ensure_running()

def test_that_leaves_a_process():
    subprocess.run(["sh", "-c", "sleep 62 >/dev/null 2>&1 &"], check=True)

def test_whose_module_leaves_one(server):
    server.returncode = 0  # nobody will ask for it

def test_that_leaves_nothing():
    pass
"""


def test_a_run_of_tests_fails_by_what_they_leave(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(_LEAVING)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest"),
            *("-c", REPOSITORY / "pyproject.toml", "--rootdir", tmp_path, "--basetemp", tmp_path / "inner"),
            tmp_path / "test_leaving.py",
        ],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests"), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "5 passed, 2 errors" in done.stdout
    assert "ERROR at teardown of test_that_leaves_a_process" in done.stdout
    assert (
        "(sleep 62), by its environment, started by test_leaving.py::test_that_leaves_a_process"
        in done.stdout
    )
    assert "ERROR at teardown of test_that_leaves_nothing" in done.stdout
    assert "left behind by this run of tests: process " in done.stdout
    assert (
        "(/bin/sleep 61), by its environment, started by test_leaving.py::test_whose_module_l" in done.stdout
    )
