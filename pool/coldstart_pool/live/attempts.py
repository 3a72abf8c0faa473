"""Every attempt to get a machine, appended to a table that `pool plan` reads as observed supply."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure
from coldstart_pool.live.refill_file import RefillOffer

HEADINGS = (
    "time",
    "provider",
    "region",
    "zone",
    "instance_type",
    "gpu",
    "gpu_count",
    "market",
    "requested",
    "obtained",
    "seconds",
    "reason",
)
_LONGEST_REASON = 200


def append_attempt(
    path: Path,
    offer: RefillOffer,
    *,
    time: str,
    requested: int,
    obtained: int,
    seconds: float,
    reason: str,
) -> None:
    """One more row, whole or not at all; `requested` and `obtained` count machines."""
    row = (
        time,
        offer.provider,
        offer.region,
        offer.zone,
        offer.instance_type,
        offer.gpu,
        offer.gpus_per_instance,
        offer.market,
        requested,
        obtained,
        f"{seconds:.1f}",
        _readable(reason),
    )
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size_bytes = os.fstat(descriptor).st_size
            content = _lines(row) if size_bytes else _lines(HEADINGS, row)
            if size_bytes:
                _require_ours(path, descriptor)
                if (
                    os.pread(descriptor, 1, size_bytes - 1) != b"\n"
                ):  # the end of a row that was cut, or edited
                    content = b"\n" + content
            if os.write(descriptor, content) != len(content):
                os.ftruncate(descriptor, size_bytes)
                raise OSError("no space for the row")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise IoFailure(f"cannot note an attempt: {path}: {error.strerror or error}") from error


def _readable(reason: str) -> str:
    """One line of what a program said last, without what no table can hold."""
    kept = "".join(character if character.isprintable() else " " for character in reason)
    return " ".join(kept.split())[:_LONGEST_REASON]


def _require_ours(path: Path, descriptor: int) -> None:
    """A row under other headings would mean something else, and spoil what stands there."""
    expected = _lines(HEADINGS)
    if os.pread(descriptor, len(expected), 0).rstrip(b"\r\n") != expected.rstrip(b"\n"):
        raise DataError(
            f"table has other columns than refills write, nothing is added to it: {path}",
            hint="set `pool.supply_table` to a file of its own; `pool plan` takes several `--supply`",
        )


def _lines(*rows: tuple[object, ...]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
