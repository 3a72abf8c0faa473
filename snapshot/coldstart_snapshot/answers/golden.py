"""Golden requests: what a server answered when it was captured, and whether a restored one still does."""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from coldstart_cli.errors import BusyError, DataError
from coldstart_snapshot.answers.ready import parse_url
from coldstart_snapshot.processes.secrets_found import redact_url

if TYPE_CHECKING:
    from http.client import HTTPConnection

BODY_LIMIT_BYTES = 1 << 20
ANSWER_LIMIT_BYTES = 16 << 20
# an array's index in a JSON pointer, RFC 6901
_INDEX = re.compile(r"0|[1-9][0-9]*")
_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_SECRET = re.compile(
    r"authorization|cookie|token|secret|password|credential|api-?key|signature", re.IGNORECASE
)
_FIRST_ERROR_STATUS = 400


class Expect(StrEnum):
    """What of an answer must come again: all of it, a part of its JSON, or its status alone."""

    BODY = "body"
    JSON_SUBSET = "json_subset"
    JSON_VALUES = "json_values"
    STATUS = "status"


class GoldenError(DataError):
    """A golden request was not answered as it was recorded, or with more than is compared."""


class GoldenSilenceError(BusyError):
    """A golden request was not answered, or not in time."""


@dataclass(frozen=True)
class GoldenRequest:
    """One request and what is expected; `status`, `digest` and `wanted` are filled in when it is recorded.

    `wanted` is JSON: what the answer must contain, or the values by their pointers.
    """

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    expect: Expect = Expect.BODY
    pointers: tuple[str, ...] = ()
    wanted: str | None = None
    timeout_seconds: float = 60.0
    status: int = 0
    digest: str | None = None

    @property
    def label(self) -> str:
        return f"golden request {self.method} {redact_url(self.url)}"

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """Headers that carry what only the server's clients should know."""
        return tuple(name for name, _ in self.headers if _SECRET.search(name))


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


def record_answers(requests: Sequence[GoldenRequest], *, pid: int | None = None) -> tuple[GoldenRequest, ...]:
    """Ask each of them twice; an answer that does not come again is refused with the remedy."""
    recorded = []
    for request in requests:
        first = _recorded(request, send(request, pid=pid))
        if first.status >= _FIRST_ERROR_STATUS:
            raise DataError(
                f"{request.label} is answered with status {first.status}", hint="see the server's log"
            )
        if problem := difference(first, send(request, pid=pid)):
            raise DataError(
                f"{request.label} is not answered the same way twice: {problem}",
                hint='record what stays the same: `json_values = ["/..."]`, `json_subset = {...}`, '
                'or `expect = "status"`',
            )
        recorded.append(first)
    return tuple(recorded)


def replay(requests: Sequence[GoldenRequest], *, pid: int | None = None) -> None:
    """Ask again; raises at the first answer that is not the recorded one."""
    for request in requests:
        if problem := difference(request, send(request, pid=pid)):
            raise GoldenError(
                f"{request.label} is answered differently than at the capture: {problem}",
                hint="capture it again when that is right",
            )


def send(request: GoldenRequest, *, pid: int | None = None) -> Answer:
    """One request in the network of that process, ended at its deadline however slowly the answer comes."""
    from coldstart_snapshot.containers.network import foreign_network, inside

    with inside(foreign_network(pid) if pid is not None else None):
        return _send(request)


def difference(recorded: GoldenRequest, answer: Answer) -> str | None:
    """In what an answer is not the recorded one; None when it is."""
    if answer.status != recorded.status:
        return f"status {answer.status}, not {recorded.status}"
    match recorded.expect:
        case Expect.STATUS:
            return None
        case Expect.BODY:
            found = _digest(answer.body)
            return None if found == recorded.digest else f"body {found}, not {recorded.digest}"
        case Expect.JSON_SUBSET | Expect.JSON_VALUES:
            try:
                document = json.loads(answer.body)
            except (ValueError, RecursionError):
                return f"no JSON: {answer.body[:80]!r}"
            wanted = json.loads(recorded.wanted or "null")
            if recorded.expect is Expect.JSON_SUBSET:
                return _missing(document, wanted, "")
            return _other_value(document, wanted)


def to_table(request: GoldenRequest) -> dict[str, Any]:
    """One recorded request as a table of the manifest; what is absent does not apply."""
    table: dict[str, Any] = {
        "method": request.method,
        "url": request.url,
        "headers": dict(request.headers),
        "expect": str(request.expect),
        "status": request.status,
        "timeout_seconds": request.timeout_seconds,
    }
    if request.body:
        table["body_base64"] = base64.b64encode(request.body).decode("ascii")
    if request.digest is not None:
        table["digest"] = request.digest
    if request.wanted is not None:
        table["json"] = request.wanted
    return table


def from_table(table: Mapping[str, Any]) -> GoldenRequest:
    """Back from the manifest; raises what a damaged table raises."""
    try:
        body = base64.b64decode(table.get("body_base64", ""), validate=True)
    except binascii.Error as error:
        raise ValueError(f"body of a golden request is no base64: {error}") from error
    expect, digest, wanted = Expect(table["expect"]), table.get("digest"), table.get("json")
    if expect is Expect.BODY and not _DIGEST.fullmatch(digest or ""):
        raise ValueError(f"digest of a golden request is {digest!r}")
    pointers: tuple[str, ...] = ()
    if expect in {Expect.JSON_SUBSET, Expect.JSON_VALUES}:
        values = json.loads(wanted or "null")
        if not isinstance(values, dict):
            raise ValueError("what a golden request wants is absent")
        pointers = tuple(values) if expect is Expect.JSON_VALUES else ()
    seconds = float(table["timeout_seconds"])
    if not 0 < seconds < float("inf"):
        raise ValueError(f"timeout of a golden request is {seconds}")
    return GoldenRequest(
        method=str(table["method"]),
        url=str(table["url"]),
        headers=tuple((str(name), str(value)) for name, value in table["headers"].items()),
        body=body,
        expect=expect,
        pointers=pointers,
        wanted=wanted,
        timeout_seconds=seconds,
        status=int(table["status"]),
        digest=digest,
    )


def same_questions(recorded: Sequence[GoldenRequest], asked: Sequence[GoldenRequest]) -> bool:
    """Whether what was recorded answers what is asked now."""
    return [_question(one) for one in recorded] == [_question(one) for one in asked]


def _question(request: GoldenRequest) -> GoldenRequest:
    subset = request.wanted if request.expect is Expect.JSON_SUBSET else None
    return replace(request, status=0, digest=None, wanted=subset, timeout_seconds=1.0)


def _recorded(request: GoldenRequest, answer: Answer) -> GoldenRequest:
    recorded = replace(request, status=answer.status)
    if request.expect is Expect.BODY:
        return replace(recorded, digest=_digest(answer.body))
    if request.expect is Expect.JSON_SUBSET:
        if answer.status < _FIRST_ERROR_STATUS and (problem := difference(recorded, answer)):
            raise DataError(f"{request.label} is not answered as `json_subset` says: {problem}")
        return recorded
    if request.expect is Expect.JSON_VALUES and answer.status < _FIRST_ERROR_STATUS:
        return replace(recorded, wanted=json.dumps(_values(request, answer.body)))
    return recorded


def _values(request: GoldenRequest, body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{request.label} is not answered with JSON: {body[:80]!r}", hint='`expect = "body"`'
        ) from error
    try:
        return {pointer: value_at(document, pointer) for pointer in request.pointers}
    except LookupError as error:
        raise DataError(f"{request.label}: answer has no {error.args[0]}: {body[:200]!r}") from error


def value_at(document: Any, pointer: str) -> Any:
    """The value that a JSON pointer (RFC 6901) leads to; LookupError names a pointer that leads nowhere."""
    value = document
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            raise LookupError(pointer)
    return value


def _missing(document: Any, wanted: Any, where: str) -> str | None:
    """Where the answer lacks what is wanted: objects may have more keys, lists are compared whole."""
    if isinstance(wanted, dict) and isinstance(document, dict):
        for key, value in wanted.items():
            if key not in document:
                return f"no {where}/{key}"
            if problem := _missing(document[key], value, f"{where}/{key}"):
                return problem
        return None
    if isinstance(wanted, list) and isinstance(document, list) and len(wanted) == len(document):
        for number, value in enumerate(wanted):
            if problem := _missing(document[number], value, f"{where}/{number}"):
                return problem
        return None
    return None if _equal(document, wanted) else _other(where or "/", document, wanted)


def _other_value(document: Any, wanted: Mapping[str, Any]) -> str | None:
    for pointer, value in wanted.items():
        try:
            found = value_at(document, pointer)
        except LookupError:
            return f"no {pointer}"
        if not _equal(found, value):
            return _other(pointer, found, value)
    return None


def _equal(one: Any, other: Any) -> bool:
    # True is 1 in Python, and is not in JSON
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _other(where: str, found: Any, wanted: Any) -> str:
    return f"{where} is {json.dumps(found)[:80]}, not {json.dumps(wanted)[:80]}"


def _digest(body: bytes) -> str:
    from blake3 import blake3

    return f"blake3:{blake3(body).hexdigest()}"


def _send(request: GoldenRequest) -> Answer:
    import http.client

    url = parse_url(request.url)
    connection = _connection(url, request.timeout_seconds)
    deadline = time.monotonic() + request.timeout_seconds
    watchdog = threading.Timer(request.timeout_seconds, _hang_up, (connection,))
    watchdog.daemon = True
    watchdog.start()
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        # a connection kept alive would be part of the snapshot
        headers = {"Connection": "close", **dict(request.headers)}
        connection.request(request.method, path, body=request.body or None, headers=headers)
        response = connection.getresponse()
        body = response.read(ANSWER_LIMIT_BYTES + 1)
        if time.monotonic() < deadline:
            if len(body) > ANSWER_LIMIT_BYTES:
                raise GoldenError(f"{request.label}: answer is larger than {ANSWER_LIMIT_BYTES} bytes")
            return Answer(response.status, body)
        reason = "late"
    except (OSError, UnicodeError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        watchdog.cancel()
        connection.close()
    if time.monotonic() >= deadline:
        reason = f"within {request.timeout_seconds:g} s"
    raise GoldenSilenceError(
        f"{request.label} is not answered: {reason}", hint="see the server's log, or raise `timeout_seconds`"
    )


def _connection(url: SplitResult, timeout_seconds: float) -> HTTPConnection:
    import http.client

    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    assert url.hostname is not None
    return kind(url.hostname, url.port, timeout=timeout_seconds)


def _hang_up(connection: HTTPConnection) -> None:
    """An answer that comes byte by byte keeps every single wait short."""
    import socket

    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)
