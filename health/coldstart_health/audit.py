"""Who released what and why, and what the rules did by themselves: a bounded log of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import IoFailure
from coldstart_cli.files import make_directory
from coldstart_cli.regular import open_own
from coldstart_health.moment import Moment
from coldstart_health.quarantine_record import GpuName, GpuRecord, Quarantine
from coldstart_health.strict_json import moment_json

_SCHEMA = "coldstart.health.audit"
_VERSION = 1
SIZE_LIMIT_BYTES = 1 << 20
_NO_LOGIN = 2**32 - 1  # what the kernel reports for a process that nobody logged in for


@dataclass(frozen=True)
class Person:
    """Who gave a command, by all that the system knows: sudo's word, and the login that no su changes."""

    uid: int
    user: str
    sudo_user: str | None
    login_uid: int | None
    pid: int

    @property
    def label(self) -> str:
        return self.sudo_user or self.user


def this_person() -> Person:
    """The user of this process."""
    uid = os.getuid()
    login: int | None = None
    with suppress(OSError, ValueError):  # kernels without auditing have no loginuid
        login = int(Path("/proc/self/loginuid").read_text("ascii"))
    return Person(
        uid=uid,
        user=_user_name(uid),
        sudo_user=os.environ.get("SUDO_USER") if uid == 0 else None,
        login_uid=None if login == _NO_LOGIN else login,
        pid=os.getpid(),
    )


def audit_path(state_folder: Path) -> Path:
    return state_folder / "health" / "audit.jsonl"


def append_audit(state_folder: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add lines durably, under the quarantine's lock. A full log becomes `audit.jsonl.1`."""
    lines = "".join(f"{json.dumps({'schema': _SCHEMA, 'version': _VERSION, **entry})}\n" for entry in entries)
    if not lines:
        return
    path = audit_path(state_folder)
    make_directory(path.parent)
    try:
        _rotate(path)
        descriptor = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        with os.fdopen(descriptor, "r+b", buffering=0) as stream:
            size = os.fstat(descriptor).st_size
            # a writer that was killed may have left half a line
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = f"\n{lines}"
            content = lines.encode("utf-8", "replace")
            while content:
                content = content[stream.write(content) :]
            os.fsync(descriptor)
    except OSError as error:
        raise IoFailure(f"cannot write the audit log: {path}: {error.strerror}") from error


def clearance(record: GpuRecord, *, by: Person, why: str, moment: Moment) -> dict[str, Any]:
    """A person's release of one GPU."""
    return {
        "action": "clear",
        "at": moment_json(moment),
        "who": asdict(by),
        "reason": why,
        "gpu": vars(record.name),
        "verdict": record.verdict.word,
        "causes": [cause.reason for cause in record.causes],
    }


def fresh_start(kept: Path | None, *, by: Person, why: str, moment: Moment) -> dict[str, Any]:
    """A person's decision to begin with an empty quarantine; `kept` is the copy of the file before."""
    return {
        "action": "clear_all",
        "at": moment_json(moment),
        "who": asdict(by),
        "reason": why,
        "kept": None if kept is None else str(kept),
    }


def forgetting(name: GpuName, *, by: Person, why: str, moment: Moment) -> dict[str, Any]:
    """A person's word that what a GPU does now is as it should be."""
    return {
        "action": "forget_baseline",
        "at": moment_json(moment),
        "who": asdict(by),
        "reason": why,
        "gpu": vars(name),
    }


def changes(before: Quarantine, after: Quarantine, moment: Moment) -> Iterator[dict[str, Any]]:
    """What the rules did: a GPU entered, its verdict changed, it was released."""
    verdicts = {record.name.subject: record.verdict for record in before.records if record.causes}
    for record in after.records:
        old = verdicts.get(record.name.subject)
        new = record.verdict if record.causes else None
        if old is new:
            continue
        yield {
            "action": "entered" if old is None else "released" if new is None else "changed",
            "at": moment_json(moment),
            "gpu": vars(record.name),
            "verdict": None if new is None else new.word,
            "before": None if old is None else old.word,
            "causes": [cause.reason for cause in record.causes],
        }


def _rotate(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_size >= SIZE_LIMIT_BYTES:
            os.replace(path, path.with_name(f"{path.name}.1"))


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
