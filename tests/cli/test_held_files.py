"""Files that a process holds in memory for the commands of its host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import coldstart_launch
from coldstart_cli.held_files import files_of_commands
from coldstart_snapshot.restoring.page_cache import resident_bytes
from conftest import wait_until

_SIZE_BYTES = 1 << 20
_HOLD = """
import sys, resource; from pathlib import Path; from coldstart_cli.held_files import hold_files
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (16, most))
hold_files([Path(name) for name in sys.argv[2:]], int(sys.argv[1]))
"""


def _resident(path: Path) -> int:
    """What of a file is in memory after the kernel was asked to let go of it."""
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return resident_bytes(stream.fileno())


def test_files_stay_in_memory_until_the_process_has_ended_that_they_are_held_for(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    with path.open("wb") as stream:
        stream.write(os.urandom(_SIZE_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
    if _resident(path):
        pytest.skip("the file system of the tests does not let go of its page cache")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    link.symlink_to(path)
    odd = [tmp_path / name for name in ("empty", "pipe", "missing", ".")]
    for number in range(40):  # more than the descriptors that it begins with
        odd.append(tmp_path / f"small-{number}")
        odd[-1].write_text("small")
    with subprocess.Popen(["/bin/sleep", "600"]) as server:
        try:
            command = [sys.executable, "-c", _HOLD, str(server.pid), *map(str, [*odd, link])]
            with subprocess.Popen(command) as holder:
                wait_until(lambda: _resident(path) == _SIZE_BYTES, "the file is held")
                server.terminate()
                assert holder.wait(60) == 0
        finally:
            server.kill()
    assert _resident(path) == 0


def test_programs_their_libraries_and_the_code_of_components_are_the_files_of_commands() -> None:
    cached = Path(coldstart_launch.__path__[0]) / "__pycache__" / f"chain.{sys.implementation.cache_tag}.pyc"
    if not cached.exists():
        pytest.skip("there is no byte code: Python was told to write none")
    found = set(files_of_commands())
    assert cached in found
    names = {path.name.partition(".")[0] for path in found}
    assert {"libc", "_ctypes", "sh"} <= names
    if shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin"):
        assert {"criu", "libnl-3"} <= names
    assert all(path.is_absolute() for path in found)
