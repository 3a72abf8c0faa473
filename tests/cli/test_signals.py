"""Signals to a command: the first unwinds, the second leaves, USR1 shows where it is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# `main` with a command that holds something and waits; a slow clean-up shows what a second signal does
_SCRIPT = """
import sys, time
import coldstart_cli.app as app
def dispatch(arguments):
    try:
        print("waiting", flush=True)
        while True:
            time.sleep(0.05)
    finally:
        print("cleaning", flush=True)
        time.sleep(float(sys.argv[1]))
        print("clean", flush=True)
app._dispatch = dispatch
app.main([])
"""


# the program while its first modules are imported
_STARTING = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "coldstart_cli.app":
            print("importing", flush=True)
            time.sleep(300)
sys.meta_path.insert(0, Slow())
from coldstart_cli.entry import main
main()
"""
# the program when its command is over
_ENDING = """
import atexit, time
def end():
    print("ending", flush=True)
    time.sleep(300)
atexit.register(end)
from coldstart_cli.entry import main
import sys
sys.argv[1:] = ["--version"]
main()
"""


@pytest.mark.parametrize(("script", "sign"), [(_STARTING, "importing"), (_ENDING, "ending")])
def test_an_interruption_before_and_after_the_command_is_quiet(script: str, sign: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        try:
            assert command.stdout is not None
            while command.stdout.readline() != f"{sign}\n":
                assert command.poll() is None
            command.send_signal(signal.SIGINT)
            assert command.communicate(timeout=60) == ("", "")
        finally:
            command.kill()
    assert command.returncode == 130


@contextmanager
def _command(clean_up_seconds: float) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(clean_up_seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "waiting\n"
        try:
            yield command
        finally:
            command.kill()


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "interrupted\n")],
)
def test_the_first_signal_unwinds(number: signal.Signals, status: int, said: str) -> None:
    with _command(0) as command:
        command.send_signal(number)
        stdout, stderr = command.communicate(timeout=60)
    assert stdout == "cleaning\nclean\n"
    assert command.returncode == status
    assert stderr == said


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_leaves_at_once(number: signal.Signals, status: int) -> None:
    with _command(300) as command:
        assert command.stdout is not None
        command.send_signal(number)
        assert command.stdout.readline() == "cleaning\n"
        command.send_signal(number)
        stdout, _ = command.communicate(timeout=60)
    assert stdout == ""
    assert command.returncode == status


def test_usr1_shows_the_stacks_and_goes_on() -> None:
    with _command(0) as command:
        assert command.stderr is not None
        command.send_signal(signal.SIGUSR1)
        lines = iter(command.stderr.readline, "")
        assert "most recent call first" in next(lines)
        assert any("in dispatch" in line for line in lines)
        assert command.poll() is None
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=60)
    assert command.returncode == 143


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_an_import_is_raised_after_it(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    (tmp_path / "slow_module.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\n"
        "for _ in range(10**5): pass\nprint('imported', flush=True)\n"
    )
    script = (
        "import time\nimport coldstart_cli.app as app\n"
        "def dispatch(arguments):\n import slow_module\n time.sleep(20)\n"
        "app._dispatch = dispatch\napp.main([])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (status, "imported\n")


@pytest.mark.parametrize("full", [False, True])
def test_a_signal_while_the_answer_is_written_neither_repeats_it_nor_waits_for_a_reader(full: bool) -> None:
    script = (
        "import coldstart_cli.app as app\n"
        "def dispatch(arguments):\n"
        " print('ready', flush=True)\n"
        f" text = 'x' * {1 << 20 if full else 1}\n"
        " while True: print(text, flush=True)\n"
        "app._dispatch = dispatch\napp.main([])\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        command.send_signal(signal.SIGTERM)
        if full:  # nobody reads any more
            assert command.wait(timeout=60) == 143
            return
        rest = command.stdout.read()
        assert command.wait(timeout=60) == 143
    assert set(rest.splitlines()) <= {b"x"}
