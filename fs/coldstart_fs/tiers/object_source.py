"""Objects of the store itself, through the store's own client: buckets, folders, HTTP behind a proxy."""

from __future__ import annotations

from coldstart_cli.errors import (
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UnreachableError,
)
from coldstart_fs.stores import answers
from coldstart_fs.stores.store import Store
from coldstart_fs.tiers.attempt import Attempt, MustNotHang, Stored
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.source import Span

_KINDS_BY_REASON = (
    (answers.NO_NAME, Kind.DNS),
    (answers.NO_ANSWER, Kind.TIMEOUT),
    (answers.RESET, Kind.RESET),
    (answers.ENDED, Kind.RESET),
    ("the server answers 429", Kind.BUSY),
    ("the server answers", Kind.SERVER),
)
_KINDS: tuple[tuple[type[ColdstartError], Kind], ...] = (
    (NotFoundError, Kind.MISSING),
    (PermissionNeededError, Kind.DENIED),
    (UnavailableError, Kind.WHOLE),
    (DataError, Kind.RANGE),
)


class ObjectSource:
    """The library cannot be interrupted: a request that is given up ends with its own timeouts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def name(self) -> str:
        return self._store.url

    def read(self, key: str, span: Span | None, attempt: Attempt, *, fresh: bool) -> Stored:
        if attempt.must_not_hang:
            raise MustNotHang
        del fresh  # nothing stands between the store and us
        try:
            if span is None:
                data: Stored = self._store.get(key)
                attempt.heard()
                return data
            return self._store.read_range(key, span.offset, span.length, attempt.heard)
        except ColdstartError as error:
            raise TierFailure(kind_of(error), error) from error

    def close(self) -> None:
        pass


def kind_of(error: ColdstartError) -> Kind:
    """The kind of a store's failure."""
    for category, kind in _KINDS:
        if isinstance(error, category):
            return kind
    if isinstance(error, UnreachableError):
        return next((kind for reason, kind in _KINDS_BY_REASON if reason in error.message), Kind.CONNECT)
    return (
        Kind.SERVER
        if isinstance(error, IoFailure) and "the server answers 5" in error.message
        else Kind.OTHER
    )
