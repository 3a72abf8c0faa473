"""Secrets in command lines and environments: found by their names, and never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

REDACTED = "[redacted]"
_READ_BYTES = 4 << 20
# the end of a name says what it is: HF_TOKEN and --api-key, not --max-tokens or TOKENIZERS_PARALLELISM
_LAST_WORDS = frozenset(
    [
        "token",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
        "apikey",
        "pat",
        "dsn",
        "pass",
        "auth",
        "bearer",
        "jwt",
        "cookie",
        "sas",
    ]
)
# and these wherever they stand, TOKEN_CI, unless the end says that it is something about one
_WORDS = frozenset({"token", "secret", "password", "passwd", "passphrase", "jwt", "bearer"})
_ABOUT = frozenset(
    {"budget", "cache", "count", "dir", "endpoint", "expiry", "folder", "healing", "id", "ids", "length"}
    | {"limit", "mode", "name", "rate", "seconds", "size", "timeout", "ttl", "type", "uri", "url"}
)
_SWITCHES = frozenset({"allow", "disable", "enable", "no", "require", "skip", "use", "with", "without"})
_NOT_PASSWORDS = ("bypass", "compass", "surpass", "multipass", "trespass")
_LAST_PAIRS = frozenset(
    {
        ("api", "key"),
        ("access", "key"),
        ("secret", "key"),
        ("private", "key"),
        ("auth", "key"),
        ("license", "key"),
    }
    | {("account", "key"), ("encryption", "key"), ("signing", "key"), ("master", "key"), ("my", "pwd")}
    | {("mysql", "pwd"), ("client", "key"), ("api", "keys"), ("auth", "header"), ("proxy", "auth")}
    | {("connection", "string"), ("connection", "strings")}
)
# PGPASSWORD, APIKEY, GHTOKEN: words run together
_ENDINGS = ("password", "apikey", "secretkey", "accesskey", "privatekey", "authtoken", "accesstoken")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<value>.*)", re.DOTALL)
_QUERY = re.compile(r"(?P<before>[?&](?P<name>[^=&#\s]+)=)(?P<value>[^&#\s]+)")
# `sig` is the signature of a shared access link, `code` a function's key, both of Azure
_QUERY_NAMES = frozenset({"sig", "signature", "x-amz-signature", "code"})
_PORTS_OR_PATH = re.compile(r"[\d.:\-]+(?:/\w+)?|\.{0,2}/.*", re.DOTALL)
_URL_PASSWORD = re.compile(
    r"(?P<before>[a-z][a-z0-9+.-]*://[^/\s:@]*:)(?P<password>[^/\s@]+)(?=@)", re.IGNORECASE
)
_HEADER = re.compile(
    r"(?P<before>(?:authorization|x-api-key|proxy-authorization|cookie)\s*:\s*(?:\w+\s+)?)(?P<value>\S.*)",
    re.IGNORECASE | re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of that name holds a secret."""
    words = [word for word in re.split(r"[^a-z0-9]+", _parted(name).lower()) if word]
    if not words or words[-1] in {"file", "path"} or words[0] in _SWITCHES:
        return False
    return (
        words[-1] in _LAST_WORDS
        or (words[-1] not in _ABOUT and not _WORDS.isdisjoint(words))
        or (words[-1].endswith("pass") and not words[-1].endswith(_NOT_PASSWORDS))
        or (words[-1] == "pwd" and len(words) > 1)
        or name == "-p"
        or tuple(words[-2:]) in _LAST_PAIRS
        or words[-1].endswith(_ENDINGS)
        or words == ["key"]
    )


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without the values of its secrets."""
    return [text for text, _ in _read_arguments(arguments)]


def redact_url(url: str) -> str:
    """A URL as it may be shown: without its password and the secrets in its query."""
    return _without_query(_URL_PASSWORD.sub(rf"\g<before>{REDACTED}", url))


def _without_query(text: str) -> str:
    def shown(found: re.Match[str]) -> str:
        secret = _is_secret(found["name"], found["value"]) or found["name"].lower() in _QUERY_NAMES
        return found["before"] + (REDACTED if secret else found["value"])

    return _QUERY.sub(shown, text)


def secret_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """What in a command line holds secrets: options by name, in their order."""
    return tuple(name for _, name in _read_arguments(arguments) if name is not None)


def secret_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables whose values are secrets, sorted."""
    return tuple(sorted(_in_environment(f"{name}={value}" for name, value in environment.items())))


def exposed_secrets(pids: Iterable[int], bundle: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Names of the secrets that processes were given, by command line or environment, sorted."""
    found: set[str] = set()
    process = (bundle or {}).get("process") or {}
    found |= _in_arguments(process.get("args") or ()) | _in_environment(process.get("env") or ())
    for pid in pids:
        found |= _in_arguments(_texts(pid, "cmdline")) | _in_environment(_texts(pid, "environ"))
    return tuple(sorted(found))


def _in_arguments(arguments: Sequence[str]) -> set[str]:
    return set(secret_arguments(arguments))


def _in_environment(entries: Iterable[str]) -> set[str]:
    found = set()
    for entry in entries:
        name, _, value = entry.partition("=")
        if _is_secret(name, value) or ("://" in value and redact_url(value) != value):
            found.add(name)
    return found


def _read_arguments(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each argument as it may be shown, with the name of the secret that was in it."""
    option: str | None = None
    for argument in arguments:
        if option is not None and not argument.startswith("-") and _is_secret(option, argument):
            yield REDACTED, option
            option = None
            continue
        option = argument if _OPTION.fullmatch(argument) and is_secret_name(argument) else None
        assignment = _ASSIGNMENT.fullmatch(argument)
        if assignment and _is_secret(assignment["name"], assignment["value"]):
            yield f"{assignment['name']}={REDACTED}", assignment["name"]
        elif _URL_PASSWORD.search(argument):
            yield redact_url(argument), "password in a URL"
        elif "://" in argument and (shown := redact_url(argument)) != argument:
            yield shown, "secret in a URL"
        elif header := _HEADER.search(argument):
            yield argument[: header.end("before")] + REDACTED, "header"
        else:
            yield argument, None


def _is_secret(name: str, value: str) -> bool:
    """A number is a limit or an id, and an empty value or a switch is nothing to keep."""
    plain = value.strip().lower()
    if name == "-p" and _PORTS_OR_PATH.fullmatch(plain):
        return False
    return (
        is_secret_name(name) and not plain.isdecimal() and plain not in {"", "true", "false", "none", "null"}
    )


def _parted(name: str) -> str:
    """CamelCase in parts: apiKey is api-key."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)


def _texts(pid: int, file: str) -> list[str]:
    with suppress(OSError), open(Path(f"/proc/{pid}/{file}"), "rb") as stream:
        return stream.read(_READ_BYTES).decode("utf-8", "replace").split("\0")
    return []
