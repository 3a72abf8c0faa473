"""What servers answer that are no stores, and what is said of it."""

from __future__ import annotations

import pytest

from coldstart_cli.errors import DataError, IoFailure
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store_url import open_store
from fs import servers
from fs.servers import FaultyServer


def test_a_server_without_tls_is_said_to_have_none(
    faulty: FaultyServer, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = faulty.url.replace("http:", "https:")
    with pytest.raises(IoFailure, match="the server does not speak TLS") as caught:
        resolve_image(open_store(url), "app")
    assert caught.value.exit_code == 74
    assert caught.value.hint == "write http:// if the server is meant to be read without TLS"
    for name, value in (("ACCESS_KEY_ID", "A"), ("SECRET_ACCESS_KEY", "s"), ("ENDPOINT_URL", url)):
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(IoFailure, match="the server does not speak TLS") as caught:
        resolve_image(open_store("s3://bucket/x"), "app")
    assert "AWS_ENDPOINT_URL" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "text/html"])
@pytest.mark.parametrize("body", [b"<html>log in</html>", b"\n <!DOCTYPE html>", b"<?xml version='1.0'?>"])
def test_a_page_is_no_damaged_name(faulty: FaultyServer, hasty: None, kind: str, body: bytes) -> None:
    faulty.fault = servers.answer(200, body, {"Content-Type": kind})
    store = open_store(faulty.url)
    for act in (
        lambda: resolve_image(store, "app"),
        lambda: resolve_image(store, "app@blake3:" + "0" * 64),
        store.confirm,
        lambda: store.get("images/x.index"),
    ):
        with pytest.raises(DataError, match="server sent a web page instead of an object") as caught:
            act()
        assert "login page" in str(caught.value.hint)


def test_contents_that_begin_like_a_page_are_contents(faulty: FaultyServer, hasty: None) -> None:
    served = open_store(faulty.url)
    (faulty.root / "packs").mkdir()
    (faulty.root / "packs/x").write_bytes(b"<html>" * 100)
    assert served.get("packs/x") == b"<html>" * 100
    assert served.get_range("packs/x", 0, 6) == b"<html>"


@pytest.mark.parametrize("body", [b"{}", b'{"error": "no"}', b"hello", b""])
def test_a_server_that_is_no_store_is_said_to_be_none(faulty: FaultyServer, hasty: None, body: bytes) -> None:
    faulty.fault = servers.answer(200, body, {"Content-Type": "application/json"})
    with pytest.raises(DataError, match=f"something else than a store answers at {faulty.url}") as caught:
        resolve_image(open_store(faulty.url), "app")
    assert caught.value.hint == "check the address of the store"
