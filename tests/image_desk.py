"""One image in a store, an empty folder and the command, for tests of commands that mount."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.process import start_ticks
from coldstart_fs.format.names import digest_text
from coldstart_fs.indexing.build import index_image
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart, Result, wait_until


@dataclass(frozen=True)
class Desk:
    """One image in a store, an empty folder, and the command."""

    run: Coldstart
    store: Path
    digest: str
    point: Path
    folder: Path

    def mount(self, *options: str | Path, name: str = "app/server") -> Result:
        return self.run("image", "mount", name, self.point, "--store", self.store, *options)

    def unmount(self) -> Result:
        return self.run("image", "unmount", self.point)


@contextmanager
def open_desk(coldstart: Coldstart, tmp_path: Path) -> Iterator[Desk]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and FUSE")
    source, point = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    point.mkdir()
    (source / "hello").write_bytes(b"hello world\n")
    (source / "large").write_bytes(os.urandom(700_000))
    store = tmp_path / "store"
    report = index_image(f"dir:{source}", store=open_store(str(store), create=True), name="app/server")
    yield Desk(coldstart, store, digest_text(report.digest), point, tmp_path)
    while mount_at(point) is not None:
        coldstart("image", "unmount", point)
        subprocess.run(["umount", "-l", point], check=False, timeout=60, stderr=subprocess.DEVNULL)


def kill_all(mounted: dict[str, Any]) -> None:
    """Kill keeper and server of a mount, and wait for their end."""
    pids = [mounted["keeper_pid"], mounted["server_pid"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(start_ticks, pids)), "the end of keeper and server")


def error(result: Result) -> str:
    return result.stderr.split("coldstart: error: ", 1)[1].split("\n", 1)[0]


def in_namespace(desk: Desk, preparation: str, *command: str | Path) -> Result:
    script = f'set -e\n{preparation}\nexec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=desk.run.environment,
        cwd=desk.folder,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def as_user(desk: Desk, preparation: str, *command: str | Path) -> Result:
    """Run as nobody, who sees the test's folder at /mnt and has folders of his own in it."""
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    names = ("RUN", "CACHE", "STATE")
    for name in names:
        (desk.folder / f"user-{name}").mkdir(exist_ok=True)
        os.chown(desk.folder / f"user-{name}", 65534, 65534)
    os.chown(desk.point, 65534, 65534)
    opened = f"mount --bind {desk.folder} /mnt; chmod 755 {desk.folder}; chmod -R a+rX {desk.store}"
    return in_namespace(
        desk,
        f"{opened}\n{preparation}",
        *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
        *("env", "HOME=/mnt", "CONFIGURATION_DIRECTORY=/mnt/absent", "COLDSTART_STORE=/mnt/store"),
        *(f"COLDSTART_{name}_DIR=/mnt/user-{name}" for name in names),
        *command,
    )
