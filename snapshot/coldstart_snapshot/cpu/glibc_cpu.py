"""What glibc in a live process takes the CPU for: its record of usable features, read from memory.

glibc binds its string and maths functions by this record, and so does what asks `__get_cpu_features` of it.
The record has no symbol. It is found by its beginning, which repeats what CPUID says: highest leaf, family,
model and stepping; the features follow as eight words for each leaf: as the CPU says, then as used
(glibc 2.33 to 2.41, `struct cpu_features`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

from coldstart_host.cpu_levels import BITS, CpuidBit, level_flags
from coldstart_host.cpuid import read_cpuid
from coldstart_snapshot.cpu.mapped import MappedFile
from coldstart_snapshot.cpu.ptrace import read_memory

_LOADER = re.compile(r"/ld-linux-x86-64\.so\.2$|/ld-2\.\d+\.so$|/libc\.so\.6$")
# CPUID leaves in the order of the record
_LEAVES = ((1, 0), (7, 0), (0x80000001, 0), (0xD, 1))
_WORDS_EACH = 8
_USED = 4
# the features that glibc 2.36 to 2.41 choose string and maths functions, trampolines and library folders by;
# XSAVE is not among them: LD_BIND_NOW, which is a cap too, keeps the trampolines from being used
_CHOSEN_BY = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "fma", "movbe", "popcnt", "sse4_1"})
_CHOSEN_BY_512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "xsavec"})
# chosen by too, and in no level
_MORE_BITS = {
    "rtm": CpuidBit(7, 0, 1, 11),
    "fma4": CpuidBit(0x80000001, 0, 2, 16),
    "xop": CpuidBit(0x80000001, 0, 2, 11),
}


def active_above(pid: int, level: str, files: Iterable[MappedFile]) -> tuple[str, ...] | None:
    """Features above `level` that glibc chooses code by; None where there is no glibc to be found."""
    if not any(_LOADER.search(file.path) for file in files):
        return None
    words = _record(pid)
    if words is None:
        return None
    watched = {name: BITS[name] for name in _CHOSEN_BY | _CHOSEN_BY_512} | _MORE_BITS
    found = []
    for name in watched.keys() - level_flags(level):
        place = watched[name]
        at = _LEAVES.index((place.leaf, place.subleaf)) * _WORDS_EACH + _USED + place.register
        if words[at] >> place.bit & 1:
            found.append(name)
    return tuple(sorted(found))


def _record(pid: int) -> tuple[int, ...] | None:
    start = struct.pack("<4i", *_identity())
    length = len(_LEAVES) * _WORDS_EACH * 4
    for low, high in _loader_data(pid):
        try:
            memory = read_memory(pid, low, high - low)
        except OSError:
            continue
        at = memory.find(start)
        while at >= 0:
            words = memory[at + len(start) : at + len(start) + length]
            if len(words) == length:
                values = struct.unpack(f"<{length // 4}I", words)
                # the first word repeats CPUID 1: what stands there by chance does not
                if values[0] & 0x0FFF0FFF == read_cpuid(1, 0)[0] & 0x0FFF0FFF:
                    return values
            at = memory.find(start, at + 1)
    return None


def _identity() -> tuple[int, int, int, int]:
    """Highest leaf, family, model, stepping as glibc computes them."""
    highest = read_cpuid(0, 0)[0]
    signature = read_cpuid(1, 0)[0]
    family, model = signature >> 8 & 0xF, signature >> 4 & 0xF
    if family == 0xF:
        family += signature >> 20 & 0xFF
        model += signature >> 12 & 0xF0
    elif family == 0x6:
        model += signature >> 12 & 0xF0
    return highest, family, model, signature & 0xF


def _loader_data(pid: int) -> list[tuple[int, int]]:
    """Data of the loader, where the record lives in a dynamically linked process."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape").splitlines():
        addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
        if path and _LOADER.search(path[0]) and "x" not in permissions and permissions.startswith("r"):
            low, high = addresses.split("-")
            found.append((int(low, 16), int(high, 16)))
    return found
