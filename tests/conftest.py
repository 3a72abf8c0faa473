"""Shared by all tests: folders of their own, the installed command, capabilities in the header."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_cli.files import mounts_below
from stand_ins.kernel_log import KernelLogFile

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
_COLOR_VARIABLES = (
    "GITHUB_ACTIONS",
    "FORCE_COLOR",
    "PY_COLORS",
    "NO_COLOR",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
)


@dataclass(frozen=True)
class Result:
    """What one run of the installed command left."""

    status: int
    stdout: str
    stderr: str


class Coldstart:
    """Runs the installed `coldstart` in a process of its own, with a deadline."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        self.program = str(Path(sys.executable).parent / "coldstart")

    def __call__(
        self,
        *arguments: str | Path,
        timeout_seconds: float = 120,
        environment: dict[str, str] | None = None,
    ) -> Result:
        process = subprocess.run(
            [self.program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=self.environment | (environment or {}),
            cwd=self.folder,
            check=False,
        )
        return Result(
            process.returncode,
            process.stdout.decode("utf-8", "surrogateescape"),
            process.stderr.decode("utf-8", "surrogateescape"),
        )


@pytest.fixture(scope="session")
def clean_kernel_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KernelLogFile(tmp_path_factory.mktemp("kernel-log")).path


@pytest.fixture
def kernel_log(tmp_path: Path, isolated_environment: None, monkeypatch: pytest.MonkeyPatch) -> KernelLogFile:
    """A kernel log of this test's own, which the product reads."""
    log = KernelLogFile(tmp_path)
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", str(log.path))
    return log


@pytest.fixture(autouse=True)
def isolated_environment(
    tmp_path: Path, clean_kernel_log: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No COLDSTART_* of the caller, all folders below the test's own, no mount left behind."""
    for name in list(os.environ):
        if name.startswith("COLDSTART_") or name in _COLOR_VARIABLES:
            monkeypatch.delenv(name)
    # operators do not set it, and it would hide output that is not flushed
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for name in ("state", "cache", "run"):
        monkeypatch.setenv(f"COLDSTART_{name.upper()}_DIR", str(tmp_path / "coldstart" / name))
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", str(tmp_path / "coldstart" / "etc"))
    # what the kernel of the machine that runs the tests went through must not decide them
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", str(clean_kernel_log))
    monkeypatch.setenv("COLDSTART_PROGRAMS_JOURNALCTL", "/nonexistent/journalctl")
    yield
    left = mounts_below(tmp_path)
    for point in left:
        subprocess.run(["umount", "-l", point], check=False, timeout=20)
    assert not left, f"mounts left behind: {left}"


@pytest.fixture
def coldstart(tmp_path: Path, isolated_environment: None) -> Coldstart:
    return Coldstart(dict(os.environ), tmp_path)


def wait_until(condition: Callable[[], bool], what: str, timeout_seconds: float = 30) -> None:
    """Bounded waiting: poll until `condition` holds or fail with what was waited for."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"still waiting after {timeout_seconds} s: {what}")
        time.sleep(0.02)


def shared_data(relative: str) -> Path:
    """A recorded sample, or a skip that says why it is absent."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"sample data is not here: {relative}")
    return path


def _has(program: str) -> bool:
    return (
        shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
        is not None
    )


def pytest_report_header() -> list[str]:
    present = [
        name
        for name in ("criu", "runc", "fusermount3", "skopeo", "umoci", "qemu-system-x86_64")
        if _has(name)
    ]
    return [
        f"coldstart: root={os.geteuid() == 0} fuse={os.path.exists('/dev/fuse')} "
        f"gpu={os.path.exists('/dev/nvidiactl')} programs={','.join(present)}"
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    full = bool(config.getoption("--full"))
    for item in items:
        if not full and (item.get_closest_marker("full") or item.get_closest_marker("qemu")):
            item.add_marker(pytest.mark.skip(reason="slow proof: make test-full"))
        if item.get_closest_marker("gpu") and not os.path.exists("/dev/nvidiactl"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this host"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow proofs too")
