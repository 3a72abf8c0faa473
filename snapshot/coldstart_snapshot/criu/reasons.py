"""The reason codes of `snap check` and `snap explain`: what each one means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files


class Severity(StrEnum):
    """Of a finding in a live tree; a note does not keep from capturing."""

    BLOCKER = "blocker"
    NOTE = "note"


@dataclass(frozen=True)
class Reason:
    """One code; `group` is its heading in the documentation, `severity` None where only logs have it."""

    code: str
    group: str
    meaning: str
    remedy: str
    severity: Severity | None


@cache
def all_reasons() -> tuple[Reason, ...]:
    """Every reason, in the order of the documentation."""
    import tomllib

    text = files("coldstart_snapshot.criu").joinpath("reasons.toml").read_text("utf-8")
    return tuple(
        Reason(
            code,
            group,
            entry["meaning"],
            entry["remedy"],
            Severity(entry["check"]) if "check" in entry else None,
        )
        for group, entries in tomllib.loads(text).items()
        for code, entry in entries.items()
    )


def reason(code: str) -> Reason:
    """The reason of a code that is known to exist."""
    return _by_code()[code]


@cache
def _by_code() -> dict[str, Reason]:
    return {entry.code: entry for entry in all_reasons()}
