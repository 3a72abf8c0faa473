"""Clients of remote stores, made of a URL and the environment: deadlines, retries, and no secret shown."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coldstart_cli.errors import ConfigError, UnavailableError, UsageError
from coldstart_cli.version import __version__
from coldstart_fs.stores.object_settings import check_settings, gave_up, read_credentials, variables

if TYPE_CHECKING:
    from obstore.store import AzureStore, ClientConfig, GCSStore, HTTPStore, RetryConfig, S3Store

    Client = S3Store | GCSStore | AzureStore | HTTPStore

KINDS = ("http", "https", "s3", "gs", "az")
_INSTALL_HINT = "pip install 'coldstart[image]'"
_PERMISSION_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or let this host's role use the bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or let this host's service account use the bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or let this host's identity use it",
    "http": "let this host read the store in the server's configuration",
}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_HOST = re.compile(r"[^\s\"%<>\\^`{|}]+")
CONNECT_SECONDS = 5.0
HASTY_CONNECT_SECONDS = 2.0
READ_SECONDS = 15.0
"""How long a server may be silent."""
RANGE_SECONDS = 30.0
OBJECT_SECONDS = 600.0
"""For one object whole, and for one part of an upload."""
RETRIES = 3
RETRY_SECONDS = 30.0
"""After that long no other attempt is begun."""
RENEW_SECONDS = 10.0


@dataclass(frozen=True)
class Location:
    """Where a remote store is. `kind` is the URL's scheme, `bucket` the server for http."""

    kind: str
    bucket: str
    prefix: str
    credentials: Path | None = None
    """A file with variables that count for this store alone, before those of the environment."""

    @classmethod
    def parse(cls, url: str, *, whose: str = "store") -> Location:
        """Refuse in words what is no URL of a store, or `whose` it is; a secret in it is not repeated."""
        # urlsplit drops line ends and tabs without a word
        if not url.isprintable():
            raise UsageError(
                f"{whose} URL holds characters that cannot be printed: {url.partition('?')[0]!a}"
            )
        try:
            parts = urlsplit(url)
            host, password = parts.hostname, parts.username is not None or parts.password is not None
            _ = parts.port
        except ValueError as error:
            raise UsageError(f"not a {whose}'s URL: {url.partition('?')[0]}") from error
        clean = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        if password or parts.query or parts.fragment:
            raise UsageError(
                f"a {whose}'s URL has no user, password, query or fragment: {clean}",
                hint="see CREDENTIALS in coldstart(1): they are taken from the environment",
            )
        if not host:
            raise _names_nothing(parts.scheme, whose)
        if not (_HOST if parts.scheme in {"http", "https"} else _BUCKET).fullmatch(host):
            wrong = "server" if parts.scheme in {"http", "https"} else "bucket"
            raise UsageError(f"not the name of a {wrong}: {clean}")
        prefix = parts.path.strip("/")
        if any(part in {"", ".", ".."} for part in prefix.split("/")) and prefix:
            raise UsageError(f"{whose} URL has an empty, `.` or `..` component: {clean}")
        return cls(parts.scheme, parts.netloc, prefix)

    @property
    def url(self) -> str:
        return f"{self.kind}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def permission_hint(self) -> str:
        return _PERMISSION_HINTS.get(self.kind, _PERMISSION_HINTS["http"])


def _names_nothing(scheme: str, whose: str) -> UsageError:
    if scheme in {"http", "https"}:
        return UsageError(f"{whose} URL names no server: {scheme}://", hint=f"write {scheme}://HOST/PATH")
    return UsageError(f"store URL names no bucket: {scheme}://", hint=f"write {scheme}://BUCKET/PREFIX")


def connect(
    location: Location,
    *,
    total_seconds: float,
    read_seconds: float | None,
    connect_seconds: float | None = None,
    retries: int | None = None,
) -> Client:
    """A client whose requests end in `total_seconds`; its server may be silent for `read_seconds`."""
    check_settings(location.kind)
    own = read_credentials(location.credentials, location.kind) if location.credentials else {}
    try:
        from obstore import store as kinds
    except ImportError as error:
        raise UnavailableError("Python package is not installed: obstore", hint=_INSTALL_HINT) from error
    options: ClientConfig = {
        "allow_http": _allow_http(location, own),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS if connect_seconds is None else connect_seconds),
        "timeout": timedelta(seconds=total_seconds),
        "user_agent": f"coldstart/{__version__}",
    }
    if location.kind == "http":
        # nobody proves who he is there, so that the certificates of the host need not be read (obstore 0.12
        # reads all of them for each client: 145 files of a cold disk)
        options["allow_invalid_certificates"] = True
    if read_seconds is not None:
        options["read_timeout"] = timedelta(seconds=read_seconds)
    retry: RetryConfig = {
        "max_retries": RETRIES if retries is None else retries,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }
    settings: dict[str, Any] = {"client_options": options, "retry_config": retry}
    try:
        if location.kind in {"http", "https"}:
            return kinds.HTTPStore(location.url, **settings)
        if own:
            settings["config"] = {name.lower(): value for name, value in own.items()}
        maker = {"s3": kinds.S3Store, "gs": kinds.GCSStore, "az": kinds.AzureStore}[location.kind]
        made: Client = maker(location.bucket, prefix=location.prefix or None, **settings)
    except BaseException as error:
        # errors are of several kinds, none of which says what is wrong in our words
        if not isinstance(error, Exception) and not gave_up(error):
            raise
        raise _unusable(location, error) from None
    return made


class Clients:
    """The clients of one store, by what they are for; made anew, once for all, when refused. Thread-safe."""

    def __init__(self, location: Location) -> None:
        self.generation = 0
        self._location = location
        self._made: dict[str, Client] = {}
        self._renewed = -RENEW_SECONDS
        self._lock = Lock()
        # at once, so that settings that do not fit are refused here; only one, since each reads certificates
        _ = self.objects

    @property
    def ranges(self) -> Client:
        return self._client("ranges", total_seconds=RANGE_SECONDS, read_seconds=READ_SECONDS)

    @property
    def single_tries(self) -> Client:
        """Of ranges, for those who do their own retrying."""
        return self._client("single", total_seconds=RANGE_SECONDS, read_seconds=READ_SECONDS, retries=0)

    @property
    def objects(self) -> Client:
        return self._client("objects", total_seconds=OBJECT_SECONDS, read_seconds=READ_SECONDS)

    @property
    def hasty(self) -> Client:
        """Of objects, for those who have something else in hand."""
        return self._client(
            "hasty",
            total_seconds=OBJECT_SECONDS,
            read_seconds=READ_SECONDS,
            connect_seconds=HASTY_CONNECT_SECONDS,
            retries=0,
        )

    @property
    def uploads(self) -> Client:
        # the library counts the sending of a part as silence
        return self._client("uploads", total_seconds=OBJECT_SECONDS, read_seconds=None)

    def renew(self, seen: int) -> bool:
        """New credentials after a refusal of those of generation `seen`; whether another try is worth while.

        A client keeps what it was given until that expires by itself. Those who were refused together
        wait for one renewal, and nobody begins another right after it.
        """
        if self._location.kind in {"http", "https"}:
            return False
        with self._lock:
            if self.generation != seen:
                return True
            if time.monotonic() - self._renewed < RENEW_SECONDS:
                return False
            self._renewed = time.monotonic()
            self.generation += 1
            self._made = {}
        return True

    def _client(self, purpose: str, **patience: Any) -> Client:
        with self._lock:
            made = self._made.get(purpose)
            if made is None:
                made = self._made[purpose] = connect(self._location, **patience)
            return made


def _unusable(location: Location, error: BaseException) -> ConfigError:
    if "MissingAccount" in str(error):
        return ConfigError(
            f"no storage account for {location.url}", hint="set AZURE_STORAGE_ACCOUNT_NAME to the account"
        )
    if "No CA certificates" in str(error):
        return ConfigError(
            f"this host trusts no certificate authority, which a store at {location.url} needs",
            hint="apt-get install ca-certificates, or set SSL_CERT_FILE to a file with certificates",
        )
    # the text may hold a key that cannot be read
    return ConfigError(
        f"environment does not fit a store at {location.url} ({type(error).__name__})",
        hint=f"check the variables {variables(location.kind)}",
    )


def _allow_http(location: Location, own: Mapping[str, str]) -> bool:
    """Credentials travel over plain http on this host alone, unless the environment says otherwise."""
    environment = {**os.environ, **own}
    if location.kind in {"http", "https"}:
        return location.kind == "http"
    for variable in _ENDPOINTS[location.kind]:
        endpoint = environment.get(variable)
        if not endpoint or not endpoint.lower().startswith("http://"):
            continue
        allow = _ALLOW_HTTP[location.kind]
        if not _is_loopback(urlsplit(endpoint).hostname or "") and environment.get(allow, "").lower() not in {
            "1",
            "true",
        }:
            raise ConfigError(
                f"{variable} is plain http and not on this host", hint=f"use https, or set {allow}=true"
            )
        return True
    return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
