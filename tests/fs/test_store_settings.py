"""What a user writes about a store, in a URL or the environment, is refused by name when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, ConfigError, UsageError
from coldstart_fs.stores.object_store import ObjectStore
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from fs import servers

KINDS = {"AWS": "s3://bucket/x", "GOOGLE": "gs://bucket/x", "AZURE": "az://container/x"}
SECRET = "a-secret-that-nobody-may-see"
NO_URLS = [
    "=x",
    "x",
    "a b",
    "http://",
    "http://a b/",
    "://",
    "http://h:99999",
    "http://[",
    "/p",
    "ftp://h",
    "http://h\n",
]
ENDPOINTS = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_AUTHORITY_HOST",
    "AZURE_MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
]
SECRETS = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_TOKEN",
    "IDENTITY_HEADER",
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which every kind of store can be opened."""
    here = f"http://127.0.0.1:{servers.free_port()}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": here,
        "GOOGLE_BASE_URL": here,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
        "AZURE_STORAGE_ENDPOINT": f"{here}/account",
    }.items():
        monkeypatch.setenv(name, value)


def url_for(variable: str) -> str:
    return KINDS.get(variable.partition("_")[0], KINDS["AZURE"])


@pytest.mark.parametrize("variable", ENDPOINTS)
@pytest.mark.parametrize("value", NO_URLS)
def test_an_endpoint_that_is_no_url_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^{variable} ") as caught:
        open_store(url_for(variable))
    assert variable in str(caught.value.hint)


@pytest.mark.parametrize("variable", SECRETS)
def test_a_secret_with_a_line_end_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"{SECRET}\n")
    with pytest.raises(ConfigError, match=f"{variable} holds characters that cannot be printed") as caught:
        open_store(url_for(variable))
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_a_key_that_is_a_document_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CREDENTIALS", '{\n "type": "service_account"\n}')
    assert open_store(KINDS["GOOGLE"]).url == KINDS["GOOGLE"]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_REGION", "a b", "not the name of a region"),
        ("AWS_DEFAULT_REGION", "é", "not the name of a region"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/a b", "not a path"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "a b", "not the name of an account"),
        ("AWS_PROXY_URL", "a b", "not a URL"),
    ],
)
def test_names_that_cannot_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable} is {message}"):
        open_store(url_for(variable))


@pytest.mark.parametrize(
    "variable", ["AWS_ENDPOINT_URL_S3", "AWS_REGION", "GOOGLE_BEARER_TOKEN", "IDENTITY_ENDPOINT"]
)
def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(ColdstartError, match=r"cannot reach .*refused") as caught:
        open_store(url_for(variable)).get("refs/a")
    assert not isinstance(caught.value, ConfigError)


def test_a_panic_of_the_library_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_fs.stores.object_clients.check_settings", lambda _: None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "=x")
    store = open_store(KINDS["AWS"])
    assert isinstance(store, ObjectStore)
    acts = [
        lambda: store.get("refs/a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.size("a"),
        lambda: store.put_bytes("refs/a", b"x"),
        lambda: store.list(""),
        store.check_writable,
    ]
    for act in acts:
        with pytest.raises(ConfigError, match="gave up on a setting") as caught:
            act()
        assert caught.value.hint == "check the variables AWS_*"


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("s3://B A D/x", "not the name of a bucket: s3://B A D/x", None),
        ("gs://a<b>", "not the name of a bucket", None),
        ("az://a|b", "not the name of a bucket", None),
        ("s3://bucket/a\nb", r"cannot be printed: 's3://bucket/a\\nb'", None),
        ("s3://buc\tket", "cannot be printed", None),
        ("s3://bucket/\udc80", "cannot be printed", None),
        ("http://a b/", "not the name of a server: http://a b", None),
        ("http://h%zz/", "not the name of a server", None),
        ("http://", "store URL names no server: http://", "write http://HOST/PATH"),
        ("s3://", "store URL names no bucket: s3://", "write s3://BUCKET/PREFIX"),
        ("S3://x", "unknown kind of store: S3://", "did you mean `s3`?"),
        ("s3:/x/y", "not a store's URL: s3:/x/y", "did you mean `s3://x/y`? a folder would be `./s3:/x/y`"),
        ("gs:x", "not a store's URL: gs:x", "did you mean `gs://x`? a folder would be `./gs:x`"),
        ("HTTPS:/h", "not a store's URL", "did you mean `https://h`? a folder would be `./HTTPS:/h`"),
        (
            "file:/x",
            "not a store's URL",
            "did you mean `file:///x`? a folder would be `./file:/x`",
        ),
    ],
)
def test_urls_that_cannot_be_are_refused(url: str, message: str, hint: str | None) -> None:
    for create in (False, True):
        with pytest.raises(UsageError, match=message) as caught:
            open_store(url, create=create)
        assert caught.value.hint == hint


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./s3:", "v1:2"):
        assert open_store(name, create=True).url == str(tmp_path / name)


def test_an_ordinary_address_of_each_kind_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://[fd00:ec2::254]:80/")
    for url in (
        "s3://my.bucket-1/a b/é",
        "gs://b_1",
        "az://$web/x",
        "http://h_1:80/x",
        "https://[::1]:8443",
        "https://bücher.example",
    ):
        store: Store = open_store(url)
        assert store.url == url
