"""The waterfall: which stage of a start took how long, measured on one monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

_BAR_WIDTH = 40


@dataclass(frozen=True)
class Stage:
    """One stage: seconds since the start of the chain, and how long it took."""

    name: str
    start_seconds: float
    duration_seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.duration_seconds

    def document(self) -> Mapping[str, Any]:
        """The stage as JSON values."""
        return {
            "name": self.name,
            "start_seconds": round(self.start_seconds, 4),
            "duration_seconds": round(self.duration_seconds, 4),
        }


class Waterfall:
    """Collects stages; stages may overlap and may come from several threads."""

    def __init__(self, started: float | None = None) -> None:
        """`started` is a `time.monotonic()` reading: the moment that the whole chain counts from."""
        self._started = time.monotonic() if started is None else started
        self._lock = Lock()
        self._stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block; a stage that fails is recorded too."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.add(name, begin, time.monotonic())

    def add(self, name: str, begin: float, end: float) -> None:
        """Record a stage from two `time.monotonic()` readings."""
        with self._lock:
            self._stages.append(Stage(name, begin - self._started, end - begin))

    @property
    def stages(self) -> tuple[Stage, ...]:
        with self._lock:
            return tuple(sorted(self._stages, key=lambda stage: (stage.start_seconds, stage.end_seconds)))

    @property
    def total_seconds(self) -> float:
        return max((stage.end_seconds for stage in self.stages), default=0.0)


def draw(stages: tuple[Stage, ...], *, scale_seconds: float | None = None) -> list[str]:
    """Bars of text, one line a stage; `scale_seconds` makes two drawings comparable."""
    if not stages:
        return []
    total = scale_seconds or max(stage.end_seconds for stage in stages)
    width = max(len(stage.name) for stage in stages)
    lines = []
    for stage in stages:
        left = round(_BAR_WIDTH * stage.start_seconds / total) if total else 0
        length = max(1, round(_BAR_WIDTH * stage.duration_seconds / total)) if total else 1
        left = min(left, _BAR_WIDTH - 1)
        bar = (" " * left + "#" * length)[:_BAR_WIDTH].ljust(_BAR_WIDTH)
        lines.append(f"{stage.name.ljust(width)}  |{bar}|  {stage.duration_seconds:7.3f} s")
    return lines
