"""Stand-ins for the kernel log: a file with the records of /dev/kmsg, and a journalctl with its entries."""

from __future__ import annotations

import json
from pathlib import Path

_PLACE = "kmsg"
_JOURNALCTL = """#!/bin/sh
# prints the entries from --cursor on; all where that one is gone, as journalctl does
for argument; do
    case $argument in --cursor=*) cursor=${argument#--cursor=} ;; esac
done
if [ -n "$cursor" ] && grep -q "\\"__CURSOR\\": \\"$cursor\\"" "$0.entries"; then
    sed -n "/\\"__CURSOR\\": \\"$cursor\\"/,\\$p" "$0.entries"
else
    cat "$0.entries"
fi
"""


class KernelLogFile:
    """A ring buffer: numbered records, of which the oldest can be overwritten."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _PLACE
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            self.say("Linux version 6.12.0", usec=0)

    def say(self, *texts: str, facility: int = 0, usec: int | None = None) -> None:
        """Append records as the kernel's printk (facility 0) or a program's write (1) would."""
        records = self._records()
        number = int(records[-1].split(b",")[1]) + 1 if records else 0
        for sequence, text in enumerate(texts, number):
            at = sequence * 1_000_000 if usec is None else usec
            # the kernel escapes what cannot be printed
            body = "".join(c if " " <= c < "\x7f" and c != "\\" else _escaped(c) for c in text)
            records.append(f"{facility * 8 + 4},{sequence},{at},-;{body}".encode())
        self._write(records)

    def overwrite(self, count: int) -> None:
        """Lose the oldest records."""
        self._write(self._records()[count:])

    def _records(self) -> list[bytes]:
        return self.path.read_bytes().splitlines()

    def _write(self, records: list[bytes]) -> None:
        self.path.write_bytes(b"".join(record + b"\n" for record in records))


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


class Journal:
    """A journalctl: `program` prints what was said."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "journalctl"
        self.program.write_text(_JOURNALCTL)
        self.program.chmod(0o755)
        self._entries = folder / "journalctl.entries"
        self._entries.write_text("")
        self._number = 0

    def say(self, text: str | list[int] | None, *, usec: int | None = None, facility: int = 0) -> None:
        entry = {
            "__CURSOR": f"s=1;i={self._number:x}",
            "MESSAGE": text,
            "SYSLOG_FACILITY": str(facility),
            "_SOURCE_MONOTONIC_TIMESTAMP": str(self._number * 1_000_000 if usec is None else usec),
        }
        self._number += 1
        with self._entries.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def rotate(self, count: int) -> None:
        """Lose the oldest entries."""
        kept = self._entries.read_text().splitlines(keepends=True)[count:]
        self._entries.write_text("".join(kept))
