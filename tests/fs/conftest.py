"""Mounts and servers for tests of the file system side."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_fs.stores import object_clients
from fs.mounts import Lab, laboratory
from fs.servers import FaultyServer, Request, S3Server, faulty_server, s3_server


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr("coldstart_fs.mounts.unmount._PATIENCE_SECONDS", 0.5)  # two seconds a test add up
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@dataclass
class Bucket:
    """A bucket of one test's own; the environment says how to reach it."""

    server: S3Server
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/stores/main"

    def requests(self) -> list[Request]:
        return self.server.requests(self.name)


@pytest.fixture
def bucket(moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # scratch folders are made and counted there
    name = f"bucket{secrets.token_hex(6)}"
    # no hyphen: requests as for Google Cloud Storage escape it, and moto takes it as it stands
    moto.make_bucket(name)
    return Bucket(moto, name)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyServer]:
    root = tmp_path / "served"
    root.mkdir()
    with faulty_server(root) as server:
        yield server


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(object_clients, "READ_SECONDS", 1.5)
    monkeypatch.setattr(object_clients, "RANGE_SECONDS", 3.0)
    monkeypatch.setattr(object_clients, "RETRY_SECONDS", 3.0)
