"""What a launch came to, and what one would come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_launch.waterfall import Stage

if TYPE_CHECKING:
    from coldstart_snapshot.criu.budget import RestoreBudget


@dataclass(frozen=True)
class Launched:
    """A ready replica: how it came up, and where the time went."""

    name: str
    method: str
    variant: str | None
    image: str
    pid: int
    root: Path
    log: Path
    ready_url: str | None
    health: str
    stages: tuple[Stage, ...]
    total_seconds: float
    snapshot: str | None
    published: tuple[str, ...] = ()
    budget: RestoreBudget | None = None

    def document(self) -> dict[str, Any]:
        """The launch as JSON values."""
        return {
            "name": self.name,
            "method": self.method,
            "variant": self.variant,
            "image": self.image,
            "pid": self.pid,
            "root": str(self.root),
            "log": str(self.log),
            "ready_url": self.ready_url,
            "health": self.health,
            "total_seconds": round(self.total_seconds, 4),
            "stages": [stage.document() for stage in self.stages],
            "snapshot": self.snapshot,
            "budget": self.budget.document() if self.budget is not None else None,
            "published": list(self.published),
        }


@dataclass(frozen=True)
class Rehearsal:
    """What a launch would do, after every check that changes nothing."""

    name: str
    method: str
    variant: str | None
    image: str
    health: str
