"""The kernel's messages of this boot as journald kept them, through journalctl."""

from __future__ import annotations

import json
import re
from typing import Any

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import ProgramTimeoutError, find_program, last_lines, run
from coldstart_health.kernel_reading import WORTH, Cursor, KernelRecord, LogReading

_FIELDS = "MESSAGE,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP"
_LIMIT_BYTES = 64 << 20
_GRACE_SECONDS = 0.1


def read_journal(program: str, after: Cursor | None, *, deadline_seconds: float) -> LogReading:
    """Records after `after`. Raises where the journal shows no kernel message: no boot goes without one."""
    cursor = after.journal if after else None
    # from the cursor on, not after it: when the journal was rotated past it, its entry is not the first
    place = [f"--cursor={cursor}"] if cursor else []
    command = [find_program("journalctl", program), "-k", "-b", "-o", "json", "--no-pager", *place]
    cut = False
    try:
        completed = run(
            [*command, f"--output-fields={_FIELDS}"],
            deadline_seconds=deadline_seconds,
            purpose="journalctl -k -b",
            check=False,
            output_limit_bytes=_LIMIT_BYTES,
            grace_seconds=_GRACE_SECONDS,
        )
        output, words, cut = completed.stdout, last_lines(completed.stderr), completed.truncated
    except ProgramTimeoutError as error:
        output, words, cut = error.stdout, error.message, True
    entries = [entry for line in output.split(b"\n") if (entry := _entry(line))]
    if not entries:
        # without the right to see it, journalctl ends with 0 and shows nothing
        raise UnavailableError(f"no kernel message in the journal{f': {words}' if words else ''}")
    return _reading(entries, after, cut=cut)


def _reading(entries: list[dict[str, Any]], after: Cursor | None, *, cut: bool) -> LogReading:
    first_usec, last_usec = _usec(entries[0]), _usec(entries[-1])
    at_cursor = after is not None and entries[0].get("__CURSOR") == after.journal
    if after is None:
        gap = None if first_usec == 0 else "the beginning of this boot"
    elif after.journal is None:
        gap = None if first_usec <= after.usec else "records between the device and the journal"
    else:
        gap = None if at_cursor else "records that the journal no longer has"
    if at_cursor:
        entries = entries[1:]
    start = after.sequence + 1 if after else 0
    fresh = [entry for entry in entries if after is None or after.journal or _usec(entry) > after.usec]
    records = []
    for index, entry in enumerate(fresh):
        text = _message(entry.get("MESSAGE"))
        # journald reads what programs wrote to /dev/kmsg from there as well
        if str(entry.get("SYSLOG_FACILITY", "0")) == "0" and WORTH.search(text):
            records.append(KernelRecord(start + index, _usec(entry), text.decode("utf-8", "replace")))
    last = after
    if fresh or last is None:
        last = Cursor(start + max(len(fresh) - 1, 0), last_usec, str(entries[-1].get("__CURSOR")))
    return LogReading(
        "journal", tuple(records), first=Cursor(start, first_usec), cursor=last, gap=gap, cut=cut
    )


def _entry(line: bytes) -> dict[str, Any] | None:
    """One entry; the last may be cut, and journalctl mixes in words such as `-- No entries --`."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _usec(entry: dict[str, Any]) -> int:
    for name in ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"):
        if re.fullmatch(r"\d{1,19}", str(entry.get(name, ""))):
            return int(entry[name])
    return 0


def _message(value: object) -> bytes:
    """A text; a list of bytes where it is no UTF-8; null where journalctl finds it too long."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list):
        return bytes(item for item in value if isinstance(item, int) and 0 <= item < 256)
    return b""
