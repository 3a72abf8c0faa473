"""Without root: one's own processes, with CAP_CHECKPOINT_RESTORE and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Coldstart
from snapshot.servers import PYTHON, SERVER, free_port, require_engine

NAMESPACE = str(Path(__file__).with_name("user_namespace.py"))
USER = 1000
ONE = "checkpoint_restore"

# the namespace's first process is this shell: all that it leaves ends with it
SCRIPT = r"""
setsid {python} -c "$SERVER" {port} {folder} none </dev/null >{folder}/log 2>&1 &
server=$!
for attempt in $(seq 200); do
  {python} -c "import urllib.request as r; r.urlopen('{url}')" 2>/dev/null && break
  sleep 0.1
done
{steps}
"""
COUNT = """{python} -c "import urllib.request as r; print('count', r.urlopen('{url}').read().decode())" """


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user can reach: pytest's own are for root alone."""
    require_engine()
    if shutil.which("setpriv") is None:
        pytest.skip("program is not installed: setpriv")
    for needed in (NAMESPACE, sys.executable):
        if not all(parent.stat().st_mode & 0o001 for parent in Path(needed).parents):
            pytest.skip(f"other users than root cannot reach {needed}")
    path = Path(tempfile.mkdtemp(prefix="coldstart-user-"))
    os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path)


def _as_user(
    coldstart: Coldstart, folder: Path, steps: str, *, capability: str = ONE, bounding: str = "+all"
) -> subprocess.CompletedProcess[str]:
    """Run steps beside a small server, both as the user; $server is its number."""
    port = free_port()
    words = {
        "python": PYTHON,
        "port": port,
        "folder": folder,
        "url": f"http://127.0.0.1:{port}/count",
        "coldstart": coldstart.program,
    }
    script = SCRIPT.format(**words, steps=steps.format(**words, count=COUNT.format(**words)))
    capabilities = f"-all,+{capability}" if capability else "-all"
    environment = {
        "PATH": os.environ["PATH"],
        "SERVER": SERVER,
        "HOME": str(folder),
        "COLDSTART_STATE_DIR": str(folder / "state"),
        "COLDSTART_RUN_DIR": str(folder / "run"),
    }
    command = [sys.executable, NAMESPACE, "setpriv", "--reuid", str(USER), "--regid", str(USER)]
    command += ["--clear-groups", "--inh-caps", capabilities, "--ambient-caps", capabilities]
    command += ["--bounding-set", bounding, "sh", "-c", script]
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_user_captures_and_restores_a_process_with_one_capability(
    coldstart: Coldstart, folder: Path
) -> None:
    steps = """
{count}
{coldstart} snap create web --pid $server --ready-url {url} --stop || exit 11
while kill -0 $server 2>/dev/null; do wait $server; done
rm {folder}/log
{coldstart} snap restore web --detach || exit 12
{count}
"""
    result = _as_user(coldstart, folder, steps)
    assert result.returncode == 0, result.stderr
    counts = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("count ")]
    assert counts[1] > counts[0] > 0
    assert "ready after" in result.stdout


def test_a_user_without_the_capability_is_told_how_to_get_it(coldstart: Coldstart, folder: Path) -> None:
    steps = "{coldstart} snap create web --pid $server; exit $?"
    result = _as_user(coldstart, folder, steps, capability="")
    assert result.returncode == 77
    assert "capturing needs root, or for processes of one's own CAP_CHECKPOINT_RESTORE" in result.stderr
    assert "sudo setpriv --reuid 1000 --regid 1000 --init-groups" in result.stderr


def test_a_user_captures_no_containers_and_no_processes_of_others(coldstart: Coldstart, folder: Path) -> None:
    steps = """
{coldstart} snap create web --container some; echo status $?
{coldstart} snap create web --pid 1; echo status $?
"""
    result = _as_user(coldstart, folder, steps)
    assert "capturing containers needs root" in result.stderr
    assert result.stdout.splitlines()[0] == "status 77"


def test_a_process_that_a_restore_would_take_capabilities_from_is_refused(
    coldstart: Coldstart, folder: Path
) -> None:
    steps = "{coldstart} snap create web --pid $server; exit $?"
    result = _as_user(coldstart, folder, steps, bounding="-sys_time")
    assert result.returncode == 69
    assert "without CAP_SETPCAP: its bounding set lacks CAP_SYS_TIME" in result.stderr


def test_a_check_says_the_same_of_such_a_process(coldstart: Coldstart, folder: Path) -> None:
    result = _as_user(
        coldstart, folder, "{coldstart} snap check --pid $server; exit $?", bounding="-sys_time"
    )
    assert result.returncode == 3
    assert "capability-missing: process" in result.stdout
    assert "without CAP_SETPCAP: its bounding set lacks CAP_SYS_TIME" in result.stdout


def test_root_without_the_capabilities_of_a_host_is_told_which_are_missing(
    coldstart: Coldstart, folder: Path
) -> None:
    command = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-all"]
    result = subprocess.run(
        [*command, coldstart.program, "snap", "create", "web", "--pid", "1"],
        env=coldstart.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 77
    assert "capturing needs capabilities that root lacks here: CAP_SYS_PTRACE" in result.stderr
    assert "--cap-add SYS_PTRACE" in result.stderr
