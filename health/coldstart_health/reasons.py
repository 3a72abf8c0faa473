"""The registry of reason codes: what each means, whence it comes, what to do. The data is reasons.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coldstart_health.verdict import Verdict
from coldstart_health.xids import Course, xid

# what else one of these may come to: met by several programs, over since a reset, or as its words say
_FURTHER: dict[Course, set[Verdict]] = {
    Course.RESTART: {Verdict.DEGRADED},
    Course.CONTAINED: {Verdict.OK, Verdict.RESET},
    Course.RESET: {Verdict.OK},
    Course.WATCH: {Verdict.OK},
    Course.DECODE: {Verdict.OK, Verdict.DEGRADED, Verdict.UNKNOWN},
    Course.DRIVER_SAYS: {Verdict.OK, Verdict.DRAIN, Verdict.RESET, Verdict.REBOOT},
}
_DATA = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True)
class Reason:
    """`verdicts`: those that a finding with this code may carry. An `N` in the code stands for a number."""

    code: str
    group: str
    meaning: str
    cause: str
    action: str
    verdicts: tuple[Verdict, ...]


@functools.cache
def all_reasons() -> tuple[Reason, ...]:
    """In the order of the data, group by group."""
    return tuple(
        Reason(
            code,
            group["title"],
            entry["meaning"],
            entry["cause"],
            entry["action"],
            tuple(Verdict[word.upper()] for word in entry["verdicts"]),
        )
        for group in _document().values()
        for code, entry in group.items()
        if code != "title"
    )


def explain(asked: str) -> Reason | None:
    """The entry of a code as a person writes it: `xid_79`, `79`, `XID 79`, `Persistence-Off`."""
    code = re.sub(r"[\s-]+", "_", asked.strip().lower())
    code = f"xid_{code}" if code.isdecimal() else code
    known = {reason.code: reason for reason in all_reasons()}
    if code in known:
        return known[code]
    match = re.fullmatch(r"(.*_)(\d{1,9})", code)
    family = known.get(f"{match[1]}N") if match else None
    if match is None or family is None:
        return None
    return _xid(family, int(match[2])) if match[1] == "xid_" else replace(family, code=code)


def _xid(family: Reason, number: int) -> Reason:
    entry = xid(number)
    action = entry.course.action.format(gpu="GPU")
    verdicts = _FURTHER.get(entry.course, set()) | {entry.course.verdict}
    return Reason(
        f"xid_{number}",
        family.group,
        f"XID {number}: {entry.meaning}",
        "a line `NVRM: Xid` of NVIDIA's driver in this boot's kernel log",
        action,
        tuple(sorted(verdicts)),
    )


def _document() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(_DATA.read_text("utf-8"))
