"""How the image commands write names, sizes and times, for people and for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from coldstart_cli.plain import plain


def texts(**names: bytes) -> dict[str, Any]:
    r"""Byte names as JSON texts that lose nothing; `escaped` lists the keys whose bytes are not UTF-8.

    In those a backslash is written `\\`, and each byte that is not UTF-8 `\xNN`.
    """
    found: dict[str, Any] = {}
    escaped = []
    for key, name in names.items():
        try:
            found[key] = name.decode("utf-8")
        except UnicodeDecodeError:
            found[key] = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
            escaped.append(key)
    return found | ({"escaped": escaped} if escaped else {})


def size(size_bytes: int) -> str:
    """A size for people, in powers of 1000: 1.2 MB."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    amount = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} EB"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def utc(mtime_ns: int) -> str:
    """A time with all its nanoseconds; `@SECONDS` where the calendar ends."""
    seconds, nanoseconds = divmod(mtime_ns, 1_000_000_000)
    fraction = f".{nanoseconds:09d}" if nanoseconds else ""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
    except (ValueError, OverflowError, OSError):
        return f"@{seconds}{fraction}"


def text(name: bytes) -> str:
    r"""A name for people, on one line: a backslash is `\\`, what no terminal should get `\n` or `\xNN`."""
    return plain(name.replace(b"\\", b"\\\\").decode("utf-8", "surrogateescape"))


def path(name: bytes) -> str:
    """A path in an image for people."""
    return "/" + text(name)
