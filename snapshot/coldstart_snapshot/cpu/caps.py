"""What keeps a server within one x86-64 level by its environment: each variable with what listens to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coldstart_cli.errors import DataError, UsageError, near_matches_hint
from coldstart_host.cpu_levels import LEVELS

NATIVE = "native"


@dataclass(frozen=True)
class Cap:
    """One variable: its value by level, and values a server may already have that allow no more."""

    name: str
    values: Mapping[str, str]
    reason: str
    ladder: tuple[str, ...] = ()
    """All values in rising order; empty where only the value itself is known to be strict enough."""


@dataclass(frozen=True)
class CapProof:
    """How a tree was held to a level, and what speaks against its having been held.

    `mechanism` is `cpuid`, where every question to the CPU was answered by us, or `environment`.
    """

    level: str
    mechanism: str
    processes: int
    problems: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        return not self.problems


def _leaf7(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# glibc takes these names from 2.33 on; it looks over names that it does not know, in any version.
# RTM: the `_rtm` string functions execute XTEST. XSAVEC: the lazy-binding trampolines.
_GLIBC_ABOVE_V4 = ("RTM",)
_GLIBC_ABOVE_V3 = ("AVX512F", "AVX512VL", "AVX512BW", "AVX512CD", "AVX512DQ", "XSAVEC", *_GLIBC_ABOVE_V4)
_GLIBC_ABOVE_V2 = ("AVX", "AVX2", "FMA", "FMA4", "BMI1", "BMI2", "LZCNT", "MOVBE", "ERMS", *_GLIBC_ABOVE_V3)

# OpenSSL_ia32cap(3): second word is EBX and ECX of leaf 7, first one EDX and ECX of leaf 1
_SSL_ABOVE_V4 = _leaf7(21, 29, 32 + 1, 32 + 6, 32 + 8, 32 + 9, 32 + 10, 32 + 11, 32 + 12, 32 + 14)
_SSL_ABOVE_V3 = _SSL_ABOVE_V4 | _leaf7(16, 17, 18, 19, 28, 30, 31)
_SSL_ABOVE_V2 = _SSL_ABOVE_V3 | _leaf7(3, 5, 8)
_SSL_FIRST_ABOVE_V2 = sum(1 << (32 + bit) for bit in (1, 12, 22, 25, 26, 27, 28, 29, 30))

_NUMPY_ABOVE_V4 = ("AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR")
# before 2.4 NumPy dispatched by single features and families, since then by level; names of the other kind
# cost an ImportWarning, which Python does not show
_NUMPY_ABOVE_V3 = ("AVX512F", "AVX512CD", "AVX512_SKX", *_NUMPY_ABOVE_V4, "X86_V4")
_NUMPY_ABOVE_V2 = ("AVX", "F16C", "FMA3", "FMA4", "XOP", "AVX2", *_NUMPY_ABOVE_V3, "X86_V3")


def _hwcaps(names: tuple[str, ...]) -> str:
    return "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in names)


def _three(v2: str, v3: str, v4: str) -> Mapping[str, str]:
    return dict(zip(LEVELS, (v2, v3, v4), strict=True))


CAPS: tuple[Cap, ...] = (
    Cap(
        "GLIBC_TUNABLES",
        _three(_hwcaps(_GLIBC_ABOVE_V2), _hwcaps(_GLIBC_ABOVE_V3), _hwcaps(_GLIBC_ABOVE_V4)),
        "glibc: string and maths functions chosen at start, and the glibc-hwcaps folders of libraries",
    ),
    Cap(
        "LD_BIND_NOW",
        _three("1", "1", "1"),
        "glibc: functions are bound at once, so the trampolines that save registers by size are never used",
    ),
    Cap(
        "ATEN_CPU_CAPABILITY",
        _three("default", "avx2", "avx512"),
        "PyTorch: kernels of ATen",
        ("default", "avx2", "avx512"),
    ),
    Cap(
        "ONEDNN_MAX_CPU_ISA",
        _three("SSE41", "AVX2", "AVX512_CORE"),
        "oneDNN: kernels compiled at run time",
        ("SSE41", "AVX", "AVX2", "AVX512_CORE"),
    ),
    Cap(
        "DNNL_MAX_CPU_ISA",
        _three("SSE41", "AVX2", "AVX512_CORE"),
        "oneDNN before 2.0, under its earlier name",
        ("SSE41", "AVX", "AVX2", "AVX512_CORE"),
    ),
    Cap(
        "MKL_ENABLE_INSTRUCTIONS",
        _three("SSE4_2", "AVX2", "AVX512"),
        "Intel MKL",
        ("SSE4_2", "AVX", "AVX2", "AVX512"),
    ),
    Cap(
        "OPENBLAS_CORETYPE",
        _three("Nehalem", "Haswell", "SkylakeX"),
        "OpenBLAS",
        ("Nehalem", "Sandybridge", "Haswell", "SkylakeX"),
    ),
    Cap(
        "NPY_DISABLE_CPU_FEATURES",
        _three(" ".join(_NUMPY_ABOVE_V2), " ".join(_NUMPY_ABOVE_V3), " ".join(_NUMPY_ABOVE_V4)),
        "NumPy",
    ),
    Cap(
        "OPENSSL_ia32cap",
        _three(
            f"~{_SSL_FIRST_ABOVE_V2:#x}:~{_SSL_ABOVE_V2:#x}",
            f":~{_SSL_ABOVE_V3:#x}",
            f":~{_SSL_ABOVE_V4:#x}",
        ),
        "OpenSSL",
    ),
    Cap(
        "SIMDJSON_FORCE_IMPLEMENTATION",
        _three("westmere", "haswell", "haswell"),
        "simdjson",
        ("fallback", "westmere", "haswell"),
    ),
)


def check_level(level: str) -> str:
    """The level, when it is `native` or one that can be capped to."""
    names = (NATIVE, *LEVELS)
    if level not in names:
        raise UsageError(
            f"unknown CPU level: {level}",
            hint=near_matches_hint(level, names, otherwise=f"one of {', '.join(names)}"),
        )
    return level


def capped_environment(level: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with every cap of `level`; what it says itself stays where that is stricter."""
    capped = dict(environment)
    for cap in CAPS:
        own = environment.get(cap.name)
        capped[cap.name] = cap.values[level] if own is None else _merged(cap, level, own)
    return capped


def broken_caps(level: str, environment: Mapping[str, str]) -> list[str]:
    """The variables of `level` that an environment lacks, or has with a value that allows more."""
    broken = []
    for cap in CAPS:
        own = environment.get(cap.name)
        try:
            kept = own is not None and _merged(cap, level, own) == own
        except DataError:
            kept = False
        if not kept:
            broken.append(cap.name)
    return broken


def _merged(cap: Cap, level: str, own: str) -> str:
    value = cap.values[level]
    if cap.name == "GLIBC_TUNABLES":
        return _merged_tunables(own, value)
    if cap.name == "NPY_DISABLE_CPU_FEATURES":
        names = own.replace(",", " ").split()
        return " ".join([*names, *(name for name in value.split() if name not in names)])
    ladder = [step.lower() for step in cap.ladder]
    lower = own.lower()
    if lower == value.lower() or (cap.name == "LD_BIND_NOW" and own):
        return own
    if lower in ladder and ladder.index(lower) < ladder.index(value.lower()):
        return own
    raise DataError(
        f"environment allows more than {level}: {cap.name}={own}",
        hint=f"leave {cap.name} out of the specification: it becomes {value}",
    )


def _merged_tunables(own: str, value: str) -> str:
    """Other tunables stay; masks of both are put together."""
    key, _, masks = value.partition("=")
    others, mine = [], []
    for entry in filter(None, own.split(":")):
        name, _, text = entry.partition("=")
        if name != key:
            others.append(entry)
            continue
        mine += text.split(",")
    if wrong := [mask for mask in mine if not mask.startswith("-")]:
        raise DataError(
            f"environment switches CPU features on: GLIBC_TUNABLES has {', '.join(wrong)}",
            hint=f"leave {key} out of the specification",
        )
    missing = [mask for mask in masks.split(",") if mask not in mine]
    return ":".join([*others, f"{key}={','.join([*mine, *missing])}"])
