"""Shared by all tests: folders of their own, the installed command, capabilities in the header."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from left_behind import MARKER, Watch
from stand_ins.kernel_log import KernelLogFile

# a machine that is busy with other tests is slow, and that is no finding
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# the folder of all tests of this run, or of this worker
_ALL_TESTS = pytest.StashKey[Path]()

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


@pytest.fixture(autouse=True, scope="session")
def nothing_left_behind(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[None]:
    """What fixtures of modules and of the session start is ended by them, too."""
    watch = Watch(tmp_path_factory.getbasetemp())
    pytestconfig.stash[_ALL_TESTS] = watch.folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKER, str(watch.folder))
        yield
    left = watch.end()
    assert not left, "left behind by this run of tests: " + "; ".join(left)


@pytest.fixture(autouse=True)
def isolated_environment(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    nothing_left_behind: None,
    clean_kernel_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """No COLDSTART_* of the caller, all folders below the test's own, no process or mount left behind."""
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
    monkeypatch.setenv(MARKER, str(tmp_path))
    watch = Watch(tmp_path, shared=tmp_path_factory.getbasetemp())
    yield
    left = watch.end()
    assert not left, "left behind: " + "; ".join(left)


@pytest.fixture
def coldstart(tmp_path: Path, isolated_environment: None) -> Coldstart:
    return Coldstart(dict(os.environ), tmp_path)


# a condition may look at what is not there yet: a counter, a line, the second half of a document, a process
_NOT_YET = (LookupError, OSError, ValueError)


def umount(point: Path | str) -> None:
    """Unmount what tests mounted; threads of a call that was given up may hold files of it for a moment."""

    def unmounted() -> bool:
        done = subprocess.run(["umount", point], check=False, capture_output=True, timeout=60)
        if done.returncode and b"busy" not in done.stderr:
            pytest.fail(done.stderr.decode())
        return done.returncode == 0

    wait_until(unmounted, f"nobody uses {point}")


def wait_until(condition: Callable[[], object], what: str, timeout_seconds: float = 60) -> None:
    """Bounded waiting: poll until `condition` holds or fail with what was waited for."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        why = ""
        try:
            if condition():
                return
        except _NOT_YET as error:
            why = f": {error!r}"
        if time.monotonic() > deadline:
            pytest.fail(f"still waiting after {timeout_seconds} s: {what}{why}")
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


class _StartedForAll:
    """What a fixture of several tests starts is all tests', also where the first of them asks for it late."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        folder = request.config.stash.get(_ALL_TESTS, None)
        with pytest.MonkeyPatch.context() as patch:
            if folder is not None and fixturedef.scope != "function":
                patch.setenv(MARKER, str(folder))
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    # a fixture of the session asks no conftest below the root: it has to be a plugin
    config.pluginmanager.register(_StartedForAll())


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
        # tests/gpu/run.sh --stand-in runs them without one
        here = os.path.exists("/dev/nvidiactl") or os.environ.get("GPU_STAND_IN")
        if item.get_closest_marker("gpu") and not here:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this host"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow proofs too")
