"""Stores that are down: found out once, quickly, and only by those who have copies to go on with."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from coldstart_cli.errors import PermissionNeededError, UnreachableError
from coldstart_fs.stores import object_clients, outages
from coldstart_fs.stores.references import resolve_image, write_ref
from coldstart_fs.stores.store_url import open_store
from fs import servers
from fs.servers import FaultyServer

DIGEST = bytes(range(32))


@pytest.fixture
def known(faulty: FaultyServer, hasty: None, tmp_path: Path) -> Path:
    """A cache that knows what a name means in the store."""
    folder = open_store(str(faulty.root / "store"), create=True)
    with folder.writing():
        write_ref(folder, "app", DIGEST)
    cache = tmp_path / "cache"
    assert resolve(faulty, cache) == (DIGEST, [])
    faulty.requests.clear()
    return cache


def resolve(faulty: FaultyServer, cache: Path) -> tuple[bytes, list[str]]:
    """What the name means, and what was told; as a process of its own would ask."""
    told: list[str] = []
    store = open_store(f"{faulty.url}/store")
    return resolve_image(store, "app", cache=cache, tell=told.append).digest, told


def notes(cache: Path) -> list[Path]:
    return list((cache / "outages-v1").glob("*"))


def test_a_store_that_is_down_is_asked_once_for_all(faulty: FaultyServer, known: Path) -> None:
    faulty.fault = servers.reset
    for reason in ("going on with what the cache knows", "it did not answer a moment ago"):
        digest, told = resolve(faulty, known)
        assert digest == DIGEST
        assert len(told) == 1
        assert reason in told[0]
    assert len(faulty.requests) == 1


def test_it_is_asked_again_after_a_while_and_an_answer_ends_the_outage(
    faulty: FaultyServer, known: Path
) -> None:
    faulty.fault = servers.reset
    resolve(faulty, known)
    (note,) = notes(known)
    long_ago = time.time() - outages.KNOWN_SECONDS - 1
    os.utime(note, (long_ago, long_ago))
    faulty.fault = lambda _: False
    assert resolve(faulty, known) == (DIGEST, [])
    assert notes(known) == []


def test_a_clock_that_was_set_back_hides_no_store(faulty: FaultyServer, known: Path) -> None:
    faulty.fault = servers.reset
    resolve(faulty, known)
    (note,) = notes(known)
    os.utime(note, (time.time() + 3600,) * 2)
    faulty.fault = lambda _: False
    assert resolve(faulty, known) == (DIGEST, [])


def test_who_has_no_copy_asks_with_all_patience(faulty: FaultyServer, known: Path) -> None:
    faulty.fault = servers.reset
    resolve(faulty, known)
    faulty.requests.clear()
    with pytest.raises(UnreachableError):
        resolve_image(open_store(f"{faulty.url}/store"), "other", cache=known)
    assert len(faulty.requests) > 1


def test_a_refusal_is_no_outage(faulty: FaultyServer, known: Path) -> None:
    faulty.fault = servers.answer(403)
    assert "access is refused" in resolve(faulty, known)[1][0]
    assert notes(known) == []


def test_a_refused_connection_costs_a_known_image_nothing(known: Path, faulty: FaultyServer) -> None:
    faulty.fault = servers.reset
    store = open_store(f"http://127.0.0.1:{servers.free_port()}")
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        store.hasty().get("refs/app")
    assert time.monotonic() - began < 5


def test_credentials_that_are_refused_are_made_anew_once_for_all(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token of a container's role expires early: whoever is refused waits for one new one."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    (faulty.root / "bucket/x").mkdir(parents=True)
    (faulty.root / "bucket/x/object").write_bytes(b"content")
    tokens = ["old"]
    asked: list[str] = []

    def role(handler: servers.FaultyHandler) -> bool:
        if handler.path.startswith("/role"):
            asked.append(handler.path)
            body = (
                f'{{"AccessKeyId": "A", "SecretAccessKey": "s", "Token": "{tokens[0]}", '
                '"Expiration": "2100-01-01T00:00:00Z"}'
            )
            handler.say(200, body.encode(), {"Content-Type": "application/json"})
            return True
        if handler.headers.get("x-amz-security-token") != tokens[0]:
            handler.say(403, b"<Error><Code>ExpiredToken</Code></Error>")
            return True
        return False

    faulty.fault = role
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{faulty.url}/role")
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_store("s3://bucket/x")
    assert store.get_range("object", 0, 7) == b"content"
    tokens[0] = "new"
    asked.clear()
    gate = Barrier(8)

    def read(_: int) -> bytes:
        gate.wait(60)
        return store.get_range("object", 0, 7)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [b"content"] * 8
    assert len(asked) == 1
    tokens[0] = "newer"
    with pytest.raises(PermissionNeededError):  # not again at once, whoever asks
        store.get_range("object", 0, 7)
    monkeypatch.setattr(object_clients, "RENEW_SECONDS", 0.0)
    assert store.get_range("object", 0, 7) == b"content"
