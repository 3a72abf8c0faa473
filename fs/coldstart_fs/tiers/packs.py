"""Bytes of packs over all tiers: from the first that has right ones, within one deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Lock

from coldstart_cli.errors import ColdstartError, DataError, UnreachableError
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.names import digest_text, index_key, pack_key
from coldstart_fs.stores.object_clients import Location
from coldstart_fs.stores.store import Store
from coldstart_fs.tiers.attempt import Stored
from coldstart_fs.tiers.backoff import full_jitter
from coldstart_fs.tiers.counters import TierCounters
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.link import Link
from coldstart_fs.tiers.object_source import ObjectSource
from coldstart_fs.tiers.race import Check, Wanted
from coldstart_fs.tiers.settings import STORE_DEFAULTS, TierSettings
from coldstart_fs.tiers.source import Source, Span
from coldstart_fs.tiers.tier import Tier
from coldstart_fs.tiers.workers import Workers

_SAME_WORDS_SECONDS = 10.0
_PROBE_SECONDS = 1.0
INDEX_SECONDS = 60.0
OUTAGE_SECONDS = 15.0
"""How long reads wait for a store that stopped answering; later ones fail at once, until it answers."""


def open_tiers(
    store: Store, tiers: Sequence[TierSettings] = (), *, log: Callable[[str], None] = lambda _: None
) -> TieredPacks:
    """The packs of a store, asked for at `tiers` first. Nothing is asked yet."""
    workers = Workers()
    found = [Tier(_source_at(tier), tier, workers, last=False, log=log) for tier in tiers]
    found.append(Tier(_source_of(store), STORE_DEFAULTS, workers, last=True, log=log))
    return TieredPacks(found, workers, log=log)


class TieredPacks:
    """Thread-safe."""

    def __init__(self, tiers: Sequence[Tier], workers: Workers, *, log: Callable[[str], None]) -> None:
        self._tiers = tuple(tiers)
        self._workers = workers
        self._log = log
        self._said: dict[tuple[str, Kind], float] = {}
        self._lock = Lock()
        self._down_since: float | None = None
        self._answering = self._tiers[0]
        self._closed = False

    def fetch(self, pack: bytes, offset: int, length: int, *, deadline: float, check: Check) -> Stored:
        """Bytes of a pack for which `check` raised no `DataError`, by `deadline` on the monotonic clock.

        `check` runs in any thread, never twice at a time, and sees no bytes after those returned.
        A store that stopped answering is asked until the deadline, and `OUTAGE_SECONDS` at most.
        """
        wanted = Wanted(pack_key(pack), Span(offset, length), check)
        return self._fetch(wanted, deadline)

    def index(self, digest: bytes, *, timeout_seconds: float = INDEX_SECONDS) -> Stored:
        """The index of an image whole: it is what its digest says, wherever it comes from."""
        key = index_key(digest)
        place = f"{self._tiers[-1].source.name}/{key}"

        def check(data: Stored) -> None:
            if (found := chunk_digest(data)) != digest:
                raise DataError(
                    f"index is damaged: {place}: its digest is {digest_text(found)}",
                    hint="index the image again",
                )

        return self._fetch(Wanted(key, None, check), time.monotonic() + timeout_seconds)

    def counters(self) -> list[TierCounters]:
        """One for each tier, the store last."""
        return [tier.counters() for tier in self._tiers]

    @property
    def link(self) -> Link:
        """How long the way is to the tier that answered last, and how much goes through it."""
        return self._answering.link

    def close(self) -> None:
        """Let go of idle connections and threads; what is under way ends by itself, and is not repeated."""
        self._closed = True
        for tier in self._tiers:
            tier.source.close()
        self._workers.close()

    def store_is_down(self) -> None:
        """Whoever opened the image found nobody: reads need not wait for the end of an outage."""
        self._down_since = time.monotonic() - OUTAGE_SECONDS

    def _fetch(self, wanted: Wanted, deadline: float) -> Stored:
        rounds, began = 0, time.monotonic()
        while True:
            rounds += 1
            failures: list[TierFailure] = []
            found = self._round(wanted, deadline, failures)
            if found is not None:
                return found
            if not failures[-1].kind.passes:
                self._down_since = None
                raise _told(failures)
            now = time.monotonic()
            if self._down_since is None:
                self._down_since = now
            pause = max(full_jitter(rounds), self._tiers[-1].breaker.closed_to - now)
            patience_ends = self._down_since + OUTAGE_SECONDS
            if failures[-1].kind is Kind.SKIPPED:  # somebody else may be finding out that it is back
                patience_ends = max(patience_ends, began + _PROBE_SECONDS)
            if self._closed or now + pause >= min(deadline, patience_ends):
                raise _told(failures)
            time.sleep(pause)

    def _round(self, wanted: Wanted, deadline: float, failures: list[TierFailure]) -> Stored | None:
        """Ask each tier in turn; why none had right bytes is added to `failures`."""
        for position, tier in enumerate(self._tiers):
            now = time.monotonic()
            # whoever comes later must have time too
            until = deadline if tier.last else now + (deadline - now) / 2
            hedge_to = self._tiers[min(position + 1, len(self._tiers) - 1)]
            try:
                found = tier.fetch(wanted, until=until, hedge_to=hedge_to)
            except TierFailure as failure:
                failures.append(failure)
                self._tell(tier, wanted.key, failure)
            else:
                self._answering = tier
                if tier.last:
                    self._down_since = None
                return found
        return None

    def _tell(self, tier: Tier, key: str, failure: TierFailure) -> None:
        """One line for the log, and not the same for each of a thousand reads."""
        if failure.kind is Kind.SKIPPED:
            return
        now = time.monotonic()
        said = (tier.source.name, failure.kind)
        with self._lock:
            if failure.kind is not Kind.DAMAGED and now - self._said.get(said, -1e9) < _SAME_WORDS_SECONDS:
                return
            self._said[said] = now
        self._log(f"tier {tier.source.name} failed ({failure.kind}): {key}: {failure.error.message}")


def _told(failures: Sequence[TierFailure]) -> ColdstartError:
    """The error for the reader: the store's, or why nobody asked it."""
    final = failures[-1]
    error = final.error
    if final.kind is Kind.MISSING:
        error = DataError(error.message, hint=error.hint or "index the image again")
    elif final.kind is Kind.SKIPPED:
        asked = [failure for failure in failures if failure.kind is not Kind.SKIPPED]
        error = UnreachableError(asked[-1].error.message if asked else error.message, hint=error.hint)
    return error


def _source_at(tier: TierSettings) -> Source:
    location = Location.parse(tier.url)
    if _behind_proxy(location):
        from coldstart_fs.stores.http_store import open_remote

        return ObjectSource(open_remote(location.url, create=False))
    return _http_source(location, tier)


def _source_of(store: Store) -> Source:
    if store.url.startswith(("http://", "https://")):
        location = Location.parse(store.url)
        if not _behind_proxy(location):
            return _http_source(location, STORE_DEFAULTS)
    return ObjectSource(store)


def _http_source(location: Location, settings: TierSettings) -> Source:
    from coldstart_fs.tiers.http_source import HttpSource  # 20 ms that folders and buckets do without

    return HttpSource(location, settings)


def _behind_proxy(location: Location) -> bool:
    """The store's own client knows proxies and their kinds; ours does not."""
    if not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return False
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    wanted = location.kind in proxies or "all" in proxies
    return wanted and not proxy_bypass(location.bucket)
