"""What this CPU offers to programs: identity, psABI level, flags, and the sizes of the XSAVE area."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_host.cpuid import read_cpuid

_XSTATE_LEAF = 0xD

# x86-64 psABI levels by the names that Linux gives the flags (pni is SSE3, abm covers LZCNT)
X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v1", frozenset({"lm", "cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"})),
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)


# what saves which state, and where Intel ends it in the uncompacted form
_XSAVE_BY_FLAG = (
    ("xsave", 0x3, 576),
    ("avx", 0x4, 832),
    ("mpx", 0x18, 1088),
    ("avx512f", 0xE0, 2688),
    ("ospke", 0x200, 2696),
    ("amx_tile", 0x60000, 11008),
)


@dataclass(frozen=True)
class CpuFacts:
    """One host's CPU as programs see it; the XSAVE values are 0 where there is no XSAVE."""

    architecture: str
    vendor: str
    brand: str
    family: int
    model: int
    stepping: int
    level: str
    flags: tuple[str, ...]
    xsave_bytes: int
    xsave_max_bytes: int
    xfeatures_mask: int

    def to_dict(self) -> dict[str, Any]:
        """The facts as a manifest table or a JSON object."""
        return asdict(self) | {"flags": list(self.flags)}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> CpuFacts:
        """Read a `[cpu]` table; keys it does not know (`required_flags`) are the caller's."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = table.get(field.name)
            if field.name == "flags":
                good = isinstance(value, list | tuple) and all(isinstance(flag, str) for flag in value)
                values["flags"] = tuple(value or ()) if good else None
            else:
                good = type(value) is (str if field.type == "str" else int)
                values[field.name] = value
            if not good:
                raise DataError(f"CPU facts lack a valid `{field.name}`: {value!r}")
        return cls(**values)


def read_cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> CpuFacts:
    """Read the CPU this process runs on; about a millisecond.

    /proc/cpuinfo is read as it is: py-cpuinfo measures clocks in child processes and takes a second.
    """
    architecture = os.uname().machine
    table = _first_processor(cpuinfo)
    if architecture == "x86_64":
        return _x86(architecture, table)
    return _other(architecture, table)


def cpu_facts_from_text(text: str) -> CpuFacts:
    """Facts of another host from the text of its /proc/cpuinfo.

    That does not tell the XSAVE sizes: they are what its flags lead to on CPUs known today.
    """
    table = _first_block(text)
    if "Features" in table or "CPU implementer" in table:
        return _other("aarch64", table)
    facts = _x86("x86_64", table, sizes=False)
    flags = set(facts.flags)
    components = [(bits, end) for flag, bits, end in _XSAVE_BY_FLAG if flag in flags and "xsave" in flags]
    mask = 0
    for bits, _ in components:
        mask |= bits
    size_bytes = max((end for _, end in components), default=0)
    return replace(facts, xsave_bytes=size_bytes, xsave_max_bytes=size_bytes, xfeatures_mask=mask)


def psabi_level(flags: frozenset[str]) -> str:
    """The highest x86-64 psABI level whose flags, and those of all levels below it, are present."""
    reached = "x86-64"
    for name, needed in X86_LEVELS:
        if not needed <= flags:
            break
        reached = name
    return reached


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """The first block of /proc/cpuinfo; arm64 kernels and x86 ones both repeat the flags per processor."""
    try:
        text = cpuinfo.read_text("utf-8", "replace")
    except OSError as error:
        raise UnavailableError(f"cannot read {cpuinfo}: {error.strerror}", hint="mount /proc") from error
    return _first_block(text)


def _first_block(text: str) -> dict[str, str]:
    table: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if not separator:
            if table:
                break
            continue
        table[name.strip()] = value.strip()
    return table


def _x86(architecture: str, table: Mapping[str, str], *, sizes: bool = True) -> CpuFacts:
    flags = tuple(sorted(set(table.get("flags", "").split())))
    if not flags:
        raise UnavailableError("/proc/cpuinfo lists no CPU flags", hint="mount the host's /proc")
    xsave_bytes = xsave_max_bytes = xfeatures_mask = 0
    if sizes and "xsave" in flags:
        low, xsave_bytes, xsave_max_bytes, high = read_cpuid(_XSTATE_LEAF, 0)
        xfeatures_mask = high << 32 | low
    return CpuFacts(
        architecture=architecture,
        vendor=table.get("vendor_id", ""),
        brand=table.get("model name", ""),
        family=_integer(table.get("cpu family")),
        model=_integer(table.get("model")),
        stepping=_integer(table.get("stepping")),
        level=psabi_level(frozenset(flags)),
        flags=flags,
        xsave_bytes=xsave_bytes,
        xsave_max_bytes=xsave_max_bytes,
        xfeatures_mask=xfeatures_mask,
    )


def _other(architecture: str, table: Mapping[str, str]) -> CpuFacts:
    # arm64 names its fields differently and has neither psABI levels nor an XSAVE area
    return CpuFacts(
        architecture=architecture,
        vendor=table.get("CPU implementer", table.get("vendor_id", "")),
        brand=table.get("model name", ""),
        family=_integer(table.get("CPU architecture")),
        model=_integer(table.get("CPU part")),
        stepping=_integer(table.get("CPU revision")),
        level=architecture,
        flags=tuple(sorted(set(table.get("Features", table.get("flags", "")).split()))),
        xsave_bytes=0,
        xsave_max_bytes=0,
        xfeatures_mask=0,
    )


def _integer(text: str | None) -> int:
    try:
        return int(text or "0", 0)
    except ValueError:
        return 0
