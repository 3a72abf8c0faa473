"""What criu's images say of files: the ones handed in from outside, and deleted hard links."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError

_COMMON_MAGIC = 0x54564319
_FILES_MAGIC = 0x56303138
_REMAP_MAGIC = 0x59133954
_PAGEMAP_MAGIC = 0x56084025
_SERVICE_MAGIC, _STATS_MAGIC = 0x55105940, 0x57093306
_TYPE_REGULAR = 1
_REMAP_LINKED = 0
_KEY = "file["

# field numbers of criu's regfile.proto and fdinfo.proto
_ENTRY_TYPE, _ENTRY_REGULAR = 1, 3
_FILE_ID, _FILE_FLAGS, _FILE_NAME, _FILE_SIZE, _FILE_EXTERNAL = 1, 2, 6, 8, 9
_REMAP_ID, _REMAP_TYPE = 2, 3
# of pagemap.proto; `nr_pages` is the 64-bit one that criu 4 writes beside the old one
_PAGES_ID = 1
_RUN_ADDRESS, _RUN_PAGES_OLD, _RUN_IN_PARENT, _RUN_FLAGS, _RUN_PAGES = 1, 2, 3, 4, 5
_RUN_PRESENT = 1 << 2
# of stats.proto
_STATS_RESTORE, _RESTORE_MICROSECONDS, _RESTORE_PAGES = 2, 4, 5

# of sk-inet.proto
_TYPE_INET, _ENTRY_INET = 4, 4
_INET_PROTOCOL, _INET_SOURCE_PORT, _INET_TARGET_PORT, _INET_SOURCE, _INET_TARGET = 5, 7, 8, 11, 12

# of criu's stats.proto
_STATS_DUMP, _FREEZING_TIME, _FROZEN_TIME = 1, 1, 2

Field = int | bytes
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


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


def outside_connections(images: Path) -> tuple[str, ...]:
    """TCP connections to other hosts, as `10.0.0.3:40000 to 10.0.0.5:443`."""
    found = []
    for entry in _entries(images / "files.img", _FILES_MAGIC):
        message = entry.get(_ENTRY_INET)
        if _number(entry.get(_ENTRY_TYPE)) != _TYPE_INET or not isinstance(message, bytes):
            continue
        fields = _fields(message)
        if _number(fields.get(_INET_PROTOCOL)) != socket.IPPROTO_TCP:
            continue
        source = _address(message, _INET_SOURCE)
        target = _address(message, _INET_TARGET)
        port = _number(fields.get(_INET_TARGET_PORT))
        if port and not (_is_here(source) and _is_here(target)):
            found.append(f"{source}:{_number(fields.get(_INET_SOURCE_PORT))} to {target}:{port}")
    return tuple(sorted(found))


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


def page_runs(images: Path) -> dict[int, list[tuple[int, int]]]:
    """By number of the pages file: address and count of the pages in it, run by run."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in sorted(images.glob("pagemap-*.img")):
        head, *entries = _entries(path, _PAGEMAP_MAGIC)
        runs = found.setdefault(_number(head.get(_PAGES_ID)), [])
        for entry in entries:
            count = _number(entry.get(_RUN_PAGES)) or _number(entry.get(_RUN_PAGES_OLD))
            flags = entry.get(_RUN_FLAGS)
            present = flags is None or bool(_number(flags) & _RUN_PRESENT)
            if present and not _number(entry.get(_RUN_IN_PARENT)):
                runs.append((_number(entry.get(_RUN_ADDRESS)), count))
    return found


@dataclass(frozen=True)
class RestoreStats:
    """criu's own account of a restore."""

    seconds: float
    pages: int


def restore_stats(work: Path) -> RestoreStats | None:
    """What criu left in its work folder; None where it is not what we know: it only informs."""
    try:
        entries = list(_entries(work / "stats-restore", _STATS_MAGIC, common=_SERVICE_MAGIC))
        inner = entries[0].get(_STATS_RESTORE) if entries else None
        if not isinstance(inner, bytes):
            return None
        fields = _fields(inner)
    except (DataError, IndexError):
        return None
    return RestoreStats(_number(fields.get(_RESTORE_MICROSECONDS)) / 1e6, _number(fields.get(_RESTORE_PAGES)))


def standstill_seconds(work: Path) -> float | None:
    """How long criu held the processes in a dump, by its own statistics; None where it left none."""
    path = work / "stats-dump"
    if not path.exists():
        return None
    for entry in _entries(path, _STATS_MAGIC, common=_SERVICE_MAGIC):
        dump = entry.get(_STATS_DUMP)
        if isinstance(dump, bytes):
            fields = _fields(dump)
            microseconds = _number(fields.get(_FREEZING_TIME)) + _number(fields.get(_FROZEN_TIME))
            return microseconds / 1e6
    return None


def _regular_files(images: Path) -> Iterator[dict[int, Field]]:
    for entry in _entries(images / "files.img", _FILES_MAGIC):
        regular = entry.get(_ENTRY_REGULAR)
        if _number(entry.get(_ENTRY_TYPE)) == _TYPE_REGULAR and isinstance(regular, bytes):
            yield _fields(regular)


def _entries(path: Path, magic: int, common: int = _COMMON_MAGIC) -> Iterator[dict[int, Field]]:
    """An image is two magic numbers, then length-prefixed protobuf messages."""
    try:
        data = path.read_bytes()
        if struct.unpack_from("<II", data) != (common, magic):
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
    return dict(_values(data))


def _values(data: bytes) -> Iterator[tuple[int, Field]]:
    """Each field of one message with its number, in order."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield number, value
        elif kind == 2:
            length, position = _varint(data, position)
            yield number, data[position : position + length]
            position += length
        else:
            position += 8 if kind == 1 else 4


def _address(message: bytes, number: int) -> Address:
    """An address is one word, or four of them, each with its bytes as the kernel had them."""
    words = [value for tag, value in _values(message) if tag == number and isinstance(value, int)]
    raw = b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)
    if len(raw) not in {4, 16}:
        raise DataError(f"criu image has a socket with an address of {len(raw)} bytes")
    address = ipaddress.ip_address(raw)
    return getattr(address, "ipv4_mapped", None) or address


def _is_here(address: Address) -> bool:
    return address.is_loopback or address.is_unspecified


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
