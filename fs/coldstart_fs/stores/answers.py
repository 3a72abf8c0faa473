"""What is wrong with an answer of a server, whichever client read it: a status is never enough."""

from __future__ import annotations

from coldstart_cli.errors import DataError, IoFailure, UnavailableError, UnreachableError

NO_NAME = "its name cannot be resolved"
REFUSED = "the connection is refused"
NO_ANSWER = "no answer in time"
RESET = "the connection is reset"
ENDED = "the connection ended in the middle of an answer"
NO_NETWORK = "the network is unreachable"
NO_ANSWER_BEFORE = "it did not answer a moment ago"
FAILED = "the connection failed"
RETRY_HINT = "check the address and the network, or try again later"


def is_page(content_type: object) -> bool:
    """Whether a `Content-Type` is that of a web page: no object of a store has it."""
    return isinstance(content_type, str) and content_type.strip().lower().startswith(
        ("text/html", "application/xhtml")
    )


def page_came(place: str) -> DataError:
    return DataError(
        f"server sent a web page instead of an object: {place}",
        hint="look whether a proxy or a login page stands before the store",
    )


def no_ranges(place: str) -> UnavailableError:
    return UnavailableError(
        f"server does not serve ranges of objects: {place}",
        hint="serve the store with a server that does, such as nginx",
    )


def other_range(place: str) -> DataError:
    return DataError(f"server sent another range than was asked for: {place}")


def cut_short(place: str, *, came_bytes: int, length: int, offset: int) -> DataError:
    return DataError(
        f"object is cut short: {place}: {came_bytes} bytes came instead of {length} from byte {offset} on"
    )


def unreachable(place: str, reason: str) -> UnreachableError:
    """`reason` is one of the words above."""
    return UnreachableError(f"cannot reach `{place}`: {reason}", hint=RETRY_HINT)


def not_trusted(place: str) -> IoFailure:
    return IoFailure(
        f"cannot reach `{place}`: its certificate is not trusted",
        hint="set SSL_CERT_FILE to a file with the certificate of its authority",
    )


def no_tls(place: str) -> IoFailure:
    """The hint fits URLs and, for stores with names of their own, the endpoint's variable."""
    if place.startswith("https://"):
        hint = "write http:// if the server is meant to be read without TLS"
    else:
        hint = "write http:// in the endpoint's variable, such as AWS_ENDPOINT_URL"
    return IoFailure(f"cannot reach `{place}`: the server does not speak TLS", hint=hint)
