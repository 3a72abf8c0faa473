"""What the environment says about remote stores, checked before a library reads it that panics on some."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit

from coldstart_cli.errors import ConfigError
from coldstart_cli.regular import INPUT_BYTES, open_regular

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_OTHERS = {"gs": ("SERVICE_ACCOUNT",), "az": ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT")}
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
_RELATIVE = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
_URLS = (
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FABRIC_TOKEN_SERVICE_URL",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)
_PROXIES = ("AWS_PROXY_URL", "GOOGLE_PROXY_URL", "AZURE_PROXY_URL")
_FORBIDDEN_IN_URLS = re.compile(r"[^!-~]|[\"<>\\^`{|}]")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def gave_up(error: BaseException) -> bool:
    """Whether the library panicked: its exception is no `Exception`, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


def panicked(url: str, kind: str) -> ConfigError:
    """What is left to say when it did: which of the settings it took for impossible is not known."""
    return ConfigError(
        f"cannot use `{url}`: the library for remote stores gave up on a setting",
        hint=f"check the variables {variables(kind)}",
    )


def variables(kind: str) -> str:
    """The environment variables that count for a kind of store, for messages."""
    return f"{_PREFIXES[kind]}*" if kind in _PREFIXES else "HTTP_PROXY and NO_PROXY"


def check_settings(kind: str) -> None:
    """Refuse by name a variable that cannot be used; its value may be a secret and is not shown.

    An empty variable is none: it is taken out of the environment, since the library would read it.
    """
    prefix = _PREFIXES.get(kind)
    if prefix is None:
        return
    for name in sorted(os.environ):
        if name.startswith(prefix) or name in _OTHERS.get(kind, ()):
            _check(name, os.environ[name])


def read_credentials(path: Path, kind: str) -> dict[str, str]:
    """The variables in a file of NAME=VALUE lines, checked as those of the environment are."""
    prefix = _PREFIXES.get(kind)
    if prefix is None:
        return {}
    try:
        with open(open_regular(path), encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid not in {0, os.geteuid()}:
                raise ConfigError(
                    f"others can read or change the file with credentials: {path}", hint=f"chmod 600 {path}"
                )
            text = stream.read(INPUT_BYTES + 1)
            if len(text) > INPUT_BYTES:
                raise ConfigError(f"file with credentials is larger than {INPUT_BYTES} bytes: {path}")
            lines = [line.strip() for line in text.splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read file with credentials: {path}", hint="see snapshot.credentials"
        ) from error
    found = {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.startswith(prefix) or not value:
            raise ConfigError(f"not a line of NAME=VALUE, or not for {kind}://: {path}, line {number}")
        _check(name, value.strip("\"'"))
        found[name] = value.strip("\"'")
    return found


def _check(name: str, value: str) -> None:
    if not value:
        os.environ.pop(name, None)
        return
    # documents, such as a key of Google's in JSON or a certificate, have lines
    if not value.isprintable() and not value.lstrip().startswith(("{", "-----BEGIN")):
        raise ConfigError(
            f"{name} holds characters that cannot be printed",
            hint=f"set {name} again, without a line end",
        )
    if name in _URLS and not _is_url(value):
        raise ConfigError(f"{name} is not a URL", hint=f"set {name} to https://HOST, or unset it")
    if name in _PROXIES and not _is_url(value, schemes=("http", "https", "socks5", "socks5h")):
        raise ConfigError(f"{name} is not a URL", hint=f"set {name} to http://HOST:PORT, or unset it")
    if name == _RELATIVE and (not value.startswith("/") or _FORBIDDEN_IN_URLS.search(value)):
        raise ConfigError(f"{name} is not a path", hint=f"set {name} to /PATH, or unset it")
    if name in _REGIONS and not _REGION.fullmatch(value):
        raise ConfigError(f"{name} is not the name of a region", hint=f"set {name} to a name like us-east-1")
    if name in _ACCOUNTS and not _ACCOUNT.fullmatch(value):
        raise ConfigError(f"{name} is not the name of an account", hint=f"set {name} to letters and digits")


def _is_url(value: str, *, schemes: tuple[str, ...] = ("http", "https")) -> bool:
    if _FORBIDDEN_IN_URLS.search(value):
        return False
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and not parts.query and not parts.fragment
