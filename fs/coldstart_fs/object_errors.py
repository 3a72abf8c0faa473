"""What went wrong with a remote object, in our words: the library's texts carry signed URLs and bodies."""

from __future__ import annotations

import re

from coldstart_cli.errors import (
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnreachableError,
)

_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Z][A-Za-z' -]+))?")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "AccessDenied"}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
# where hosts ask for the credentials of their role
_CREDENTIAL_SOURCES = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "computeMetadata",
    "TokenRequest",
)
_CONNECTION = (
    (r"dns error|failed to lookup", "its name cannot be resolved"),
    (r"[Cc]onnection ?[Rr]efused", "the connection is refused"),
    (r"TimedOut|timed out|Timeout", "no answer in time"),
    (r"[Cc]onnection ?[Rr]eset", "the connection is reset"),
    (r"IncompleteMessage|UnexpectedEof|ConnectionAborted", "the connection ended in the middle of an answer"),
    (r"NetworkUnreachable|HostUnreachable|unreachable", "the network is unreachable"),
)
_RETRY_HINT = "check the address and the network, or try again later"
_NO_TLS = re.compile(r"InvalidContentType|InvalidMessage|WRONG_VERSION_NUMBER|wrong version number")
_BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_OTHER_RANGE = ("UnexpectedRange", "NoContentRange", "InvalidContentRange", "ParseContentRange")
_NO_RANGES = ("RangeNotSupported", "NotPartial")


class RangeRefused(Exception):  # noqa: N818 - an answer that has to be looked into
    """A request for a range was answered with something whole."""


class BodyInterrupted(UnreachableError):  # noqa: N818 - what happened
    """The connection ended in the middle of an object: worth another try."""


def translated(error: Exception, *, url: str, permission_hint: str) -> Exception:
    """Our error for one of the library's about the object or store at `url`."""
    text = str(error)
    # the library's names for what it found wrong, then what the server said, then what the network did
    if any(name in text for name in _NO_RANGES):
        return RangeRefused()
    if any(name in text for name in _OTHER_RANGE):
        return DataError(f"server sent another range than was asked for: {url}")
    if any(place in text for place in _CREDENTIAL_SOURCES):
        return PermissionNeededError(f"no credentials for {url}", hint=permission_hint)
    if (status := _STATUS.search(text)) is not None:
        return _of_status(int(status[1]), status[2] or "", text, url, permission_hint)
    if type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return PermissionNeededError(f"access is refused: {url}", hint=permission_hint)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"object is not in the store: {url}")
    if "MissingContentLength" in text:
        return DataError(f"server does not say how long an object is: {url}")
    return _of_connection(error, text, url)


def _of_connection(error: Exception, text: str, url: str) -> ColdstartError:
    if "request or response body error" in text and "TimedOut" not in text:
        return BodyInterrupted(
            f"cannot read `{url}`: the connection ended in the middle of an answer", hint=_RETRY_HINT
        )
    if "InvalidCertificate" in text:
        return IoFailure(
            f"cannot reach `{url}`: its certificate is not trusted",
            hint="set SSL_CERT_FILE to a file with the certificate of its authority",
        )
    if _NO_TLS.search(text):
        return IoFailure(f"cannot reach `{url}`: the server does not speak TLS", hint=_plain_hint(url))
    for pattern, reason in _CONNECTION:
        if re.search(pattern, text):
            return UnreachableError(f"cannot reach `{url}`: {reason}", hint=_RETRY_HINT)
    if isinstance(error, OSError) and error.strerror:
        return IoFailure(f"cannot use `{url}`: {error.strerror}")
    if "error sending request" in text:
        return UnreachableError(f"cannot reach `{url}`: the connection failed", hint=_RETRY_HINT)
    return IoFailure(f"cannot use `{url}`: unexpected answer ({type(error).__name__})")


def _plain_hint(url: str) -> str:
    if url.startswith("https://"):
        return "write http:// if the server is meant to be read without TLS"
    return "write http:// in the endpoint's variable, such as AWS_ENDPOINT_URL"


def _of_status(status: int, reason: str, text: str, url: str, permission_hint: str) -> ColdstartError:
    code = _CODE.search(text)
    named = code[1] if code is not None else ""
    said = " ".join(part for part in (str(status), reason.strip(), f"({named})" if named else "") if part)
    if named in _WRONG_REGION or status == 301:
        return IoFailure(f"wrong region for `{url}`: {said}", hint="set AWS_REGION to the bucket's region")
    if named in {"NoSuchBucket", "ContainerNotFound"}:
        return NotFoundError(f"bucket does not exist: {url}", hint="create the bucket, or mend `--store`")
    if status in {401, 403} or named in _EXPIRED:
        return PermissionNeededError(f"access is refused: {url}: {said}", hint=permission_hint)
    if status == 404:
        return NotFoundError(f"object is not in the store: {url}")
    if status == 416:
        return DataError(f"object is cut short: {url}: it ends before the range that was asked for")
    if status in _BUSY_STATUSES:
        return UnreachableError(f"cannot use `{url}`: the server answers {said}", hint="try again later")
    return IoFailure(f"cannot use `{url}`: the server answers {said}")
