"""docs/snapshot-reasons.md: every reason code of `snap check` and `snap explain`, from their registry."""

from __future__ import annotations

import itertools

from coldstart_snapshot.criu.reasons import Reason, all_reasons

_HEAD = """# Reason codes of `coldstart snap check` and `coldstart snap explain`

Written by `make generate` from `snapshot/coldstart_snapshot/criu/reasons.toml`.

`snap check` looks at a running server and names everything that keeps it from being captured; `snap create`
asks the same before it touches anything. `snap explain` tells what a criu log means, of whichever program
ran criu. Codes are stable: scripts and alerts may match them.

A **blocker** forbids the capture: criu would fail, or its snapshot would not come back. A **note** does not;
it says what the restored server will not find as it was. The other codes are of criu logs only.

| exit status | `snap check` | `snap explain` |
| --- | --- | --- |
| 0 | it can be captured, with notes or without | the error is told |
| 3 | it cannot | there is no error in the log |
| 65 | a kernel thread, a process of a container, coldstart's own tree | |
| 66 | there is no such process or container | there is no such log or snapshot |
"""
_COLUMNS = "| code | in `snap check` | meaning | what to do |\n| --- | --- | --- | --- |\n"


def files() -> dict[str, str]:
    """The page, by its path."""
    parts = [_HEAD]
    for group, reasons in itertools.groupby(all_reasons(), key=lambda reason: reason.group):
        parts.append(f"## {group}\n\n{_COLUMNS}{''.join(map(_row, reasons))}")
    return {"docs/snapshot-reasons.md": "\n".join(parts)}


def _row(reason: Reason) -> str:
    return f"| {reason.code} | {reason.severity or ''} | {reason.meaning} | {reason.remedy} |\n"
