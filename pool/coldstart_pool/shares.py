"""Shares as people read them."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """One digit after the point, never rounded up to a promise that was not kept."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%"


def percent_range(interval: tuple[float, float] | None) -> str:
    """`98.2%-99.7%`, or a dash where none is known."""
    return "-" if interval is None else f"{percent(interval[0])}-{percent(interval[1])}"
