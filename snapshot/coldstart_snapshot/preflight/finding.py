"""What a preflight finds: one thing that forbids a capture, or that is worth knowing before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coldstart_snapshot.criu.reasons import Severity, reason
from coldstart_snapshot.processes.tree import process_name


@dataclass(frozen=True)
class Peer:
    """The other end of a connection, pipe or lock; pid 0 where no process of this host is known for it."""

    pid: int
    program: str
    address: str | None = None


@dataclass(frozen=True)
class Finding:
    """`code` is one of reasons.toml, `what` names the object, `remedy` is one command or edit."""

    code: str
    severity: Severity
    what: str
    remedy: str
    pid: int | None = None
    descriptor: int | None = None
    path: str | None = None
    peer: Peer | None = None
    size_bytes: int | None = None
    program: str | None = None

    def to_dict(self) -> dict[str, Any]:
        peer = self.peer
        return {
            "code": self.code,
            "severity": str(self.severity),
            "what": self.what,
            "remedy": self.remedy,
            "pid": self.pid,
            "program": self.program,
            "descriptor": self.descriptor,
            "path": self.path,
            "size_bytes": self.size_bytes,
            "peer": {"pid": peer.pid or None, "program": peer.program, "address": peer.address}
            if peer
            else None,
        }


def finding(code: str, what: str, *, remedy: str | None = None, **details: Any) -> Finding:
    """A finding as heavy as its code says, with the code's remedy unless there is a better one."""
    known = reason(code)
    assert known.severity is not None
    pid = details.get("pid")
    return Finding(
        code=code,
        severity=known.severity,
        what=what,
        remedy=remedy or known.remedy,
        program=process_name(pid) if pid is not None else None,
        **details,
    )
