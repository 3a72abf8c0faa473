"""The cold command of a plain process: what is recorded of it, and that it starts again as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_snapshot.kept.cold import ColdCommand, from_table, read_cold_command, start_cold, to_table
from conftest import wait_until
from snapshot.servers import require_root

SHOW = "import os, sys; print(os.getcwd(), os.getgroups(), sys.executable, os.environ['A'], flush=True)"


def test_a_process_starts_again_in_its_folder_with_its_environment_user_and_interpreter(
    tmp_path: Path,
) -> None:
    require_root()
    # a virtual environment is found by the name under which the interpreter was called
    interpreter = tmp_path / "venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(os.path.realpath(sys.executable))
    original = subprocess.Popen(
        [str(interpreter), "-c", f"{SHOW}; import time; time.sleep(600)"],
        cwd="/usr",
        env={"A": "b c", "SERVICE_TOKEN": "secret"},
        extra_groups=[7, 8],
        umask=0o027,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert original.stdout is not None
        said = original.stdout.readline()
        command = read_cold_command(original.pid)
    finally:
        original.kill()
        original.communicate()
    assert (command.uid, command.groups, command.umask) == (0, (7, 8), 0o027)
    assert command.environment == {"A": "b c"}
    assert command.secret_variables == ("SERVICE_TOKEN",)
    assert any("SERVICE_TOKEN" in note for note in command.notes)
    assert from_table(to_table(command)) == command
    log = tmp_path / "log"
    with pytest.raises(UnavailableError, match="secrets that are not kept: SERVICE_TOKEN"):
        start_cold(command, log)
    started = start_cold(replace(command, secret_variables=()), log)
    try:
        wait_until(lambda: log.exists() and b"\n" in log.read_bytes(), "it has spoken")
        assert log.read_bytes() == said
        assert os.getsid(started.pid) == started.pid
    finally:
        started.kill()
        started.wait()


def test_what_cannot_be_started_cold_is_refused_with_the_reason(tmp_path: Path) -> None:
    command = ColdCommand(("/absent/server",), "/absent/server", "/", {}, 0, 0, ())
    with pytest.raises(UnavailableError, match="program is not installed: /absent/server"):
        start_cold(command, tmp_path / "log")
    hidden = replace(command, secret_arguments=("--api-key",))
    with pytest.raises(UnavailableError, match="its arguments held secrets: --api-key"):
        start_cold(hidden, tmp_path / "log")
    with pytest.raises(DataError, match="no program"):
        from_table({**to_table(command), "arguments": []})
