"""Objects behind an HTTP server: a cache of the region, a CDN, or the store itself."""

from __future__ import annotations

import email.utils  # noqa: F401 - `Retry-After` may be a date, when nothing can be imported any more
import errno
import re
import socket
import ssl
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.version import __version__
from coldstart_fs.stores import answers
from coldstart_fs.stores.object_clients import Location
from coldstart_fs.stores.object_errors import of_status
from coldstart_fs.tiers.attempt import Attempt, MustNotHang, Stored
from coldstart_fs.tiers.backoff import retry_after_seconds
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.http_answer import Answer, BadAnswer, Ended
from coldstart_fs.tiers.http_connections import Connection, Connections, Origin
from coldstart_fs.tiers.settings import TierSettings
from coldstart_fs.tiers.source import Span

SLOWEST_BYTES = 64 << 10
"""A server that sends less than this in its read timeout is as good as silent."""
_LARGEST_WHOLE_BYTES = 4 << 20
"""A whole object in the place of a range is read up to this size."""
_LARGEST_OBJECT_BYTES = 1 << 30
_LARGEST_REFUSAL_BYTES = 16 << 10
_REDIRECTS = 5
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(?:(\d{1,19})|\*)", re.ASCII)
_TARGET = re.compile(r"/[!-~]*")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class _Address(NamedTuple):
    """Where an object is: a URL, and what a request for it consists of."""

    url: str
    origin: Origin
    request: str
    """Without the headers that are one request's."""


class HttpSource:
    """Every request starts at the tier's own address: where a redirect led is not remembered."""

    def __init__(self, location: Location, settings: TierSettings) -> None:
        self._location = location
        self._settings = settings
        self._connections = Connections(most_idle=settings.concurrency)
        self._addresses: dict[str, _Address] = {}
        """One for each pack."""

    @property
    def name(self) -> str:
        return self._location.url

    def read(self, key: str, span: Span | None, attempt: Attempt, *, fresh: bool) -> Stored:
        place = f"{self._location.url}/{key}"
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _address(quote(place, safe="/:@[]%!$&'()*+,;=~"))
        headers = "\r\n"
        if fresh:
            headers = "Cache-Control: no-cache\r\n\r\n"
        if span is not None:
            headers = f"Range: bytes={span.offset}-{span.offset + span.length - 1}\r\n{headers}"
        for _ in range(_REDIRECTS):
            connection, answer = self._ask(address, headers, span, attempt, place)
            reusable = False
            try:
                if answer.status in {301, 302, 303, 307, 308} and (to := answer.headers.get("location")):
                    address = _redirected(address.url, to, place)
                    continue
                data = self._body(answer, span, place)
                reusable = answer.leaves_open
            except (OSError, BadAnswer) as error:
                raise _network_failure(error, place) from error
            else:
                return data
            finally:
                attempt.unbreakable()
                if reusable:
                    self._connections.keep(connection)
                else:
                    connection.close()
        raise TierFailure(Kind.OTHER, IoFailure(f"cannot use `{place}`: it is redirected without end"))

    def close(self) -> None:
        self._connections.close()

    def _ask(
        self, address: _Address, headers: str, span: Span | None, attempt: Attempt, place: str
    ) -> tuple[Connection, Answer]:
        """An answer's head. A kept connection that the server has closed meanwhile is nobody's failure."""
        connection = self._connections.idle(address.origin)
        while True:
            if connection is None:
                if attempt.must_not_hang:
                    raise MustNotHang
                connection = self._connections.new(
                    address.origin, connect_seconds=self._settings.connect_timeout_seconds
                )
            try:
                attempt.breakable_by(connection.interrupt)
                if not connection.used:
                    connection.connect()
                    attempt.breakable_by(connection.interrupt)
                incoming = _Incoming(connection, attempt, place)
                # nothing is under way on this connection: so little never waits to be sent
                connection.send(
                    (address.request + headers).encode("ascii"), seconds=attempt.silence_seconds()
                )
                return connection, Answer(incoming.receive, room_bytes=0 if span is None else span.length)
            except (OSError, BadAnswer) as error:
                attempt.unbreakable()
                connection.close()
                stale = connection.used and isinstance(error, ConnectionError)
                if not stale:
                    raise _network_failure(error, place) from error
                connection = None
            except BaseException:
                attempt.unbreakable()
                connection.close()
                raise

    def _body(self, answer: Answer, span: Span | None, place: str) -> Stored:
        if answer.status not in {200, 206}:
            raise self._refusal(answer, place)
        if answers.is_page(answer.headers.get("content-type")):
            raise TierFailure(Kind.PAGE, answers.page_came(place))
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise TierFailure(Kind.OTHER, DataError(f"server encodes what it sends: {place}"))
        if span is None:
            return _whole(answer, place)
        if answer.status == 200:
            return _cut_out(answer, span, place)
        _check_range(answer, span, place)
        said = answer.length
        if said is not None and said != span.length:
            raise TierFailure(
                Kind.RANGE,
                answers.cut_short(place, came_bytes=said, length=span.length, offset=span.offset),
            )
        data = answer.take(span.length)
        if said is None and not answer.has_ended():
            raise TierFailure(Kind.RANGE, answers.other_range(place))
        return data

    def _refusal(self, answer: Answer, place: str) -> TierFailure:
        status = answer.status
        body = answer.beginning(_LARGEST_REFUSAL_BYTES).decode("utf-8", "replace")
        error = of_status(status, _PHRASES.get(status, ""), body, place, self._location.permission_hint)
        return TierFailure(
            _kind_of_status(status),
            error,
            retry_after_seconds=retry_after_seconds(answer.headers.get("retry-after")),
        )


class _Incoming:
    """What comes for one attempt over a connection. A drip counts as silence."""

    def __init__(self, connection: Connection, attempt: Attempt, place: str) -> None:
        self._connection = connection
        self._attempt = attempt
        self._place = place
        self._received = self._before = 0
        self._window = 0.0
        """When the last time began in which enough must come; `_before` had come until then."""

    def receive(self, view: memoryview) -> int:
        attempt = self._attempt
        if self._received and attempt.heard_at - self._window > attempt.read_seconds:
            if self._received - self._before < SLOWEST_BYTES:
                raise TierFailure(Kind.SLOW, answers.unreachable(self._place, answers.NO_ANSWER))
            self._window, self._before = attempt.heard_at, self._received
        count = self._next(view)
        if not count:
            return 0
        attempt.heard()
        if not self._received:
            self._window = attempt.heard_at
        self._received += count
        return count

    def _next(self, view: memoryview) -> int:
        seconds = self._attempt.silence_seconds()
        try:
            return self._connection.receive(view, seconds=seconds)
        except TimeoutError:
            if not self._attempt.silent():
                raise
        return self._connection.receive(view, seconds=self._attempt.read_seconds)


def _whole(answer: Answer, place: str) -> Stored:
    if answer.status != 200:
        raise TierFailure(Kind.RANGE, answers.other_range(place))
    if answer.length is None or answer.length > _LARGEST_OBJECT_BYTES:
        raise TierFailure(Kind.OTHER, DataError(f"server does not say how long an object is: {place}"))
    return answer.take(answer.length)


def _cut_out(answer: Answer, span: Span, place: str) -> Stored:
    """A whole object for a range: taken while it is small."""
    size = answer.length
    if size is None or size > max(_LARGEST_WHOLE_BYTES, span.length):
        raise TierFailure(Kind.WHOLE, answers.no_ranges(place))
    data = answer.take(size)[span.offset : span.offset + span.length]
    if len(data) != span.length:
        raise TierFailure(
            Kind.SHORT,
            answers.cut_short(place, came_bytes=len(data), length=span.length, offset=span.offset),
        )
    return data


def _kind_of_status(status: int) -> Kind:
    if status in {401, 403, 407}:
        return Kind.DENIED
    if status in {404, 410}:
        return Kind.MISSING
    if status == 416:
        return Kind.SHORT
    if status == 429:
        return Kind.BUSY
    return Kind.SERVER if status >= 500 or status == 408 else Kind.OTHER


def _check_range(answer: Answer, span: Span, place: str) -> None:
    """Refuse another range than the one that was asked for."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if match is None:
        raise TierFailure(Kind.RANGE, answers.other_range(place))
    first, last = int(match[1]), int(match[2])
    total = int(match[3]) if match[3] is not None else None
    end = span.offset + span.length
    if first == span.offset and total is not None and last + 1 == total < end:
        raise TierFailure(
            Kind.SHORT,
            answers.cut_short(place, came_bytes=total - first, length=span.length, offset=first),
        )
    if (first, last + 1) != (span.offset, end):
        raise TierFailure(Kind.RANGE, answers.other_range(place))


def _address(url: str) -> _Address:
    parts = urlsplit(url)
    assert parts.hostname is not None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target):  # it would end the line that it stands in
        raise ValueError("not a URL's path")
    host = parts.hostname.encode("idna").decode("ascii")  # a `ValueError` for names that can be none
    host = f"[{host}]" if ":" in host else host
    if parts.port is not None:
        host = f"{host}:{parts.port}"
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\n"
        f"Accept-Encoding: identity\r\nUser-Agent: coldstart/{__version__}\r\n"
    )
    return _Address(url, Origin(parts.scheme, parts.hostname, parts.port), request)


def _redirected(url: str, to: str, place: str) -> _Address:
    try:
        target = urljoin(url, to)
        parts = urlsplit(target)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        if usable and (parts.scheme == "https" or url.startswith("http:")):  # never from TLS to plain text
            return _address(target)
    except ValueError:
        pass
    text = f"cannot use `{place}`: it is redirected to no usable address"
    raise TierFailure(Kind.OTHER, IoFailure(text)) from None


def _network_failure(error: OSError | BadAnswer, place: str) -> TierFailure:
    """What the network did, in one word and in our words; the cause's own may hold a redirect's secrets."""
    if isinstance(error, ssl.SSLEOFError):
        return TierFailure(Kind.RESET, answers.unreachable(place, answers.ENDED))
    if isinstance(error, ssl.SSLError):
        distrusted = isinstance(error, ssl.SSLCertVerificationError)
        return TierFailure(Kind.TLS, answers.not_trusted(place) if distrusted else answers.no_tls(place))
    for category, kind, reason in _NETWORK:
        if isinstance(error, category):
            return TierFailure(kind, answers.unreachable(place, reason))
    if isinstance(error, OSError):
        unreachable = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
        reason = answers.NO_NETWORK if unreachable else answers.FAILED
        return TierFailure(Kind.CONNECT, answers.unreachable(place, reason))
    text = f"cannot use `{place}`: unexpected answer ({type(error).__name__})"
    return TierFailure(Kind.OTHER, IoFailure(text))


_NETWORK: tuple[tuple[type[Exception], Kind, str], ...] = (
    (socket.gaierror, Kind.DNS, answers.NO_NAME),
    (TimeoutError, Kind.TIMEOUT, answers.NO_ANSWER),
    (ConnectionRefusedError, Kind.CONNECT, answers.REFUSED),
    (Ended, Kind.RESET, answers.ENDED),
    (ConnectionError, Kind.RESET, answers.RESET),
)
