"""The server of one image: opened, agreed with the kernel or with a predecessor, answered for in one loop."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

# everything that will ever be imported, at once: later, a module may lie behind our own mount
import blake3  # noqa: F401
import zstandard  # noqa: F401

from coldstart_cli.errors import ExitCode
from coldstart_fs.content.fetch_mode import FetchMode
from coldstart_fs.content.reader import open_reader
from coldstart_fs.content.room import CacheLimits
from coldstart_fs.content.whole_fetch import WholeFetch
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import index_key, locator_key, parse_digest
from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.fuse.session import Ended, Session
from coldstart_fs.mounts.channel import Channel
from coldstart_fs.mounts.leasing import ImageLease
from coldstart_fs.mounts.server import ImageServer
from coldstart_fs.mounts.server_log import ServerLog
from coldstart_fs.mounts.server_records import counters_path
from coldstart_fs.mounts.server_request import ServerRequest
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.tiers.packs import open_tiers
from coldstart_fs.tiers.settings import parse_tiers
from coldstart_fs.traces.early import EarlyTrace
from coldstart_fs.traces.tracing import MountTracing, Served

_COUNTERS_EVERY_SECONDS = 1.0
_LAST_ANSWERS_SECONDS = 1.0
_POLL_SECONDS = 0.01
# a thread that decodes chunks holds the interpreter no longer than this when the kernel asks something
_SWITCH_SECONDS = 0.0005


@dataclass(frozen=True)
class BornWith:
    """What a server has from its keeper: the connection, unless it is not mounted yet (-1), and its journal.

    `negotiated` is what a predecessor agreed on with the kernel; None for the first. `memory` is that of the
    index and of the locator that the keeper's first server verified: what becomes of their files is no
    concern of a successor.
    """

    descriptor: int
    journal: int
    negotiated: Negotiated | None
    memory: tuple[int, ...] = ()


def serve_image(
    request: ServerRequest, folder: Path, root: Path, keeper: Channel, born_with: BornWith, log: ServerLog
) -> ExitCode:
    """Serve a connection, mounted at `root`, until SIGTERM or its end; counters are kept in `folder`.

    The keeper hears `opened`, with the memory that successors inherit, says `go`, with the connection where
    there was none yet, and hears `negotiated`, or `serving` from a successor.
    """
    notes: list[str] = []
    sys.setswitchinterval(_SWITCH_SECONDS)
    digest = parse_digest(request.image)
    inherited = _inherited(digest, born_with.memory)
    store = open_store(request.store, known=inherited is not None)
    packs = open_tiers(store, parse_tiers(request.tiers), log=log)
    published = EarlyTrace(None if born_with.negotiated else request.traces, store, digest)
    reader = open_reader(
        store,
        digest,
        Path(request.cache),
        packs=packs,
        image=inherited,
        limits=CacheLimits(request.cache_quota_bytes, request.cache_free_bytes),
        log=log,
        tell=notes.append,
    )
    reader.neighbours.free_bytes = lambda: packs.link.free_bytes
    whole = WholeFetch(reader, _mode(request), lambda: packs.link, log)
    whole.start()
    served = Served(digest, reader, store, folder, published)
    tracing = MountTracing(request.traces, served, log, successor=born_with.negotiated is not None)
    memory = [reader.index.descriptor, reader.chunks.locator.descriptor] if inherited is None else []
    # whoever unmounts sends it; the default is to ignore it, so that a server without a handler lives on
    signal.signal(signal.SIGURG, lambda *_: tracing.stop_replay())
    keeper.send({"opened": True, "notes": notes}, memory)
    told = keeper.receive(None)
    if told is None:  # the keeper has gone: nobody wants this server any more
        return ExitCode.FAILURE
    session = Session(told[1][0] if told[1] else born_with.descriptor, log, born_with.journal)
    signal.signal(signal.SIGTERM, lambda *_: session.stop())
    if born_with.negotiated is None:
        agreed = session.negotiate(posix_acls=reader.index.has_acls)
        keeper.send({"negotiated": agreed.to_json(), "descriptor": session.descriptor})
    else:
        session.resume(born_with.negotiated)
        keeper.send({"serving": True, "descriptor": session.descriptor})
    server = ImageServer(reader, session, may_push=lambda: not tracing.replays)

    def counters() -> dict[str, Any]:
        tiers = [tier.as_json() for tier in packs.counters()]
        return server.counters() | tracing.counters() | {"tiers": tiers, "fetch": whole.status()}

    lease = ImageLease(store, digest, folder, log) if request.lease else nullcontext()
    with _counters_kept(counters, counters_path(folder)), lease:
        tracing.mounted(session, root)
        if session.run(tracing.watched(server.handlers())) == Ended.STOPPED:
            server.stop()
            _finish(session)
        whole.stop()
        tracing.end()
    return ExitCode.OK


def _inherited(digest: bytes, memory: tuple[int, ...]) -> tuple[Index, Locator] | None:
    if len(memory) != 2:  # also when the keeper had no room for more descriptors
        return None
    index, locator = memory
    return Index.inherited(index, index_key(digest)), Locator.inherited(locator, locator_key(digest))


def _mode(request: ServerRequest) -> FetchMode:
    """What another version asks for and this one does not know is the default."""
    try:
        return FetchMode(request.fetch)
    except ValueError:
        return FetchMode.AUTO


def _finish(session: Session) -> None:
    """Give answers that are on their way their time; a successor gives the others, or the kernel an error."""
    deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
    while session.pending and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


class _counters_kept:  # noqa: N801 - reads as what it does
    """Write counters to a file every second while the block runs, and once at its end."""

    def __init__(self, counters: Callable[[], dict[str, Any]], path: Path) -> None:
        self._counters = counters
        self._path = os.fspath(path)
        self._written = ""
        self._ended = Event()
        self._thread = Thread(target=self._run, name="counters", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_COUNTERS_EVERY_SECONDS)

    def _run(self) -> None:
        self._write()
        while not self._ended.wait(_COUNTERS_EVERY_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._counters())
        if text == self._written:
            return
        with suppress(OSError):
            with open(self._path + ".new", "w", encoding="ascii") as stream:
                stream.write(text)
            os.rename(self._path + ".new", self._path)
        self._written = text
