"""Ranges of packs turned into chunks: neighbours in one request, each verified before anybody sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.packs import PackSource
from coldstart_fs.format.chunk import decode_chunk, verify
from coldstart_fs.format.names import changed_pack_hint, digest_text
from coldstart_fs.tiers.attempt import Stored

Content = bytes | bytearray | memoryview
Outcome = Content | ColdstartError
"""A chunk's bytes, or why it cannot be had."""


@dataclass(slots=True)
class Run:
    """Chunks of one pack that one request brings, in order of offset."""

    pack: bytes
    offset: int
    end: int
    chunks: list[PlacedChunk]

    @property
    def length(self) -> int:
        return self.end - self.offset


def runs_of(chunks: Iterable[PlacedChunk], *, largest_bytes: int, gap_bytes: int = 0) -> list[Run]:
    """Requests that bring these chunks, in their order; neighbours share one, over a gap of so many bytes."""
    runs: list[Run] = []
    run: Run | None = None
    for chunk in chunks:
        if (
            run is None
            or run.pack != chunk.pack
            or not run.end <= chunk.offset <= run.end + gap_bytes
            or chunk.end - run.offset > largest_bytes
        ):
            run = Run(chunk.pack, chunk.offset, chunk.end, [chunk])
            runs.append(run)
        else:
            run.end = chunk.end
            run.chunks.append(chunk)
    return runs


@dataclass(slots=True)
class Fetched:
    """What a request brought."""

    outcomes: dict[int, Outcome]
    """By position in the locator."""
    pieces: list[tuple[Run, Content]]
    """Chunks side by side that are right, as they are stored."""


def fetch_run(packs: PackSource, run: Run, *, deadline: float) -> Fetched:
    """Every chunk of a run, verified, or why it cannot be had. Never raises what belongs to a chunk."""
    decoded: dict[int, Outcome] = {}

    def check(stored: Stored) -> None:
        decoded.clear()
        view: Content = stored if len(run.chunks) == 1 else memoryview(stored)
        for chunk in run.chunks:
            part = view[chunk.offset - run.offset : chunk.end - run.offset]
            decoded[chunk.position] = decoded_chunk(chunk, part)

    try:
        stored = packs.fetch(run.pack, run.offset, run.length, deadline=deadline, check=check)
    except ColdstartError as error:
        if len(run.chunks) == 1:
            return Fetched({run.chunks[0].position: _refused(run.chunks[0], error)}, [])
        if not isinstance(error, DataError | NotFoundError):
            # nobody answers: to ask for each chunk would be to wait for each
            return Fetched({chunk.position: _refused(chunk, error) for chunk in run.chunks}, [])
        # a bad chunk costs its neighbours nothing; a pack that was cut short has what stands before the cut
        together = Fetched({}, [])
        for chunk in run.chunks:
            one = fetch_run(packs, Run(run.pack, chunk.offset, chunk.end, [chunk]), deadline=deadline)
            together.outcomes |= one.outcomes
            together.pieces += one.pieces
        return together
    view = memoryview(stored)
    return Fetched(
        decoded,
        [
            (piece, view[piece.offset - run.offset : piece.end - run.offset])
            for piece in runs_of(run.chunks, largest_bytes=run.length)
        ],
    )


def decoded_chunk(chunk: PlacedChunk, stored: Content) -> Content:
    """A chunk from its stored form, verified; `DataError` says what is wrong with it."""
    try:
        data = decode_chunk(chunk.location, stored)
        verify(chunk.digest, data)
    except DataError as error:
        where = f"{digest_text(chunk.digest)}, pack {digest_text(chunk.pack)}"
        text = f"chunk cannot be used: {where}: {error.message}"
        raise DataError(text, hint=error.hint or changed_pack_hint(chunk.pack)) from None
    return data


def _refused(chunk: PlacedChunk, error: ColdstartError) -> ColdstartError:
    if isinstance(error, DataError) and error.message.startswith("chunk cannot be used"):
        return error
    text = f"chunk cannot be fetched: {digest_text(chunk.digest)}: {error.message}"
    if isinstance(error, DataError | NotFoundError):
        return DataError(text, hint=error.hint or "index the image again")
    return type(error)(text, hint=error.hint)
