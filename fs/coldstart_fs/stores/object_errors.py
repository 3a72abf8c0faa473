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
from coldstart_fs.stores import answers

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
    (r"dns error|failed to lookup", answers.NO_NAME),
    (r"[Cc]onnection ?[Rr]efused", answers.REFUSED),
    (r"TimedOut|timed out|Timeout", answers.NO_ANSWER),
    (r"[Cc]onnection ?[Rr]eset", answers.RESET),
    (r"IncompleteMessage|UnexpectedEof|ConnectionAborted", answers.ENDED),
    (r"NetworkUnreachable|HostUnreachable|unreachable", answers.NO_NETWORK),
)
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
        return answers.other_range(url)
    if any(place in text for place in _CREDENTIAL_SOURCES):
        return PermissionNeededError(f"no credentials for {url}", hint=permission_hint)
    if (status := _STATUS.search(text)) is not None:
        return of_status(int(status[1]), status[2] or "", text, url, permission_hint)
    if type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return PermissionNeededError(f"access is refused: {url}", hint=permission_hint)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"object is not in the store: {url}")
    if "MissingContentLength" in text:
        return DataError(f"server does not say how long an object is: {url}")
    return _of_connection(error, text, url)


def _of_connection(error: Exception, text: str, url: str) -> ColdstartError:
    if "request or response body error" in text and "TimedOut" not in text:
        return BodyInterrupted(f"cannot read `{url}`: {answers.ENDED}", hint=answers.RETRY_HINT)
    if "InvalidCertificate" in text:
        return answers.not_trusted(url)
    if _NO_TLS.search(text):
        return answers.no_tls(url)
    for pattern, reason in _CONNECTION:
        if re.search(pattern, text):
            return answers.unreachable(url, reason)
    if isinstance(error, OSError) and error.strerror:
        return IoFailure(f"cannot use `{url}`: {error.strerror}")
    if "error sending request" in text:
        return answers.unreachable(url, answers.FAILED)
    return IoFailure(f"cannot use `{url}`: unexpected answer ({type(error).__name__})")


def of_status(status: int, reason: str, text: str, url: str, permission_hint: str) -> ColdstartError:
    """Our error for a status that is no answer; `text` is the body, of which only S3's code is told."""
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
