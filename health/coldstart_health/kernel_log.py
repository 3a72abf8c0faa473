"""Reads this boot's kernel log: /dev/kmsg, else the journal. Records and their numbers, no opinion."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_health.kernel_reading import WORTH, Cursor, KernelRecord, LogReading

# a record of Linux 6 holds at most 2 KiB of text, escaped four-fold; a smaller buffer gets EINVAL
_READ_BYTES = 8192
_LIMIT_BYTES = 64 << 20
_LOOK_AT_CLOCK_RECORDS = 256
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def read_kernel_log(
    configured: str, after: Cursor | None, *, journalctl: str, deadline_seconds: float
) -> LogReading:
    """Records after `after`: of the device, of the journal where that is denied; raises where both are.

    What the device has overwritten is taken from the journal.
    """
    from coldstart_health.kernel_journal import read_journal

    if configured == "journal":
        return read_journal(journalctl, after, deadline_seconds=deadline_seconds)
    started = time.monotonic()
    try:
        reading = read_kmsg(Path(configured), after, deadline_seconds=deadline_seconds)
    except ColdstartError as denied:
        try:
            return read_journal(journalctl, after, deadline_seconds=deadline_seconds)
        except ColdstartError as error:
            raise UnavailableError(
                f"{denied.message}; {error.message}",
                hint="run as root or in group systemd-journal; hand /dev/kmsg into a container",
            ) from error
    left = deadline_seconds - (time.monotonic() - started)
    if reading.gap is None or left <= 0:
        return reading
    try:
        older = read_journal(journalctl, None, deadline_seconds=left)
    except ColdstartError:
        return reading
    return _filled(reading, older, after.usec if after else 0)


def _filled(reading: LogReading, older: LogReading, from_usec: int) -> LogReading:
    """Put the journal's copy of overwritten records before those that are left."""
    missing = [record for record in older.records if from_usec < record.usec < reading.first.usec]
    lowest = reading.first.sequence - len(missing)
    copies = [replace(record, sequence=lowest + index) for index, record in enumerate(missing)]
    closed = older.first.usec <= from_usec and older.cursor.usec >= reading.first.usec and not older.cut
    return replace(reading, records=(*copies, *reading.records), gap=None if closed else reading.gap)


def read_kmsg(
    device: Path,
    after: Cursor | None,
    *,
    deadline_seconds: float,
    read: Callable[[int, int], bytes] = os.read,
) -> LogReading:
    """Every record of the ring buffer after `after`; never waits for more. A file of records will do too."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UnavailableError(f"cannot open {device}: {error.strerror}") from error
    try:
        lines = _kmsg_lines(device, descriptor, read)
        found, cut = _before_deadline(map(_parsed, lines), deadline_seconds)
    finally:
        os.close(descriptor)
    if not found:  # containers put /dev/null or a console in its place
        raise UnavailableError(f"no record in {device}: it is no kernel log")
    if after and not cut and found[-1].sequence < after.sequence and after.journal is None:
        return replace(_reading(found, None, cut=cut), gap="the log began anew within this boot")
    return _reading(found, after, cut=cut)


@dataclass(frozen=True)
class _Line:
    sequence: int
    usec: int
    facility: int
    text: bytes


def _reading(found: list[_Line], after: Cursor | None, *, cut: bool) -> LogReading:
    first, last = found[0], found[-1]
    if after is not None and after.journal is not None:
        new = [line for line in found if line.usec > after.usec]
        lost = first.usec > after.usec
        gap = "records between the journal and the device" if lost else None
    else:
        unread = after.sequence + 1 if after else 0
        new = [line for line in found if line.sequence >= unread]
        # numbers have no holes but where records were overwritten, before or while we read
        missing = last.sequence - unread + 1 - len(new)
        gap = f"{missing} records" if missing > 0 else None
    return LogReading(
        "kmsg",
        # programs may write to /dev/kmsg too, but the kernel never lets them use facility 0
        tuple(
            KernelRecord(line.sequence, line.usec, _plain(line.text))
            for line in new
            if line.facility == 0 and WORTH.search(line.text)
        ),
        first=Cursor(first.sequence, first.usec),
        cursor=Cursor(last.sequence, last.usec) if new or after is None else after,
        gap=gap,
        cut=cut,
    )


def _kmsg_lines(device: Path, descriptor: int, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    rest = b""
    while True:
        try:
            piece = read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten while we read: the numbers show how many
                continue
            raise UnavailableError(f"cannot read {device}: {error.strerror}") from error
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")  # a line without its end is still being written
        yield from lines


def _parsed(line: bytes) -> _Line | None:
    """One record; a line that begins with a blank is a property of the one before."""
    head, semicolon, text = line.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 4:
        return None
    try:
        return _Line(int(fields[1]), int(fields[2]), int(fields[0]) >> 3, text)
    except ValueError:
        return None


def _before_deadline(lines: Iterable[_Line | None], deadline_seconds: float) -> tuple[list[_Line], bool]:
    """The records until the deadline or the limit, and whether one of them cut it short."""
    deadline, size = time.monotonic() + deadline_seconds, 0
    found: list[_Line] = []
    for line in lines:
        if line is None:
            continue
        found.append(line)
        size += len(line.text)
        over = size > _LIMIT_BYTES or (
            len(found) % _LOOK_AT_CLOCK_RECORDS == 0 and time.monotonic() > deadline
        )
        if over:
            return found, True
    return found, False


def _plain(text: bytes) -> str:
    """Undo how the kernel writes bytes that cannot be printed: backslash, x, two hexadecimal digits."""
    decoded = text.decode("utf-8", "replace")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), decoded) if "\\x" in decoded else decoded
