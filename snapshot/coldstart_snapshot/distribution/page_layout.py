"""How a variant's files are cut into chunks: pages by addresses, for equal memory to be equal chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_snapshot.criu.images import page_runs
from coldstart_snapshot.kept.manifest import SnapshotFile

CHUNK_BYTES = 64 << 10
_PAGE_BYTES = 4096
_PAGES = re.compile(r"images/pages-(\d+)\.img")


def is_pages(path: str) -> bool:
    """Whether a file of a variant holds memory; the others are small, but for an archived layer."""
    return _PAGES.fullmatch(path) is not None


def transfer_order(file: SnapshotFile) -> tuple[bool, int, str]:
    """What a restore needs first comes first: small files, the layer, then pages in criu's order."""
    found = _PAGES.fullmatch(file.path)
    return (True, int(found[1]), file.path) if found else (False, 0, file.path)


class PageLayout:
    """The cuts of one variant's files."""

    def __init__(self, folder: Path) -> None:
        try:
            self._runs = page_runs(folder / "images")
        except (DataError, ValueError):  # no images that we know: cut without their help
            self._runs = {}

    def sizes(self, file: SnapshotFile) -> Iterator[int]:
        """The sizes of a file's chunks, in order; they add up to its own.

        A page that is new moves all pages after it in the file. Where chunks end at addresses that
        `CHUNK_BYTES` divides, it changes its own chunk only.
        """
        found = _PAGES.fullmatch(file.path)
        runs = self._runs.get(int(found[1])) if found else None
        if runs is None or sum(count for _, count in runs) * _PAGE_BYTES != file.size_bytes:
            yield from _even(file.size_bytes)
            return
        for address, count in runs:
            begin, end = address, address + count * _PAGE_BYTES
            while begin < end:
                cut = min(end, (begin // CHUNK_BYTES + 1) * CHUNK_BYTES)
                yield cut - begin
                begin = cut


def _even(size_bytes: int) -> Iterator[int]:
    for offset in range(0, size_bytes, CHUNK_BYTES):
        yield min(CHUNK_BYTES, size_bytes - offset)
