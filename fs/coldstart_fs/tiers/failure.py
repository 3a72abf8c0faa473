"""Why one attempt at one tier failed: a kind to count and decide by, and the error a reader would get."""

from __future__ import annotations

from enum import StrEnum

from coldstart_cli.errors import ColdstartError


class Kind(StrEnum):
    """What went wrong, in one word for counters."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    SLOW = "slow"
    RESET = "reset"
    SHORT = "short"
    RANGE = "range"
    WHOLE = "whole"
    PAGE = "page"
    DENIED = "denied"
    MISSING = "missing"
    BUSY = "busy"
    SERVER = "server"
    DAMAGED = "damaged"
    SKIPPED = "skipped"
    OTHER = "other"

    @property
    def passes(self) -> bool:
        """Whether it may be over in a moment."""
        return self in _PASSING

    @property
    def worth_another_try(self) -> bool:
        """Whether the same tier, asked again at once, may well answer."""
        return self in {Kind.RESET, Kind.SERVER}

    @property
    def is_wrong_answer(self) -> bool:
        """Whether what a cache keeps may be the cause, so that it should be asked past what it keeps."""
        return self in {Kind.DAMAGED, Kind.RANGE, Kind.SHORT, Kind.PAGE}

    @property
    def is_tiers_fault(self) -> bool:
        """Whether it says something about the tier, and not about what was asked or who asked."""
        return self not in {Kind.MISSING, Kind.SHORT, Kind.SKIPPED}


_PASSING = frozenset(
    {Kind.DNS, Kind.CONNECT, Kind.TIMEOUT, Kind.SLOW, Kind.RESET, Kind.BUSY, Kind.SERVER, Kind.SKIPPED}
)


class TierFailure(Exception):  # noqa: N818 - what happened
    """One attempt failed. `retry_after_seconds` is what the server asked for."""

    def __init__(
        self, kind: Kind, error: ColdstartError, *, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(error.message)
        self.kind = kind
        self.error = error
        self.retry_after_seconds = retry_after_seconds
