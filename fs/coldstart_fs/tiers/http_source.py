"""Objects behind an HTTP server: a cache of the region, a CDN, or the store itself."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected, responses
from urllib.parse import quote, urljoin, urlsplit

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.version import __version__
from coldstart_fs.stores import answers
from coldstart_fs.stores.object_clients import Location
from coldstart_fs.stores.object_errors import of_status
from coldstart_fs.tiers.attempt import Attempt, Stored
from coldstart_fs.tiers.backoff import retry_after_seconds
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.http_connections import Connection, Connections, Origin
from coldstart_fs.tiers.settings import TierSettings
from coldstart_fs.tiers.source import Span

_PIECE_BYTES = 256 << 10
SLOWEST_BYTES = 64 << 10
"""A server that sends less than this in its read timeout is as good as silent."""
_LARGEST_WHOLE_BYTES = 4 << 20
"""A whole object in the place of a range is read up to this size."""
_LARGEST_OBJECT_BYTES = 1 << 30
_LARGEST_REFUSAL_BYTES = 16 << 10
_REDIRECTS = 5
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:(\d+)|\*)")


class HttpSource:
    """Every request starts at the tier's own address: where a redirect led is not remembered."""

    def __init__(self, location: Location, settings: TierSettings) -> None:
        self._location = location
        self._settings = settings
        self._connections = Connections(most_idle=settings.concurrency)

    @property
    def name(self) -> str:
        return self._location.url

    def read(self, key: str, span: Span | None, attempt: Attempt, *, fresh: bool) -> Stored:
        place = f"{self._location.url}/{key}"
        url = quote(place, safe="/:@[]%!$&'()*+,;=~")
        headers = {"User-Agent": f"coldstart/{__version__}", "Accept-Encoding": "identity"}
        if span is not None:
            headers["Range"] = f"bytes={span.offset}-{span.offset + span.length - 1}"
        if fresh:
            headers["Cache-Control"] = "no-cache"
        for _ in range(_REDIRECTS):
            connection, response = self._ask(url, headers, attempt, place)
            reusable = False
            try:
                if response.status in {301, 302, 303, 307, 308} and (to := response.getheader("Location")):
                    url = _redirected(url, to, place)
                    continue
                data = self._answer(response, span, attempt, place)
                reusable = not response.will_close and response.isclosed()
            except (OSError, HTTPException) as error:
                raise _network_failure(error, place) from error
            else:
                return data
            finally:
                attempt.unbreakable()
                response.close()
                if reusable:
                    self._connections.keep(connection)
                else:
                    connection.close()
        raise TierFailure(Kind.OTHER, IoFailure(f"cannot use `{place}`: it is redirected without end"))

    def close(self) -> None:
        self._connections.close()

    def _ask(
        self, url: str, headers: dict[str, str], attempt: Attempt, place: str
    ) -> tuple[Connection, HTTPResponse]:
        """An answer's head. A kept connection that the server has closed meanwhile is nobody's failure."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        origin = Origin(parts.scheme, parts.hostname, parts.port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = self._connections.idle(origin)
        while True:
            if connection is None:
                connection = self._connections.new(
                    origin, connect_seconds=self._settings.connect_timeout_seconds
                )
            try:
                attempt.breakable_by(connection.interrupt)
                if not connection.used:
                    connection.connect(read_seconds=self._settings.read_timeout_seconds)
                    attempt.breakable_by(connection.interrupt)
                connection.http.request("GET", target, headers=headers)
                response = connection.http.getresponse()
                attempt.heard()
            except (OSError, HTTPException) as error:
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
            else:
                return connection, response

    def _answer(self, response: HTTPResponse, span: Span | None, attempt: Attempt, place: str) -> Stored:
        if response.status not in {200, 206}:
            raise self._refusal(response, place)
        if answers.is_page(response.getheader("Content-Type")):
            raise TierFailure(Kind.PAGE, answers.page_came(place))
        if response.getheader("Content-Encoding", "identity").lower() != "identity":
            raise TierFailure(Kind.OTHER, DataError(f"server encodes what it sends: {place}"))
        if span is None:
            return self._whole(response, attempt, place)
        if response.status == 200:
            return self._cut_out(response, span, attempt, place)
        _check_range(response, span, place)
        said = response.length
        if said is not None and said != span.length:
            raise TierFailure(
                Kind.RANGE,
                answers.cut_short(place, came_bytes=said, length=span.length, offset=span.offset),
            )
        data = self._receive(response, span.length, attempt, place)
        if said is None and response.read(1):
            raise TierFailure(Kind.RANGE, answers.other_range(place))
        return data

    def _whole(self, response: HTTPResponse, attempt: Attempt, place: str) -> Stored:
        if response.status != 200:
            raise TierFailure(Kind.RANGE, answers.other_range(place))
        if response.length is None or response.length > _LARGEST_OBJECT_BYTES:
            raise TierFailure(Kind.OTHER, DataError(f"server does not say how long an object is: {place}"))
        return self._receive(response, response.length, attempt, place)

    def _cut_out(self, response: HTTPResponse, span: Span, attempt: Attempt, place: str) -> Stored:
        """A whole object for a range: taken while it is small."""
        size = response.length
        if size is None or size > max(_LARGEST_WHOLE_BYTES, span.length):
            raise TierFailure(Kind.WHOLE, answers.no_ranges(place))
        data = self._receive(response, size, attempt, place)[span.offset : span.offset + span.length]
        if len(data) != span.length:
            raise TierFailure(
                Kind.SHORT,
                answers.cut_short(place, came_bytes=len(data), length=span.length, offset=span.offset),
            )
        return data

    def _receive(self, response: HTTPResponse, length: int, attempt: Attempt, place: str) -> bytearray:
        """Exactly `length` bytes of a body. A drip counts as silence."""
        data = bytearray(length)
        view = memoryview(data)
        filled = since = 0
        window = time.monotonic()
        while filled < length:
            filled += _some(response, view[filled : filled + _PIECE_BYTES])
            attempt.heard()
            if attempt.heard_at - window > self._settings.read_timeout_seconds:
                if filled - since < SLOWEST_BYTES and filled < length:
                    raise TierFailure(Kind.SLOW, answers.unreachable(place, answers.NO_ANSWER))
                window, since = attempt.heard_at, filled
        if not response.chunked:
            response.close()  # it does not know that it was read to its end
        return data

    def _refusal(self, response: HTTPResponse, place: str) -> TierFailure:
        status = response.status
        body = response.read(_LARGEST_REFUSAL_BYTES).decode("utf-8", "replace")
        error = of_status(status, responses.get(status, ""), body, place, self._location.permission_hint)
        return TierFailure(
            _kind_of_status(status),
            error,
            retry_after_seconds=retry_after_seconds(response.getheader("Retry-After")),
        )


def _some(response: HTTPResponse, view: memoryview) -> int:
    """What has come of a body, at least a byte: the client's own `readinto` waits until all is there."""
    if response.chunked:
        piece = response.read1(len(view))
        view[: len(piece)] = piece
        count = len(piece)
    else:
        count = response.fp.readinto1(view) if response.fp is not None else 0
    if not count:
        raise IncompleteRead(b"", len(view))
    return count


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


def _check_range(response: HTTPResponse, span: Span, place: str) -> None:
    """Refuse another range than the one that was asked for."""
    match = _CONTENT_RANGE.fullmatch(response.getheader("Content-Range", "").strip())
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


def _redirected(url: str, to: str, place: str) -> str:
    target = urljoin(url, to)
    try:
        parts = urlsplit(target)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    if not usable or (url.startswith("https:") and parts.scheme != "https"):  # never from TLS to plain text
        text = f"cannot use `{place}`: it is redirected to no usable address"
        raise TierFailure(Kind.OTHER, IoFailure(text))
    return target


def _network_failure(error: OSError | HTTPException, place: str) -> TierFailure:
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
    (IncompleteRead, Kind.RESET, answers.ENDED),
    (RemoteDisconnected, Kind.RESET, answers.ENDED),
    (ConnectionError, Kind.RESET, answers.RESET),
)
