"""What criu's images say of files: the ones handed in from outside, and deleted hard links."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError

_COMMON_MAGIC = 0x54564319
_FILES_MAGIC = 0x56303138
_REMAP_MAGIC = 0x59133954
_TYPE_REGULAR = 1
_REMAP_LINKED = 0
_KEY = "file["

# field numbers of criu's regfile.proto and fdinfo.proto
_ENTRY_TYPE, _ENTRY_REGULAR = 1, 3
_FILE_ID, _FILE_FLAGS, _FILE_NAME, _FILE_SIZE, _FILE_EXTERNAL = 1, 2, 6, 8, 9
_REMAP_ID, _REMAP_TYPE = 2, 3

Field = int | bytes


@dataclass(frozen=True)
class OutputFile:
    """A file that a restore must hand in: `size_bytes` is what criu insists on, None for appended ones."""

    key: str
    size_bytes: int | None


def output_files_of(images: Path) -> tuple[OutputFile, ...]:
    """The files that were declared external at the dump, those with a size first seen first."""
    found: dict[str, OutputFile] = {}
    for file in _regular_files(images):
        name = _text(file.get(_FILE_NAME))
        if file.get(_FILE_EXTERNAL) and name.startswith(_KEY):
            flags = _number(file.get(_FILE_FLAGS))
            # criu's own rule: a log that is appended to may have any size
            appended = flags & os.O_ACCMODE == os.O_WRONLY and bool(flags & os.O_APPEND)
            found.setdefault(name, OutputFile(name, None if appended else _number(file.get(_FILE_SIZE))))
    return tuple(found.values())


def linked_remaps(images: Path) -> tuple[str, ...]:
    """Hard links that criu made to hold deleted files; they are gone after a dump that lets go on."""
    path = images / "remap-fpath.img"
    if not path.exists():
        return ()
    wanted = {
        _number(entry.get(_REMAP_ID))
        for entry in _entries(path, _REMAP_MAGIC)
        if _number(entry.get(_REMAP_TYPE)) == _REMAP_LINKED
    }
    return tuple(
        f"/{_text(file.get(_FILE_NAME)).lstrip('/')}"
        for file in _regular_files(images)
        if _number(file.get(_FILE_ID)) in wanted
    )


def _regular_files(images: Path) -> Iterator[dict[int, Field]]:
    for entry in _entries(images / "files.img", _FILES_MAGIC):
        regular = entry.get(_ENTRY_REGULAR)
        if _number(entry.get(_ENTRY_TYPE)) == _TYPE_REGULAR and isinstance(regular, bytes):
            yield _fields(regular)


def _entries(path: Path, magic: int) -> Iterator[dict[int, Field]]:
    """An image is two magic numbers, then length-prefixed protobuf messages."""
    try:
        data = path.read_bytes()
        if struct.unpack_from("<II", data) != (_COMMON_MAGIC, magic):
            raise DataError(f"not a criu image of the expected kind: {path}")
        position = 8
        while position < len(data):
            (length,) = struct.unpack_from("<I", data, position)
            yield _fields(data[position + 4 : position + 4 + length])
            position += 4 + length
    except (OSError, struct.error, IndexError) as error:
        raise DataError(f"criu image cannot be read: {path}: {error}") from error


def _fields(data: bytes) -> dict[int, Field]:
    """The fields of one message, the last of each number; nested ones stay bytes."""
    fields: dict[int, Field] = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            fields[number], position = _varint(data, position)
        elif kind == 2:
            length, position = _varint(data, position)
            fields[number] = data[position : position + length]
            position += length
        else:
            position += 8 if kind == 1 else 4
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _number(field: Field | None) -> int:
    return field if isinstance(field, int) else 0


def _text(field: Field | None) -> str:
    return field.decode("utf-8", "surrogateescape") if isinstance(field, bytes) else ""
