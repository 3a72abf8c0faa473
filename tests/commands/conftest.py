"""One small image for all tests of commands that run a server from an image."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_fs.format.names import digest_text
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart
from image_desk import Desk, open_desk
from ports import free_port
from replicas import Replica
from small_root import can_run_containers, make_root


@pytest.fixture(scope="session")
def server_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store with the image `server`, and its digest."""
    if reason := can_run_containers():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("server-image")
    report = index_image(
        f"dir:{make_root(folder / 'root')}",
        store=open_store(str(folder / "store"), create=True),
        name="server",
    )
    shutil.rmtree(folder / "root")
    yield folder / "store", digest_text(report.digest)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def replica(coldstart: Coldstart, server_store: tuple[Path, str], tmp_path: Path) -> Iterator[Replica]:
    """A specification of the small server; everything that its tests leave running is ended."""
    store, digest = server_store
    port = free_port()
    coldstart.environment["COLDSTART_STORE"] = str(store)
    # a busy machine must not decide these tests
    coldstart.environment["COLDSTART_HEALTH_WARN_PERCENT"] = "99.8"
    coldstart.environment["COLDSTART_HEALTH_FAIL_PERCENT"] = "99.9"
    name = f"t{os.getpid()}-{port}"
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'schema = "coldstart.spec"\nversion = 1\nname = "{name}"\nimage = "server@{digest}"\n'
        'command = ["/usr/bin/python3", "/srv/server.py"]\n'
        f'[environment]\nPORT = "{port}"\nGREETING = "hello"\n'
        f'[ready]\nurl = "http://127.0.0.1:{port}/health"\ntimeout_seconds = 30\n'
    )
    run_folder = Path(os.environ["COLDSTART_RUN_DIR"])
    yield Replica(coldstart, spec, name, port, run_folder)
    for folder in (run_folder / "replicas").glob("*/"):
        end = spec.read_text().replace(name, folder.name)
        ending = tmp_path / f"end-{folder.name}.toml"
        ending.write_text(end)
        coldstart("launch", ending, "--stop")
    runc = shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin")
    if runc and (run_folder / "runc").is_dir():
        left = subprocess.run(
            [runc, "--root", run_folder / "runc", "list", "-q"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout.split()
        for container in left:
            subprocess.run(
                [runc, "--root", run_folder / "runc", "delete", "-f", container], timeout=60, check=False
            )
        assert not left, f"containers left behind: {left}"


@pytest.fixture
def desk(coldstart: Coldstart, tmp_path: Path) -> Iterator[Desk]:
    """An image to mount; whatever its test leaves mounted is ended."""
    with open_desk(coldstart, tmp_path) as desk:
        yield desk
