"""What a program sees of a CPU that is no more than one x86-64 level: flags, and their places in CPUID."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coldstart_host.cpu import X86_LEVELS

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

# CPUs of the level that stand in data centres have these too, and TLS is several times slower without them;
# they count as required like any other flag, so a host that lacks one is refused by name. ERMS is not among
# them: EPYC of the second generation, which stands under many GPUs, lacks it
_USUAL: Mapping[str, frozenset[str]] = {
    "x86-64-v2": frozenset({"rdtscp"}),
    "x86-64-v3": frozenset({"aes", "pclmulqdq", "rdrand", "fsgsbase"}),
    "x86-64-v4": frozenset({"xsaveopt", "xsavec", "xgetbv1", "rdseed", "adx"}),
}

# state that XSAVE keeps for the level: x87 and SSE, the upper halves of AVX, the three parts of AVX-512
XFEATURES: Mapping[str, int] = {"x86-64-v2": 0x3, "x86-64-v3": 0x7, "x86-64-v4": 0xE7}


@dataclass(frozen=True)
class CpuidBit:
    """Where CPUID says that a flag is there; `register` counts EAX, EBX, ECX, EDX from 0."""

    leaf: int
    subleaf: int
    register: int
    bit: int


_EBX, _ECX, _EDX = 1, 2, 3
BITS: Mapping[str, CpuidBit] = {
    "pni": CpuidBit(1, 0, _ECX, 0),
    "pclmulqdq": CpuidBit(1, 0, _ECX, 1),
    "ssse3": CpuidBit(1, 0, _ECX, 9),
    "fma": CpuidBit(1, 0, _ECX, 12),
    "cx16": CpuidBit(1, 0, _ECX, 13),
    "sse4_1": CpuidBit(1, 0, _ECX, 19),
    "sse4_2": CpuidBit(1, 0, _ECX, 20),
    "movbe": CpuidBit(1, 0, _ECX, 22),
    "popcnt": CpuidBit(1, 0, _ECX, 23),
    "aes": CpuidBit(1, 0, _ECX, 25),
    "xsave": CpuidBit(1, 0, _ECX, 26),
    "osxsave": CpuidBit(1, 0, _ECX, 27),
    "avx": CpuidBit(1, 0, _ECX, 28),
    "f16c": CpuidBit(1, 0, _ECX, 29),
    "rdrand": CpuidBit(1, 0, _ECX, 30),
    "fsgsbase": CpuidBit(7, 0, _EBX, 0),
    "bmi1": CpuidBit(7, 0, _EBX, 3),
    "avx2": CpuidBit(7, 0, _EBX, 5),
    "bmi2": CpuidBit(7, 0, _EBX, 8),
    "erms": CpuidBit(7, 0, _EBX, 9),
    "avx512f": CpuidBit(7, 0, _EBX, 16),
    "avx512dq": CpuidBit(7, 0, _EBX, 17),
    "rdseed": CpuidBit(7, 0, _EBX, 18),
    "adx": CpuidBit(7, 0, _EBX, 19),
    "avx512cd": CpuidBit(7, 0, _EBX, 28),
    "avx512bw": CpuidBit(7, 0, _EBX, 30),
    "avx512vl": CpuidBit(7, 0, _EBX, 31),
    "xsaveopt": CpuidBit(0xD, 1, 0, 0),
    "xsavec": CpuidBit(0xD, 1, 0, 1),
    "xgetbv1": CpuidBit(0xD, 1, 0, 2),
    "lahf_lm": CpuidBit(0x80000001, 0, _ECX, 0),
    "abm": CpuidBit(0x80000001, 0, _ECX, 5),
    "rdtscp": CpuidBit(0x80000001, 0, _EDX, 27),
}


def level_flags(level: str) -> frozenset[str]:
    """Every flag that a program may find where nothing above `level` is shown to it."""
    flags: set[str] = set()
    for name, needed in X86_LEVELS:
        flags |= needed | _USUAL.get(name, frozenset())
        if name == level:
            return frozenset(flags)
    raise ValueError(f"no such level: {level}")


def flags_within(level: str, present: Iterable[str]) -> tuple[str, ...]:
    """The flags of this CPU that `level` shows, sorted."""
    return tuple(sorted(level_flags(level) & set(present)))


def reaches(level: str, reached: str) -> bool:
    """Whether a CPU of the level `reached` executes all that `level` asks for."""
    names = [name for name, _ in X86_LEVELS]
    return level in names and reached in names and names.index(level) <= names.index(reached)
