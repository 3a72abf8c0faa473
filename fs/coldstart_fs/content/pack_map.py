"""Which chunks of an image stand where in its packs: neighbours there are read together, mostly."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from coldstart_fs.format.locator import Locator

_POSITION_BITS = 32
_POSITIONS = (1 << _POSITION_BITS) - 1


class PackMap:
    """Chunks by pack and offset, as positions in the locator; made once, in some time a chunk."""

    def __init__(self, locator: Locator) -> None:
        # integers are sorted faster than pairs
        numbered: list[list[int]] = [[] for _ in locator.packs]
        for position, record in enumerate(locator.table()):
            numbered[record[4]].append(record[1] << _POSITION_BITS | position)
        self._packs: dict[bytes, tuple[array[int], array[int]]] = {}
        for pack, places in zip(locator.packs, numbered, strict=True):
            places.sort()
            self._packs[pack] = (
                array("Q", [place >> _POSITION_BITS for place in places]),
                array("L", [place & _POSITIONS for place in places]),
            )

    @property
    def packs(self) -> list[bytes]:
        return list(self._packs)

    def within(self, pack: bytes, begin: int, end: int) -> list[int]:
        """The chunks that begin in a range of a pack."""
        offsets, positions = self._packs[pack]
        return list(positions[bisect_left(offsets, begin) : bisect_left(offsets, end)])

    def onwards(self, pack: bytes, offset: int = 0) -> Iterator[int]:
        """All chunks of a pack from an offset on to its end, then those before."""
        offsets, positions = self._packs[pack]
        first = max(0, bisect_right(offsets, offset) - 1)
        yield from positions[first:]
        yield from positions[:first]
