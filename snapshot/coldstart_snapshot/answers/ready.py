"""Is a server ready? Its URL is asked until it answers 200, its process is gone, or time is up."""

from __future__ import annotations

import re
import time
from urllib.parse import SplitResult, urlsplit

from coldstart_cli.errors import BusyError, ColdstartError, UsageError
from coldstart_snapshot.containers.network import foreign_network, inside
from coldstart_snapshot.processes.tree import is_alive

_ANSWER_SECONDS = 10.0
_PLAIN_HOST = re.compile(r"[0-9a-z-]{1,63}(\.[0-9a-z-]{1,63})*")
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.5


class ServerEndedError(ColdstartError):
    """The server's process ended before it was ready."""


def wait_ready(url: str | None, timeout_seconds: float, *, pid: int | None = None) -> float:
    """Wait until `url` answers 200 and return the seconds it took; without a URL only look at the process.

    A process that has a network of its own is asked from inside of that.
    """
    with inside(foreign_network(pid) if pid is not None else None):
        return _wait_ready(url, timeout_seconds, pid)


def _wait_ready(url: str | None, timeout_seconds: float, pid: int | None) -> float:
    started = time.monotonic()
    target = parse_url(url) if url is not None else None
    pause = _FIRST_PAUSE_SECONDS
    while True:
        answer = "no answer"
        left = started + timeout_seconds - time.monotonic()
        if target is not None:
            answer = _ask(target, max(0.05, min(_ANSWER_SECONDS, left)))
        if pid is not None and not is_alive(pid):
            raise ServerEndedError(f"server ended before it was ready: process {pid}", hint="see its log")
        if target is None or answer == "200":
            return time.monotonic() - started
        left = started + timeout_seconds - time.monotonic()
        if left <= 0:
            from coldstart_snapshot.processes.secrets_found import redact_url

            raise BusyError(
                f"server is not ready after {timeout_seconds:g} s: {redact_url(url or '')}: {answer}",
                hint="raise the ready timeout, or see the server's log",
            )
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def load_client() -> None:
    """Import what asks URLs, which takes longer than a server's answer: best while something else works."""
    import http.client  # noqa: F401


def parse_url(url: str) -> SplitResult:
    """An http or https URL, or a refusal that shows one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        # the resolver refuses a label of over 63 characters, the request line what is not ASCII
        if not _PLAIN_HOST.fullmatch(parts.hostname or ""):
            (parts.hostname or "").encode("idna")  # with tables that take 3 ms to load
        (parts.path + parts.query).encode("ascii")
    except ValueError:
        usable = False
    if not usable:
        from coldstart_snapshot.processes.secrets_found import redact_url

        raise UsageError(
            f"ready URL cannot be used: {redact_url(url)}", hint="for example http://127.0.0.1:8000/health"
        )
    return parts


def _ask(target: SplitResult, timeout_seconds: float) -> str:
    """The status of one GET as text, or why there was none. No proxy: the server is on this host."""
    import http.client

    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    assert target.hostname is not None
    connection = kind(target.hostname, target.port, timeout=timeout_seconds)
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    try:
        # a connection kept alive would be part of the snapshot
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        response.read(65536)
        return str(response.status)
    except TimeoutError:
        return f"no answer within {timeout_seconds:.1f} s"
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        connection.close()
