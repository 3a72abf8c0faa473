"""When `health quick` and `health deep` last came to a verdict, and to which: a small file for each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.files import atomic_write
from coldstart_cli.regular import read_regular
from coldstart_health.moment import Moment
from coldstart_health.strict_json import moment_from_json, moment_json
from coldstart_health.verdict import HealthReport, Verdict

_SCHEMA = "coldstart.health.run"
_VERSION = 1
RunKind = Literal["quick", "deep"]
RUN_KINDS: tuple[RunKind, ...] = ("quick", "deep")


@dataclass(frozen=True)
class LastRun:
    """The end of one run."""

    kind: RunKind
    verdict: Verdict
    summary: str
    at: Moment
    duration_seconds: float

    def document(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "kind": self.kind,
            "verdict": self.verdict.word,
            "summary": self.summary,
            "at": moment_json(self.at),
            "duration_seconds": round(self.duration_seconds, 3),
        }


def last_run_path(state_folder: Path, kind: RunKind) -> Path:
    return state_folder / "health" / f"last-{kind}.json"


def record_run(state_folder: Path, kind: RunKind, report: HealthReport, moment: Moment) -> None:
    """Replace the record of the last run of this kind."""
    run = LastRun(kind, report.overall, report.summary, moment, report.duration_seconds)
    content = {"schema": _SCHEMA, "version": _VERSION, **run.document()}
    atomic_write(last_run_path(state_folder, kind), json.dumps(content, indent=1).encode() + b"\n")


def load_last_run(state_folder: Path, kind: RunKind) -> LastRun | None:
    """None where there was none; a record that cannot be read says so, and decides nothing."""
    path = last_run_path(state_folder, kind)
    try:
        document = json.loads(read_regular(path))
        return _parse(document, kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IoFailure(f"cannot read the last run: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"record of the last run is damaged: {path}", hint=f"rm {path}") from error


def _parse(document: Any, kind: RunKind) -> LastRun:
    if (document["schema"], document["version"]) != (_SCHEMA, _VERSION):
        raise ValueError("another schema or version")
    return LastRun(
        kind=kind,
        verdict=Verdict[str(document["verdict"]).upper()],
        summary=str(document["summary"]),
        at=moment_from_json(document["at"]),
        duration_seconds=float(document["duration_seconds"]),
    )
