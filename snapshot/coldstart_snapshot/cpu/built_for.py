"""What mapped files were compiled for, where they show it: code that never asks the CPU cannot be answered.

Hints, no disassembly: notes that linkers write, the instruction that ends 256-bit code, static linking.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from coldstart_host.cpu_levels import LEVELS
from coldstart_snapshot.cpu.mapped import MappedFile

_CPUID = b"\x0f\xa2"
_VZEROUPPER = b"\xc5\xf8\x77"  # compilers end each function that used 256-bit registers with it
_DISPATCHES = re.compile(
    rb"__cpu_model|__cpu_indicator_init|__get_cpu_features|_dl_x86_get_cpu_features|__x86_get_cpu|__cpu_features"
)
# a caller chooses among its functions
_CHOSEN_BY_CALLERS = re.compile(r"/libmvec\.so")
_AVX_FROM = LEVELS.index("x86-64-v3")
_MAX_BYTES = 1 << 30
_ELF_64 = b"\x7fELF\x02\x01"
_PT_INTERP, _PT_NOTE = 3, 4
_NOTE_PROPERTY_TYPE = 5
_ISA_1_NEEDED = 0xC0008002  # GNU_PROPERTY_X86_ISA_1_NEEDED: bits are baseline, v2, v3, v4


def built_for_more(pid: int, level: str, files: Iterable[MappedFile]) -> Iterator[str]:
    """What speaks against a process's files keeping to `level` without being told to."""
    if _is_static(f"/proc/{pid}/exe"):
        yield "is linked statically: what its code was compiled for cannot be seen"
    seen = set()
    for file in files:
        if not file.is_file or file.identity in seen:
            continue
        seen.add(file.identity)
        name = os.path.basename(file.path)
        content = _content(f"/proc/{pid}/map_files/{file.start:x}-{file.end:x}")
        needed = needed_level(content)
        if needed is not None and LEVELS.index(needed) > LEVELS.index(level):
            yield f"maps a file that was built for {needed}: {name}"
        elif LEVELS.index(level) < _AVX_FROM and _has_avx_without_asking(file, content):
            yield f"maps a file with AVX code that never asks the CPU: {name}"


def needed_level(content: bytes) -> str | None:
    """The level that a linker noted as needed (`-z x86-64-v3`), if it is above the baseline."""
    for kind, offset, size in _segments(content):
        if kind != _PT_NOTE:
            continue
        for data in _properties(content[offset : offset + size]):
            needed = [level for bit, level in enumerate(LEVELS, start=1) if data >> bit & 1]
            if needed:
                return needed[-1]
    return None


def _has_avx_without_asking(file: MappedFile, content: bytes) -> bool:
    if _CHOSEN_BY_CALLERS.search(file.path):
        return False
    code = file.code()
    return _VZEROUPPER in code and _CPUID not in code and _DISPATCHES.search(content) is None


def _is_static(path: str) -> bool:
    segments = list(_segments(_content(path, 1 << 16)))
    return bool(segments) and not any(kind == _PT_INTERP for kind, _, _ in segments)


def _content(path: str, limit_bytes: int = _MAX_BYTES) -> bytes:
    with suppress(OSError), open(path, "rb") as stream:
        return stream.read(limit_bytes)
    return b""


def _segments(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, offset and size of each segment of a 64-bit ELF file."""
    if not content.startswith(_ELF_64) or len(content) < 64:
        return
    (table,) = struct.unpack_from("<Q", content, 32)
    each, count = struct.unpack_from("<HH", content, 54)
    for index in range(count):
        with suppress(struct.error):
            kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", content, table + index * each)
            yield kind, offset, size


def _properties(notes: bytes) -> Iterator[int]:
    """The needed ISA of every property note."""
    at = 0
    with suppress(struct.error):
        while at < len(notes):
            name_size, size, kind = struct.unpack_from("<III", notes, at)
            start = at + 12 + (name_size + 3) // 4 * 4
            if kind == _NOTE_PROPERTY_TYPE and notes[at + 12 : at + 16] == b"GNU\0":
                yield from _isa_needed(notes[start : start + size])
            # notes of properties are aligned to 8 bytes, others to 4: sizes of the former are multiples of 8
            at = start + (size + 3) // 4 * 4


def _isa_needed(properties: bytes) -> Iterator[int]:
    at = 0
    with suppress(struct.error):
        while at < len(properties):
            kind, size = struct.unpack_from("<II", properties, at)
            if kind == _ISA_1_NEEDED and size == 4:
                yield struct.unpack_from("<I", properties, at + 8)[0]
            at += 8 + (size + 7) // 8 * 8
