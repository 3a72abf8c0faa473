"""Where a tier's bytes come from, whatever client reads them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from coldstart_fs.tiers.attempt import Attempt, Stored


class Span(NamedTuple):
    """Bytes of an object."""

    offset: int
    length: int


class Source(Protocol):
    """Thread-safe. Failures are `TierFailure`; bytes are never fewer or others than the server says."""

    @property
    def name(self) -> str: ...

    def read(self, key: str, span: Span | None, attempt: Attempt, *, fresh: bool) -> Stored:
        """The span of an object, or the whole; `fresh` asks caches on the way not to answer themselves.

        `MustNotHang` where the attempt must not, and the source cannot be interrupted wherever it waits.
        """
        ...

    def close(self) -> None:
        """Let go of idle connections."""
        ...
