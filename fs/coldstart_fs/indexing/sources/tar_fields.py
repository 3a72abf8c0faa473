"""What stands in tar headers: numbers, times, names and PAX records, as exactly as Go's reader takes them."""

from __future__ import annotations

import re
from functools import lru_cache

from coldstart_fs.format.index import NANOSECONDS

_OCTAL = re.compile(rb"[0-7]+")
_RECORD_LENGTH = re.compile(rb"(\d{1,20}) ")
_TIME = re.compile(rb"(-?)(\d{1,20})(?:\.(\d*))?")


class FieldError(ValueError):
    """Says what cannot be read; whoever knows the archive makes an error of it."""


class LimitError(FieldError):
    """Says which limit of ours is passed: nothing is damaged."""


@lru_cache(8192)  # the same modes, owners and sizes come again and again
def number(field: bytes, what: str) -> int:
    """Octal between blanks and zero bytes, or GNU's base-256: two's complement below the marker bit."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    text = field.strip(b" \0").partition(b"\0")[0].rstrip(b" ")
    if not text:
        return 0
    if not _OCTAL.fullmatch(text):
        raise FieldError(f"its {what} is not a number")
    return int(text, 8)


def decimal(text: bytes, what: str) -> int:
    if not text.isdigit() or len(text) > 20:
        raise FieldError(f"its {what} is not a number")
    return int(text)


def owner(value: int, what: str) -> int:
    if not 0 <= value < (1 << 32) - 1:  # the kernel takes the last number for "leave it as it is"
        raise FieldError(f"its {what} is out of range: {value}")
    return value


def device(header: bytes) -> tuple[int, int]:
    """Major and minor number, as far as Linux has them."""
    major, minor = number(header[329:337], "device number"), number(header[337:345], "device number")
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise FieldError(f"its device number is out of range: {major}:{minor}")
    return major, minor


def nanoseconds(text: bytes) -> int:
    """A PAX time: decimal seconds, exactly, what is finer than a nanosecond cut off."""
    match = _TIME.fullmatch(text)
    if not match:
        raise FieldError("its mtime is not a number")
    total = int(match[2]) * NANOSECONDS + int((match[3] or b"").ljust(9, b"0")[:9])
    return checked_time(-total if match[1] else total)


def checked_time(total_ns: int) -> int:
    if not -(1 << 63) <= total_ns // NANOSECONDS < 1 << 63:
        raise FieldError("its mtime is out of range")
    return total_ns


def header_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] != b"ustar\0":  # V7 has no prefix, GNU keeps times in its place
        return name
    # star keeps times behind a shorter prefix
    prefix = header[345:476] if header[508:512] == b"tar\0" else header[345:500]
    prefix = prefix.partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def pax_records(content: bytes) -> list[tuple[bytes, bytes]]:
    """The records of an extended header, in order, repeated keys too."""
    records: list[tuple[bytes, bytes]] = []
    position = 0
    while position < len(content):
        match = _RECORD_LENGTH.match(content, position)
        end = position + int(match[1]) if match else 0
        if not match or not match.end() < end <= len(content) or content[end - 1] != 0x0A:
            raise FieldError("an extended header cannot be read")
        key, equals, value = content[match.end() : end - 1].partition(b"=")
        if not equals or not key:
            raise FieldError("an extended header cannot be read")
        records.append((key, value))
        position = end
    return records
