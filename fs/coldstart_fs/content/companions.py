"""What comes along in a request: small files beside a small one, the next chunk of a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from coldstart_cli.errors import DataError
from coldstart_fs.content.chunks import ChunkMap, FileChunks, PlacedChunk
from coldstart_fs.content.pack_map import PackMap

# what one request brings along, and how large a file may be for that: round trips cost more than these bytes
_WINDOW_BYTES = 96 << 10
_SMALL_BYTES = 127 << 10
# what may lie about unused: a share of what was used, and a beginning
_SHARE = 4
_BEGINNING_BYTES = 8 << 20
# numbers fit into a byte; whatever comes later shares the last one
_MOST_KINDS = 255


class Kind(NamedTuple):
    """Why something was brought, and where: what was right there before will be right again."""

    reason: str
    place: bytes = b""
    beginning_bytes: int = 384 << 10
    """What may be brought of it before any of that was used."""
    is_free: bool = False
    """Whether the link gives it for no time: then it takes no room from other kinds."""


@dataclass(slots=True)
class _Account:
    is_free: bool = False
    demanded_bytes: int = 0
    brought_bytes: int = 0
    used_bytes: int = 0


class Companions:
    """Keeps what is fetched in vain below a share of what is used, of all and of each kind. Thread-safe."""

    def __init__(self, chunks: ChunkMap, pack_map: Callable[[], PackMap]) -> None:
        self.unused = bytearray(chunks.locator.chunk_count)
        """By position in the locator: of what was brought along and nobody has read yet its kind's number."""
        self._all = _Account()
        self._kinds: dict[Kind, int] = {}
        self._accounts: list[_Account] = [self._all]
        self.is_wanted: Callable[[], bool] = lambda: True
        """False where the link is long: there much more is brought, in requests of its own (`neighbours`)."""
        self.on_used: Callable[[int], None] = lambda _: None
        """Hears of each of them that is asked for after all; must not wait."""
        self.is_here: Callable[[int], bool] = lambda _: False
        """By position: whether a chunk need not be brought."""
        self._chunks = chunks
        self._pack_map = pack_map
        self._lock = Lock()

    @property
    def brought_bytes(self) -> int:
        return self._all.brought_bytes

    @property
    def used_bytes(self) -> int:
        return self._all.used_bytes

    def of(self, number: int, chunk: PlacedChunk) -> tuple[list[PlacedChunk], Kind]:
        """What to bring along with a chunk of a file, side by side with it in the pack, and its kind."""
        file = self._chunks.file(number)
        kind = Kind("following" if len(file) > 1 else "beside", chunk.pack)
        with self._lock:
            for account in self._accounts_of(self._number(kind)):
                account.demanded_bytes += chunk.end - chunk.offset
        left_bytes = min(self.room_bytes(kind), _WINDOW_BYTES)
        if left_bytes <= 0 or not self.is_wanted():
            return [], kind
        if len(file) > 1:
            return _following(file, chunk), kind
        if chunk.size_bytes > _SMALL_BYTES:
            return [], kind
        try:
            return self._beside(chunk, left_bytes), kind
        except DataError:  # who reads those hears what is wrong
            return [], kind

    def brought(self, chunks: Iterable[PlacedChunk], kind: Kind) -> None:
        """These are on their way though nobody asked for them."""
        with self._lock:
            number = self._number(kind)
            for chunk in chunks:
                if not self.unused[chunk.position]:
                    self.unused[chunk.position] = number
                    for account in self._accounts_of(number):
                        account.brought_bytes += chunk.end - chunk.offset

    def used(self, chunk: PlacedChunk) -> None:
        """One of them was asked for after all."""
        with self._lock:
            if number := self.unused[chunk.position]:
                self.unused[chunk.position] = 0
                for account in self._accounts_of(number):
                    account.used_bytes += chunk.end - chunk.offset
        self.on_used(chunk.position)

    def room_bytes(self, kind: Kind) -> int:
        """How much more of a kind may be brought that nobody has asked for."""
        with self._lock:
            whole, own = self._all, self._accounts[self._number(kind)]
            own_room_bytes = kind.beginning_bytes + own.demanded_bytes // 2 + own.used_bytes
            own_room_bytes -= own.brought_bytes - own.used_bytes
            if kind.is_free:
                return own_room_bytes
            room_bytes = _BEGINNING_BYTES + (whole.demanded_bytes + whole.used_bytes) // _SHARE
            return min(room_bytes - whole.brought_bytes + whole.used_bytes, own_room_bytes)

    def _accounts_of(self, number: int) -> tuple[_Account, ...]:
        own = self._accounts[number]
        return (own,) if own.is_free else (self._all, own)

    def _number(self, kind: Kind) -> int:
        if (number := self._kinds.get(kind)) is not None:
            return number
        if len(self._accounts) > _MOST_KINDS:
            return _MOST_KINDS
        self._accounts.append(_Account(kind.is_free))
        return self._kinds.setdefault(kind, len(self._accounts) - 1)

    def _beside(self, chunk: PlacedChunk, left_bytes: int) -> list[PlacedChunk]:
        """Small files that touch it in its pack, those after it first."""
        places = self._pack_map()
        after: list[PlacedChunk] = []
        for position in places.within(chunk.pack, chunk.end, chunk.end + left_bytes):
            found = self._chunks.placed(position)
            if self._ends(found) or found.offset != (after or [chunk])[-1].end:
                break
            left_bytes -= found.end - found.offset
            if left_bytes < 0:
                return after
            after.append(found)
        before: list[PlacedChunk] = []
        for position in reversed(places.within(chunk.pack, chunk.offset - left_bytes, chunk.offset)):
            found = self._chunks.placed(position)
            if self._ends(found) or found.end != (before or [chunk])[-1].offset:
                break
            before.append(found)
        return [*reversed(before), *after]

    def _ends(self, chunk: PlacedChunk) -> bool:
        """Whether nothing is brought from here on: a large file, or what is here already."""
        return chunk.size_bytes > _SMALL_BYTES or self.is_here(chunk.position)


def _following(file: FileChunks, chunk: PlacedChunk) -> list[PlacedChunk]:
    """The next chunk of a large file: a library is read here and there, and mostly soon beside that."""
    place = file.place_after(chunk)
    found = file[place] if place < len(file) else None
    touches = found is not None and found.pack == chunk.pack and found.offset == chunk.end
    return [found] if found is not None and touches else []
