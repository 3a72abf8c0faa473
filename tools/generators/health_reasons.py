"""docs/health.md: every reason code and every XID, from the registry that `health quick --explain` reads."""

from __future__ import annotations

import itertools

from coldstart_health.reasons import Reason, all_reasons, explain
from coldstart_health.xids import all_xids

_HEAD = """# Reason codes of `coldstart health`

Written by `make generate` from `health/coldstart_health/reasons.toml` and `xids.py`.
On a host: `coldstart health quick --explain CODE`.

Codes are stable: scripts and alerts may match them. The verdict of a finding is one of those named here;
which one, its evidence says. `ok` findings inform. `ok` and `degraded` may serve; from `unknown` on nothing
may be placed there.
"""
_XIDS = """## XIDs

From NVIDIA's catalogue of 2025-10. A number that is not here is unused in the catalogue or newer than it,
and `unknown`: nobody can say that it is harmless. Several verdicts: the worse one when three programs met
the same fault, `ok` when it is over (`health/README.md` says when), or as the words of the line say.
"""
_COLUMNS = "| code | verdicts | meaning | usual cause | what to do |\n| --- | --- | --- | --- | --- |\n"
_XID_COLUMNS = "| code | verdicts | meaning | what to do |\n| --- | --- | --- | --- |\n"


def files() -> dict[str, str]:
    """The page, by its path."""
    parts = [_HEAD]
    for group, reasons in itertools.groupby(all_reasons(), key=lambda reason: reason.group):
        parts.append(f"## {group}\n\n{_COLUMNS}{''.join(map(_row, reasons))}")
    xids = (explain(f"xid_{entry.code}") for entry in all_xids())
    parts.append(f"{_XIDS}\n{_XID_COLUMNS}{''.join(_xid_row(reason) for reason in xids if reason)}")
    return {"docs/health.md": "\n".join(parts)}


def _row(reason: Reason) -> str:
    return f"| {reason.code} | {_words(reason)} | {reason.meaning} | {reason.cause} | {reason.action} |\n"


def _xid_row(reason: Reason) -> str:
    meaning = reason.meaning.partition(": ")[2]
    return f"| {reason.code} | {_words(reason)} | {meaning} | {reason.action} |\n"


def _words(reason: Reason) -> str:
    return ", ".join(verdict.word for verdict in reason.verdicts)
