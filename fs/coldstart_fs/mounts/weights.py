"""Where the tensors of a safetensors file begin: whoever reads the first page of one will read all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

SMALLEST_FILE_BYTES = 16 << 20
_LENGTH_BYTES = 8
# parsing holds the interpreter; the header of a large model's file has some hundred kilobytes
_LARGEST_HEADER_BYTES = 2 << 20


def tensor_places(read: Callable[[int, int], bytes], file_bytes: int) -> list[int]:
    """The offsets in the file at which tensors begin, sorted; empty for any other file. `read` may raise."""
    head = read(0, _LENGTH_BYTES + 1)
    header_bytes = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if not 2 <= header_bytes <= min(_LARGEST_HEADER_BYTES, file_bytes - _LENGTH_BYTES) or head[-1:] != b"{":
        return []
    try:
        header = json.loads(read(_LENGTH_BYTES, header_bytes))
    except (ValueError, RecursionError):
        return []
    data = _LENGTH_BYTES + header_bytes
    begins = (_begin(entry) for name, entry in header.items() if name != "__metadata__")
    return sorted({data + begin for begin in begins if begin is not None and data + begin < file_bytes})


def _begin(entry: Any) -> int | None:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if isinstance(offsets, list) and offsets and isinstance(offsets[0], int) and offsets[0] >= 0:
        return offsets[0]
    return None
