"""The lines of the benchmark's table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table, all times in seconds."""

    name: str
    ours: list[float]
    peer: list[float]
    goal: str = ""


def show(rows: list[Row]) -> None:
    print(f"{'':38}{'ours':>10}{'peer':>10}{'ratio':>8}  goal")
    for row in rows:
        ours = statistics.median(row.ours)
        peer = statistics.median(row.peer) if row.peer else None
        ratio = f"{ours / peer:8.2f}" if peer else " " * 8
        print(f"{row.name:38}{_seconds(ours)}{_seconds(peer) if peer else ' ' * 10}{ratio}  {row.goal}")


def _seconds(value: float) -> str:
    return f"{value * 1000:7.2f} ms" if value < 0.1 else f"{value:8.3f} s"
