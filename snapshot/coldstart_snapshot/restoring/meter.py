"""Measures one restore: criu with the read-ahead beside it, and what comes after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_snapshot.criu.images import restore_stats
from coldstart_snapshot.criu.zero_pages import pages_images
from coldstart_snapshot.kept.manifest import Manifest
from coldstart_snapshot.kept.verify import VerifyPass

if TYPE_CHECKING:
    from coldstart_snapshot.criu.budget import RestoreBudget
    from coldstart_snapshot.restoring.read_ahead import ReadAhead


class Meter:
    """Collects the figures of a restore's budget."""

    def __init__(self, manifest: Manifest, verified: VerifyPass) -> None:
        self._manifest = manifest
        self._verified = verified
        self._seconds = {"verify": verified.seconds}
        self._read_ahead: ReadAhead | None = None
        self._lazy = False

    @contextmanager
    def criu(self, images: Path, *, lazy: bool = False) -> Iterator[Callable[[], None]]:
        """While criu restores; what it yields, called once criu is at work, reads ahead where that pays."""
        self._lazy = lazy
        with ExitStack() as beside, self.phase("criu"):

            def read_ahead() -> None:
                from coldstart_snapshot.restoring.read_ahead import reading_ahead

                count = len(self._manifest.tree)
                self._read_ahead = beside.enter_context(reading_ahead(pages_images(images), processes=count))

            yield read_ahead

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = time.monotonic() - started

    def budget(self, work: Path) -> RestoreBudget:
        """The figures so far; `work` is where criu left its own."""
        from coldstart_snapshot.criu.budget import RestoreBudget

        pages, ahead = self._manifest.pages, self._read_ahead
        size_bytes = sum(
            file.size_bytes for file in self._manifest.files if file.path.startswith("images/pages-")
        )
        # of memory that comes on demand criu counts next to nothing
        stats = restore_stats(work) if not self._lazy else None
        return RestoreBudget(
            nonzero_bytes=pages.nonzero_bytes if pages is not None else size_bytes,
            zero_bytes=pages.zero_bytes if pages is not None else 0,
            cold_bytes=ahead.cold_bytes if ahead is not None else 0,
            read_ahead=ahead.decision if ahead is not None else "off",
            lazy=self._lazy,
            read_bytes_per_second=self._verified.bytes_per_second
            or (ahead.bytes_per_second if ahead is not None else None),
            memory_pages=stats.pages if stats is not None else None,
            criu_seconds=stats.seconds if stats is not None else None,
            seconds=dict(self._seconds),
        )
