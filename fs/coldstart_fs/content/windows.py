"""How much to bring around misses in packs; no input or output of its own."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BYTES = 1 << 20
# how many places of an image are read at the same time
_MOST_WINDOWS = 16
# a start reads forward more often than backward
_BEFORE_SHARE = 4


@dataclass(slots=True)
class Window:
    """What was brought around misses in one place of a pack."""

    pack: bytes
    begin: int
    end: int
    size_bytes: int
    largest_bytes: int


class Windows:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._packs: dict[bytes, list[Window]] = {}

    def around(
        self, pack: bytes, begin: int, end: int, first_bytes: int, largest_bytes: int = LARGEST_BYTES
    ) -> Window:
        """The range to have around a miss: twice as much as before where the last one was next to it."""
        windows = self._packs.setdefault(pack, [])
        size_bytes = min(first_bytes, largest_bytes)
        for window in windows:
            if window.begin - window.size_bytes <= end and begin <= window.end + window.size_bytes:
                size_bytes = min(max(size_bytes, 2 * window.size_bytes), largest_bytes)
                windows.remove(window)
                break
        first = max(0, begin - size_bytes // _BEFORE_SHARE)
        return self._keep(
            Window(pack, first, first + max(size_bytes, end - first), size_bytes, largest_bytes)
        )

    def after(self, window: Window) -> Window:
        """The range to have next where somebody has come to the end of one: twice as much, too."""
        size_bytes = min(2 * window.size_bytes, window.largest_bytes)
        windows = self._packs.setdefault(window.pack, [])
        if window in windows:
            windows.remove(window)
        return self._keep(
            Window(window.pack, window.end, window.end + size_bytes, size_bytes, window.largest_bytes)
        )

    def _keep(self, window: Window) -> Window:
        windows = self._packs[window.pack]
        windows.insert(0, window)
        del windows[_MOST_WINDOWS:]
        return window
