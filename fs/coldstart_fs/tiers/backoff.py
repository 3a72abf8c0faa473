"""How long to wait before another try: full jitter, so that many hosts do not come back at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC

BASE_SECONDS = 0.05
CAP_SECONDS = 2.0


def full_jitter(
    tries: int,
    *,
    base_seconds: float = BASE_SECONDS,
    cap_seconds: float = CAP_SECONDS,
    draw: Callable[[], float] = random.random,
) -> float:
    """Seconds to wait after `tries` failed ones: anything up to a ceiling that doubles up to the cap."""
    # the exponent is bounded before the power is taken: a float has an end
    ceiling = min(cap_seconds, base_seconds * 2.0 ** min(max(tries, 1) - 1, 64))
    return max(0.0, min(1.0, draw())) * ceiling


def retry_after_seconds(header: str | None, *, now: Callable[[], float] = time.time) -> float | None:
    """What a `Retry-After` header asks for, a number of seconds or a date; None for anything else."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    from email.utils import parsedate_to_datetime

    try:
        at = parsedate_to_datetime(text)
        # a date without a zone is UTC's, as the header's definition has it
        seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds)
