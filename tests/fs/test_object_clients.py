"""Clients of remote stores: what URLs, the environment and certificates say, and no secret repeated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    ColdstartError,
    ConfigError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UsageError,
)
from coldstart_fs.stores import object_clients
from coldstart_fs.stores.object_clients import Location
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.tiers.attempt import Attempt
from coldstart_fs.tiers.breaker import Permit
from coldstart_fs.tiers.failure import TierFailure
from coldstart_fs.tiers.http_source import HttpSource
from coldstart_fs.tiers.settings import TierSettings
from coldstart_fs.tiers.source import Span
from fs import servers
from fs.conftest import Bucket
from fs.servers import FaultyServer, nginx

CONTENT = bytes(range(256)) * 40
SECRET = "a-secret-that-nobody-may-see"


def test_s3_refusals_name_the_servers_code_and_no_secret(
    faulty: FaultyServer, bucket: Bucket, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.url)
    store = open_store("s3://bucket/x")
    cases: list[tuple[int, str, type[ColdstartError], str]] = [
        (403, "SignatureDoesNotMatch", PermissionNeededError, "403 Forbidden .SignatureDoesNotMatch."),
        (400, "ExpiredToken", PermissionNeededError, "400 Bad Request .ExpiredToken."),
        (400, "AuthorizationHeaderMalformed", IoFailure, "wrong region"),
        (400, "EntityTooLarge", IoFailure, "the server answers 400 Bad Request .EntityTooLarge."),
    ]
    for status, code, kind, message in cases:
        body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
        faulty.fault = servers.answer(status, body.encode())
        for act in (
            lambda: store.get("refs/a"),
            lambda: store.put_bytes("refs/a", b"x"),
            lambda: store.list(""),
        ):
            with pytest.raises(kind, match=message) as caught:
                act()
            assert SECRET not in f"{caught.value} {caught.value.hint}"
            assert "AKIDEXAMPLE" not in f"{caught.value} {caught.value.hint}"


def test_a_host_without_credentials_is_told_what_to_set(
    faulty: FaultyServer, bucket: Bucket, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.fault = servers.answer(404)  # instance metadata of a host that has no role
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", faulty.url)
    with pytest.raises(PermissionNeededError, match=f"no credentials for {bucket.url}") as caught:
        open_store(bucket.url).get("refs/a")
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


def test_credentials_do_not_leave_this_host_in_the_clear(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL is plain http") as caught:
        open_store(bucket.url)
    assert caught.value.hint == "use https, or set AWS_ALLOW_HTTP=true"
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert open_store(bucket.url).url == bucket.url


@pytest.mark.parametrize(
    ("url", "kind", "bucket", "prefix"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/a/b/", "s3", "bucket", "a/b"),
        ("gs://bucket/a", "gs", "bucket", "a"),
        ("az://container/a", "az", "container", "a"),
        ("http://host:8080/a/", "http", "host:8080", "a"),
        ("https://host", "https", "host", ""),
    ],
)
def test_urls_name_a_kind_a_bucket_and_a_prefix(url: str, kind: str, bucket: str, prefix: str) -> None:
    location = Location.parse(url)
    assert (location.kind, location.bucket, location.prefix) == (kind, bucket, prefix)
    assert location.url == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s4://bucket", "unknown kind of store: s4://"),
        ("s3:///prefix", "store URL names no bucket"),
        ("s3://bucket/a/../b", "empty, `.` or `..` component"),
        (f"https://user:{SECRET}@host/x", "no user, password, query or fragment: https://host/x"),
        (f"https://host/x?sig={SECRET}", "no user, password, query or fragment: https://host/x"),
        ("http://host:port/x", "not a store's URL"),
    ],
)
def test_urls_that_cannot_be_are_refused_and_no_secret_repeated(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        open_store(url)
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_an_azure_store_wants_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="no storage account for az://container/x"):
        open_store("az://container/x")


def test_a_host_that_trusts_no_authority_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(variable, "/nonexistent")
    open_store("http://127.0.0.1:1/store")  # which needs none
    with pytest.raises(ConfigError, match="trusts no certificate authority") as caught:
        open_store("https://127.0.0.1:1/store")
    assert caught.value.hint is not None
    assert "ca-certificates" in caught.value.hint


def test_opening_a_store_makes_one_client_since_each_reads_all_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    monkeypatch.setattr(object_clients, "connect", lambda *_, **patience: made.append(patience))
    open_store("http://127.0.0.1:1/store")
    assert len(made) == 1


def test_azure_refusals_are_told_apart(
    faulty: FaultyServer, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{faulty.url}/account")
    (faulty.root / "account/container/x").mkdir(parents=True)
    (faulty.root / "account/container/x/object").write_bytes(CONTENT)
    store = open_store("az://container/x")
    with pytest.raises(NotFoundError, match="object is not in the store: az://container/x/refs/a"):
        store.get("refs/a")
    faulty.fault = servers.answer(403)
    with pytest.raises(PermissionNeededError, match="403") as caught:
        store.get("refs/a")
    assert "AZURE_STORAGE_ACCOUNT_KEY" in str(caught.value.hint)
    # who is refused asks once more, with new credentials
    assert [path for _, path, _ in faulty.requests] == ["/account/container/x/refs/a"] * 3


def test_a_private_authority_is_trusted_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_store(str(tmp_path / "folder"), create=True)
    with folder.writing():
        folder.put_bytes("images/x", CONTENT)
    (tmp_path / "extensions").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=store",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 2 -extfile extensions -out cert.pem",
    ):
        subprocess.run(
            ["openssl", *command.split()], cwd=tmp_path, capture_output=True, check=True, timeout=60
        )
    more = f"ssl_certificate {tmp_path}/cert.pem; ssl_certificate_key {tmp_path}/key.pem;"
    with nginx(tmp_path / "nginx", tmp_path / "folder", more=more, options="ssl") as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(IoFailure, match="its certificate is not trusted") as caught:
            open_store(url).get("images/x")
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        with pytest.raises(IoFailure, match="its certificate is not trusted") as caught:
            read_in_tiers(url, "images/x", 10, 500)
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert open_store(url).get("images/x") == CONTENT
        assert read_in_tiers(url, "images/x", 10, 500) == CONTENT[10:510]


def read_in_tiers(url: str, key: str, offset: int, length: int) -> bytes:
    """A range through the client of HTTP tiers, which is another one than that of stores."""
    source = HttpSource(Location.parse(url), TierSettings(url))
    attempt = Attempt(Permit(probe=False), read_seconds=10, connect_seconds=10)
    try:
        return bytes(source.read(key, Span(offset, length), attempt, fresh=False))
    except TierFailure as failure:
        raise failure.error from None
    finally:
        source.close()
