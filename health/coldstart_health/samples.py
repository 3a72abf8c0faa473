"""What the last run measured on this host: two samples in a row decide, and a level ends 5 points lower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.files import atomic_write
from coldstart_cli.regular import read_regular
from coldstart_health.verdict import Verdict

_SCHEMA = "coldstart.health.sample"
_VERSION = 1
_HYSTERESIS_PERCENT = 5.0
# an older sample is no neighbour of this one
_IN_A_ROW_SECONDS = 3600.0


@dataclass(frozen=True)
class Level:
    """One figure: what was measured, and the verdict that stood after it."""

    percent: float
    verdict: Verdict


@dataclass(frozen=True)
class Sample:
    """`uptime_seconds` says when: unlike the wall clock it never jumps."""

    uptime_seconds: float
    booted_at: float
    synchronised: bool | None
    levels: Mapping[str, Level] = field(default_factory=dict)

    def before(self, uptime_seconds: float) -> bool:
        """Whether this sample was taken in the same boot, and not long ago."""
        return 0 <= uptime_seconds - self.uptime_seconds <= _IN_A_ROW_SECONDS


def level(percent: float, before: Level | None, warn_percent: float, fail_percent: float) -> Verdict:
    """The verdict on a figure, given the sample before; without one it is judged by itself."""
    now = _plain(percent, warn_percent, fail_percent)
    if before is None:
        return now
    if now > before.verdict:
        agreed = max(before.verdict, min(now, _plain(before.percent, warn_percent, fail_percent)))
        # one sample alone may warn, and does not take a host out
        return max(agreed, Verdict.DEGRADED) if now is Verdict.DRAIN else agreed
    held = {Verdict.DRAIN: fail_percent, Verdict.DEGRADED: warn_percent}
    for verdict, threshold in held.items():
        if now < verdict <= before.verdict and percent > threshold - _HYSTERESIS_PERCENT:
            return verdict
    return now


def _plain(percent: float, warn_percent: float, fail_percent: float) -> Verdict:
    if percent >= fail_percent:
        return Verdict.DRAIN
    return Verdict.DEGRADED if percent >= warn_percent else Verdict.OK


def sample_path(run_folder: Path) -> Path:
    return run_folder / "health" / "sample.json"


def load_sample(path: Path) -> Sample | None:
    """The last run's sample; None where there is none that can be read: the next figures stand alone."""
    try:
        document = json.loads(read_regular(path))
        if (document["schema"], document["version"]) != (_SCHEMA, _VERSION):
            return None
        levels = {
            key: Level(float(value["percent"]), Verdict[value["verdict"].upper()])
            for key, value in document["levels"].items()
        }
        return Sample(
            float(document["uptime_seconds"]), float(document["booted_at"]), document["synchronised"], levels
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def record_sample(path: Path, sample: Sample) -> None:
    document = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "uptime_seconds": sample.uptime_seconds,
        "booted_at": sample.booted_at,
        "synchronised": sample.synchronised,
        "levels": {
            key: {"percent": value.percent, "verdict": value.verdict.word}
            for key, value in sample.levels.items()
        },
    }
    atomic_write(path, json.dumps(document, indent=2).encode() + b"\n")
