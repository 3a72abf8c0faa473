"""From bytes to text, and what was decided on the way."""

from __future__ import annotations

import codecs
import os
import re
import stat
import unicodedata
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, near_matches_hint

_LARGEST_BYTES = 1 << 30
_LARGEST_PIPED_BYTES = 1 << 28
# UTF-32 first: its little-endian mark begins with that of UTF-16
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32"),
    (codecs.BOM_UTF8, "utf-8", "UTF-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16"),
)
_MAGIC = (
    (b"PK\x03\x04", "an Excel workbook or a zip archive", "save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "save the sheet as CSV"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it with `gunzip`"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it with `zstd -d`"),
    (b"PAR1", "a Parquet file", "export it as CSV"),
)
# what no table holds: NUL and the other control characters, apart from tab and line ends
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

# zero-width and direction marks, which come along when text is copied from a page
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")


def read_bytes(path: Path) -> bytes:
    """The whole file, or what a program hands over in a pipe (`<(command)`, `/dev/stdin`).

    Refused when it is missing, closed to us, or too long; devices and named pipes at once: they need not end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            most = _most_bytes(path, descriptor)
            content = stream.read(most + 1)
    except FileNotFoundError as error:
        if str(path) == "-":
            raise NotFoundError("table does not exist: -", hint="standard input is `/dev/stdin`") from error
        siblings = [str(path.parent / entry.name) for entry in path.parent.glob("*.csv")]
        hint = near_matches_hint(str(path), siblings)
        raise NotFoundError(f"table does not exist: {path}", hint=hint) from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read table: {path}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise IoFailure(f"cannot read table: {path}: {getattr(error, 'strerror', error)}") from error
    if len(content) > most:
        raise DataError(f"{path}: larger than {most >> 20} MiB", hint="split it, or aggregate it first")
    return content


def _most_bytes(path: Path, descriptor: int) -> int:
    """How much may be read of what was opened; refuses what is no table."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        if found.st_size > _LARGEST_BYTES:
            raise DataError(
                f"{path}: larger than {_LARGEST_BYTES >> 20} MiB", hint="split it, or aggregate it first"
            )
        return _LARGEST_BYTES
    if stat.S_ISDIR(found.st_mode):
        raise IoFailure(f"cannot read table: {path}: Is a directory")
    # an unnamed pipe has a program at its other end; a named one may wait for a writer for ever
    if stat.S_ISFIFO(found.st_mode) and os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
        os.set_blocking(descriptor, True)
        return _LARGEST_PIPED_BYTES
    what = "a named pipe" if stat.S_ISFIFO(found.st_mode) else "a device"
    raise DataError(f"{path}: {what}, no table", hint="pass a file, or `<(command)`")


def decode(name: str, content: bytes) -> tuple[str, str, bool]:
    """The text, how it was encoded, and whether that was guessed.

    Letters have one form, and what nobody sees is left out: names that look the same must be the same.
    """
    text, encoding, guessed = _decoded(name, content)
    seen = _INVISIBLE.sub("", text)
    if len(seen) < len(text):
        encoding += f"; invisible characters left out: {len(text) - len(seen)}"
    return unicodedata.normalize("NFC", seen), encoding, guessed


def _decoded(name: str, content: bytes) -> tuple[str, str, bool]:
    for magic, what, hint in _MAGIC:
        if content.startswith(magic):
            raise DataError(f"{name}: the file is {what}, no CSV", hint=hint)
    for mark, encoding, said in _BOMS:
        if content.startswith(mark):
            return (
                _text(name, content[len(mark) :], encoding, len(mark)),
                f"{said}, by its byte-order mark",
                False,
            )
    if (unmarked := _unmarked_utf16(content)) is not None:
        return _text(name, content, unmarked, 0), "UTF-16 without a byte-order mark, by its zero bytes", True
    try:
        return _checked(name, content.decode("utf-8")), "UTF-8", False
    except UnicodeDecodeError as error:
        position = error.start
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: the text is neither UTF-8 (byte {position}) nor Windows-1252 (byte {error.start})",
            hint="convert it, for example with `iconv -f latin2 -t utf-8`",
        ) from error
    return _checked(name, text), f"Windows-1252, since byte {position} is not UTF-8", True


def _text(name: str, content: bytes, encoding: str, skipped: int) -> str:
    try:
        return _checked(name, content.decode(encoding))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: the text is not {encoding.upper()}: byte {error.start + skipped}",
            hint="convert it, for example with `iconv -f latin1 -t utf-8`",
        ) from error


def _unmarked_utf16(content: bytes) -> str | None:
    """Text of Latin letters in UTF-16 has a zero in nearly every second byte, UTF-8 has none."""
    start = content[:4096]
    if len(start) < 4 or b"\0" not in start:
        return None
    half = len(start) // 2
    if start[1::2].count(0) > half * 0.7 and start[::2].count(0) < half * 0.1:
        return "utf-16-le"
    if start[::2].count(0) > half * 0.7 and start[1::2].count(0) < half * 0.1:
        return "utf-16-be"
    return None


def _checked(name: str, text: str) -> str:
    if (found := _CONTROL.search(text)) is not None:
        line = len(re.findall(r"\r\n|\r|\n", text[: found.start()])) + 1
        raise DataError(
            f"{name}:{line}: a control character that no table holds: 0x{ord(found.group()):02x}",
            hint="export the table as CSV text",
        )
    return text
