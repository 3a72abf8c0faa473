"""The demo's result: two waterfalls on one scale, medians of all starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

_BAR_WIDTH = 24
_STAGES_AFTER_READY = ("snapshot",)
# what both kinds of start share, and what overlaps with it, is not the server's own
_SHARED_STAGES = ("mount", "health")


@dataclass(frozen=True)
class Start:
    """One start: how, its stages as (start, duration) in seconds, and what one request gave."""

    method: str
    stages: Mapping[str, tuple[float, float]]
    total_seconds: float
    lines: Sequence[str]
    request_seconds: float

    @property
    def server_seconds(self) -> float:
        """From starting, or verifying and restoring, to ready: without mount and health check."""
        return sum(length for name, (_, length) in self.stages.items() if name not in _SHARED_STAGES)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], lines: Sequence[str], seconds: float) -> Start:
        """From what `coldstart launch --json` says."""
        return cls(
            method=document["method"],
            stages={
                stage["name"]: (stage["start_seconds"], stage["duration_seconds"])
                for stage in document["stages"]
                if stage["name"] not in _STAGES_AFTER_READY
            },
            total_seconds=document["total_seconds"],
            lines=lines,
            request_seconds=seconds,
        )


def print_report(cold: Sequence[Start], restored: Sequence[Start]) -> None:
    left, right = _medians(cold), _medians(restored)
    total_cold = median(start.total_seconds for start in cold)
    total_restored = median(start.total_seconds for start in restored)
    scale = max(total_cold, *(begin + length for begin, length in left.values()))
    names = [*left, *(name for name in right if name not in left)]
    names.sort(key=lambda name: left.get(name, right.get(name, (0.0, 0.0)))[0])
    column = _BAR_WIDTH + 8
    print()
    print(f"{'seconds':10}{'started cold':{column}}restored from the snapshot")
    for name in names:
        print(f"{name:10}{_bar(left.get(name), scale):{column}}{_bar(right.get(name), scale)}".rstrip())
    print(f"{'to ready':10}{total_cold:<{column}.2f}{total_restored:.2f}")
    own_cold = median(start.server_seconds for start in cold)
    own_restored = median(start.server_seconds for start in restored)
    print()
    print(
        f"the server itself: start to ready {own_cold:.2f} s, "
        f"verify and restore to ready {own_restored:.2f} s: {own_cold / own_restored:.1f} times sooner"
    )
    print(
        f"from the command: ready {total_cold / total_restored:.1f} times sooner "
        f"(medians of {len(cold)} and {len(restored)} starts), the same answer from each"
    )
    print(
        f"reading one page takes {median(start.request_seconds for start in cold):.2f} s after a cold start, "
        f"{median(start.request_seconds for start in restored):.2f} s after a restore"
    )


def _medians(starts: Sequence[Start]) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(name for start in starts for name in start.stages)
    return {
        name: (
            median(start.stages[name][0] for start in starts if name in start.stages),
            median(start.stages[name][1] for start in starts if name in start.stages),
        )
        for name in names
    }


def _bar(stage: tuple[float, float] | None, scale_seconds: float) -> str:
    if stage is None:
        return ""
    begin, length = stage
    indent = min(_BAR_WIDTH - 1, round(_BAR_WIDTH * begin / scale_seconds))
    filled = max(1, min(_BAR_WIDTH - indent, round(_BAR_WIDTH * length / scale_seconds)))
    return f"{length:5.2f} {' ' * indent}{'█' * filled}"
