"""Turning a source into an image of a store: read the tree, store the contents, publish, name it last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coldstart_cli.errors import IoFailure
from coldstart_fs.format.chunk import DEFAULT_CHUNK_BYTES, Compression
from coldstart_fs.format.entry import Entry, in_index_order
from coldstart_fs.format.index_writer import WrittenIndex, write_index
from coldstart_fs.format.names import check_name, index_key, locator_key
from coldstart_fs.format.pack import FinishedPack, PackWriter
from coldstart_fs.format.trace import Trace
from coldstart_fs.indexing.chunk_table import ChunkTable
from coldstart_fs.indexing.imports.order import import_order
from coldstart_fs.indexing.imports.statements import READ_BYTES
from coldstart_fs.indexing.pack_order import TracedChunks, tree_order
from coldstart_fs.indexing.progress import LayerRead, Progress
from coldstart_fs.indexing.sources import Source, is_in_pack_order, open_source
from coldstart_fs.indexing.spool import Spool
from coldstart_fs.stores.held import HeldChunks
from coldstart_fs.stores.publish import publish_changed, publish_name, publish_packs
from coldstart_fs.stores.store import PutReport, Store


@dataclass(frozen=True)
class TraceReport:
    """What of a trace the image has; its chunks lie first, whether or not the store had them."""

    chunks: int
    size_bytes: int
    missing_paths: int
    of_this_image: bool


@dataclass(frozen=True)
class IndexReport:
    """What an indexing did. Content is new, reused from the store, repeated in the image, or zeros."""

    name: str
    digest: bytes
    entries: int
    files: int
    index_bytes: int
    content_bytes: int
    new_bytes: int
    reused_bytes: int
    repeated_bytes: int
    zero_bytes: int
    read_bytes: int
    layers: tuple[LayerRead, ...]
    packs: int
    pack_bytes: int
    trace: TraceReport | None
    notes: tuple[str, ...]
    dry_run: bool
    timings: dict[str, float]
    seconds: float


def index_image(
    source: str,
    *,
    store: Store,
    name: str,
    progress: Progress | None = None,
    dry_run: bool = False,
    wait_seconds: float = 0.0,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    compression: Compression | None = None,
    trace: Trace | None = None,
    platform: str | None = None,
    skopeo: str | None = None,
) -> IndexReport:
    """Index `source` under `name`. Until everything was read and verified the store is not touched."""
    check_name(name)
    with ExitStack() as stack:
        opened = open_source(source, forbidden=store.url, platform=platform, skopeo=skopeo)
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="coldstart-")))
        else:
            scratch = stack.enter_context(store.writing(wait_seconds=wait_seconds))
        held = stack.enter_context(HeldChunks.open(store, scratch))
        indexing = _Indexing(opened, store, scratch, held, progress or Progress(), chunk_bytes)
        if not dry_run:
            indexing.packs = PackWriter(scratch, compression=compression)
            stack.callback(indexing.packs.close)
            if trace is not None or not is_in_pack_order(source):
                indexing.spool = Spool(scratch)
                stack.callback(indexing.spool.close)
        return indexing.run(name, trace)


class _Indexing:
    """One run; without `packs` it only says what would happen."""

    def __init__(
        self,
        source: Source,
        store: Store,
        scratch: Path,
        held: HeldChunks,
        progress: Progress,
        chunk_bytes: int,
    ) -> None:
        self.packs: PackWriter | None = None
        self.spool: Spool | None = None
        self._source = source
        self._store = store
        self._scratch = scratch
        self._held = held
        self._progress = progress
        self._chunk_bytes = chunk_bytes
        self._started = self._phase_started = time.monotonic()
        self._timings: dict[str, float] = {}

    def run(self, name: str, trace: Trace | None) -> IndexReport:
        contents = ChunkTable(
            self._chunk_bytes, self._held, self._progress, spool=self.spool, packs=self.packs
        )
        root = self._source.read(contents.keep, self._chunk_bytes, self._progress, self._scratch)
        if self.spool is not None:
            self.spool.finish()
        self._phase("read")
        order = in_index_order(root)
        contents.count(order)
        index = self._write_index(order)
        traced = TracedChunks.find(trace, root, self._chunk_bytes) if trace is not None else None
        modules: Sequence[Entry] = ()
        if self.spool is not None:
            modules = import_order(
                root, self._source.configuration, lambda entry: contents.beginning(entry, READ_BYTES)
            )
        self._phase("index")
        put = PutReport()
        if self.packs is not None:
            self._progress("writing packs")
            self._progress.expect(contents.new_bytes)
            packed = self._packed(contents, modules, order, index, traced)
            put = publish_packs(self._store, packed, self._progress.advance)
            self._phase("packs")
            self._progress("publishing")
            self._write_locator(contents)
            publish_changed(self._store, index_key(index.digest), self._index_path)
            publish_changed(self._store, locator_key(index.digest), self._locator_path)
            publish_name(self._store, name, index.digest)
            self._phase("publish")
        return IndexReport(
            name=name,
            digest=index.digest,
            entries=len(order),
            files=sum(entry.is_file for entry in order),
            index_bytes=index.size_bytes,
            content_bytes=index.content_bytes,
            new_bytes=contents.new_bytes,
            reused_bytes=contents.reused_bytes,
            repeated_bytes=contents.repeated_bytes,
            zero_bytes=contents.zero_bytes,
            read_bytes=self._progress.read_bytes,
            layers=tuple(self._progress.layers),
            packs=put.sent_files,
            pack_bytes=put.sent_bytes,
            trace=_trace_report(trace, traced, index.digest),
            notes=(*self._source.notes, *self._held.notes),
            dry_run=self.packs is None,
            timings=self._timings,
            seconds=time.monotonic() - self._started,
        )

    def _packed(
        self,
        contents: ChunkTable,
        modules: Sequence[Entry],
        order: Sequence[Entry],
        index: WrittenIndex,
        traced: TracedChunks | None,
    ) -> Iterator[FinishedPack]:
        """All packs of the image that the store has to get, as they are finished."""
        if traced is not None:
            yield from contents.lay_out(traced.chunks, index.digest, anew=True)
        yield from contents.lay_out(tree_order((*modules, *order), self._chunk_bytes), index.digest)

    def _write_index(self, order: Sequence[Entry]) -> WrittenIndex:
        self._progress("writing the index")
        try:
            with self._index_path.open("wb") as stream:
                return write_index(
                    order, stream, chunk_bytes=self._chunk_bytes, configuration=self._source.configuration
                )
        except OSError as error:
            raise IoFailure(f"cannot write `{self._index_path}`: {error.strerror}") from error

    def _write_locator(self, contents: ChunkTable) -> None:
        try:
            with self._locator_path.open("wb") as stream:
                contents.write_locator(stream)
        except OSError as error:
            raise IoFailure(f"cannot write `{self._locator_path}`: {error.strerror}") from error

    @property
    def _index_path(self) -> Path:
        return self._scratch / "index"

    @property
    def _locator_path(self) -> Path:
        return self._scratch / "locator"

    def _phase(self, name: str) -> None:
        now = time.monotonic()
        self._timings[name] = now - self._phase_started
        self._phase_started = now


def _trace_report(trace: Trace | None, traced: TracedChunks | None, image: bytes) -> TraceReport | None:
    if trace is None or traced is None:
        return None
    return TraceReport(len(traced.chunks), traced.size_bytes, traced.missing_paths, trace.image == image)
