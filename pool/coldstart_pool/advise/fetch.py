"""Metrics from addresses and files; a look at addresses has one deadline, however slowly they send."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from coldstart_cli.errors import (
    ColdstartError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnreachableError,
    UsageError,
)
from coldstart_pool.advise.scrape import LARGEST_BYTES, Scrape, parse_metrics

_DEADLINE_SECONDS = 10.0


def is_address(source: str) -> bool:
    """Whether `source` is fetched; other kinds of addresses than http and https are refused."""
    scheme, separator, _ = source.partition("://")
    if separator and scheme.lower() not in {"http", "https"}:
        raise UsageError(
            f"only http and https addresses are fetched: {source}",
            hint="pass a file by its path" if scheme.lower() == "file" else None,
        )
    if not separator and _looks_like_address(source):
        raise UsageError(f"neither an address nor a file: {source}", hint=f"http://{source}")
    return bool(separator)


def check_distinct(sources: Sequence[str], later: Sequence[Path] = ()) -> None:
    """A replica named twice would count twice."""
    seen: dict[object, str] = {}
    for source in [*sources, *map(str, later)]:
        if is_address(source):
            parts = urlsplit(source)
            key: object = (parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), parts.query)
        else:
            key = Path(source).resolve()
        if (first := seen.get(key)) is not None:
            also = "" if first == source else f" (and {first})"
            raise UsageError(f"named twice: {source}{also}", hint="name each replica once")
        seen[key] = source


def scrape_file(path: Path, model: str | None = None) -> Scrape:
    """A saved look; its time is that of the file."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
            moment = path.stat().st_mtime
    except FileNotFoundError as error:
        raise NotFoundError(f"metrics do not exist: {path}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read metrics: {path}") from error
    except OSError as error:
        raise IoFailure(f"cannot read metrics: {path}: {error.strerror}") from error
    return parse_metrics(content, str(path), moment, model)


def scrape_all(
    addresses: Sequence[str], model: str | None = None, *, deadline_seconds: float = _DEADLINE_SECONDS
) -> list[Scrape]:
    """All replicas at once; the first that fails is the failure."""
    answers: queue.SimpleQueue[tuple[int, Scrape | Exception]] = queue.SimpleQueue()

    def look(number: int, address: str) -> None:
        try:
            moment = time.monotonic()
            answers.put((number, parse_metrics(_fetch(address, deadline_seconds), address, moment, model)))
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            answers.put((number, error))

    # a socket's timeout starts anew with every byte, and a name may take minutes to resolve:
    # who waits has the deadline, and leaves the thread behind
    until = time.monotonic() + deadline_seconds
    for number, address in enumerate(addresses):
        threading.Thread(target=look, args=(number, address), daemon=True).start()
    found: dict[int, Scrape] = {}
    while len(found) < len(addresses):
        try:
            number, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            slow = next(address for number, address in enumerate(addresses) if number not in found)
            raise _unreachable(slow, _too_slow(deadline_seconds)) from None
        if isinstance(answer, Exception):
            raise answer
        found[number] = answer
    return [found[number] for number in range(len(addresses))]


def _fetch(address: str, timeout_seconds: float) -> bytes:
    import http.client
    import urllib.request

    headers = {"Accept": "text/plain; version=0.0.4"}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - see `is_address`
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310
            return bytes(answer.read(LARGEST_BYTES + 1))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):  # of the socket, which may end before who waits for it does
            raise _unreachable(address, _too_slow(timeout_seconds)) from error
        if isinstance(error, HTTPError) and error.code == 404 and urlsplit(address).path in {"", "/"}:
            raise _unreachable(address, error, hint=f"{address.rstrip('/')}/metrics") from error
        raise _unreachable(address, reason) from error


def _too_slow(seconds: float) -> str:
    return f"no whole answer within {seconds:g} s"


def _unreachable(address: str, reason: object, *, hint: str | None = None) -> ColdstartError:
    return UnreachableError(
        f"cannot fetch metrics: {address}: {reason}", hint=hint or f"curl -s -m 10 {address}"
    )


def _looks_like_address(source: str) -> bool:
    host, colon, rest = source.partition(":")
    port = rest.partition("/")[0]
    return bool(colon and host and port.isdigit() and "/" not in host and not Path(source).exists())
