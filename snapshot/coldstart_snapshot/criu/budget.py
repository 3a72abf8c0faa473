"""Where the time of a restore went, in figures that say what would make it faster."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class RestoreBudget:
    """Bytes and seconds of one restore; what was not measured is None.

    `read_bytes_per_second` is how fast something else than criu read the files, where it did: the digests of
    a first use, or the probe of the read-ahead. `memory_pages` are those that criu filled.
    """

    nonzero_bytes: int
    zero_bytes: int
    cold_bytes: int
    read_ahead: str
    lazy: bool = False
    read_bytes_per_second: float | None = None
    memory_pages: int | None = None
    criu_seconds: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def fault_bytes_per_second(self) -> float | None:
        """How fast criu filled memory: reading, page faults and copying together."""
        if not self.memory_pages or not self.criu_seconds:
            return None
        return self.memory_pages * mmap.PAGESIZE / self.criu_seconds

    def also(self, name: str, seconds: float) -> RestoreBudget:
        """The same with another phase."""
        return replace(self, seconds={**self.seconds, name: seconds})

    def document(self) -> dict[str, Any]:
        """The budget as JSON values."""
        return {
            "nonzero_bytes": self.nonzero_bytes,
            "zero_bytes": self.zero_bytes,
            "cold_bytes": self.cold_bytes,
            "read_ahead": self.read_ahead,
            "lazy": self.lazy,
            "read_bytes_per_second": _rounded(self.read_bytes_per_second),
            "fault_bytes_per_second": _rounded(self.fault_bytes_per_second),
            "criu_seconds": self.criu_seconds,
            "seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
        }

    def lines(self) -> list[str]:
        """The budget for people."""
        found = [
            f"memory: {self.nonzero_bytes / 1e6:.1f} MB, {self.zero_bytes / 1e6:.1f} MB of zeros left out, "
            f"{self.cold_bytes / 1e6:.1f} MB were not in the page cache",
            f"read-ahead {self.read_ahead}",
        ]
        if self.read_bytes_per_second is not None:
            found.append(f"files were read at {self.read_bytes_per_second / 1e6:.0f} MB/s ahead of criu")
        if self.fault_bytes_per_second is not None:
            found.append(
                f"criu filled memory at {self.fault_bytes_per_second / 1e6:.0f} MB/s, "
                f"in {self.criu_seconds:.3f} s"
            )
        if self.lazy:
            found.append("memory comes on demand: the first pass over it is slower than a whole restore")
        spent = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        return [*found, f"spent: {spent}"]


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
