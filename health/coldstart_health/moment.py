"""When something was seen: ordered by boot and by the clock that nobody can set; UTC is for people."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from coldstart_host.kernel import boot_id


@dataclass(frozen=True)
class Moment:
    """A point in time on this host. `boottime_seconds` counts from the boot and never jumps."""

    boot_id: str
    boottime_seconds: float
    utc: str

    def same_boot(self, other: Moment) -> bool:
        return self.boot_id == other.boot_id

    def is_after(self, other: Moment) -> bool:
        """Every other boot counts as earlier: a run does not outlive its boot."""
        return not self.same_boot(other) or self.boottime_seconds > other.boottime_seconds

    def days_since(self, other: Moment) -> float:
        """By UTC across boots, 0 where that clock went backwards: what may be recent counts as recent."""
        if self.same_boot(other):
            seconds = self.boottime_seconds - other.boottime_seconds
        else:
            seconds = (datetime.fromisoformat(self.utc) - datetime.fromisoformat(other.utc)).total_seconds()
        return max(0.0, seconds / 86400)


def now() -> Moment:
    """This boot, its age, and what the clock on the wall says."""
    return Moment(
        boot_id=boot_id(),
        boottime_seconds=round(time.clock_gettime(time.CLOCK_BOOTTIME), 3),
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )
