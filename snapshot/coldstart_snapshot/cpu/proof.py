"""Do the caps hold? Every process of a live tree is asked, and what speaks against it is named.

With CPUID masked, nothing in the tree could learn of more than its level. Without, by environment alone,
glibc's own record of the CPU is read from memory, and each file with a CPUID instruction must be one that
a cap reaches: `__builtin_cpu_supports` of GCC, for one, asks the CPU past all variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from coldstart_host.cpu_levels import reaches
from coldstart_snapshot.cpu.built_for import built_for_more
from coldstart_snapshot.cpu.caps import CapProof, broken_caps
from coldstart_snapshot.cpu.cpuid_cap import CpuidReport
from coldstart_snapshot.cpu.glibc_cpu import active_above
from coldstart_snapshot.cpu.mapped import MappedFile, environment, mapped_files

_CPUID = b"\x0f\xa2"
_HWCAPS = re.compile(r"/glibc-hwcaps/(x86-64-v\d)/")
# files that ask CPUID and heed a variable of the caps
_CAPPED_FILES = re.compile(
    r"/(?:ld-linux-x86-64\.so|libc\.so|libm\.so|libcrypto\.so|libssl\.so|_multiarray_umath\.|_simd\."
    r"|libmkl_|libdnnl\.so|lib[a-z_]*openblas)"
)
_LISTED = 4
_LOOSE_MILLISECONDS = 100
_HAS_AVX512 = frozenset({"x86-64-v4"})


def prove_caps(
    level: str, pids: Iterable[int], *, since_seconds: float, report: CpuidReport | None
) -> CapProof:
    """Look at every process; `since_seconds` ago the first of them began, `report` is the tracer's."""
    members = tuple(pids)
    problems = list(report.problems) if report is not None else []
    asking: dict[tuple[int, int], bool] = {}
    for pid in members:
        with suppress(FileNotFoundError, ProcessLookupError):
            problems += _problems(pid, level, since_seconds, report, asking)
    mechanism = "cpuid" if report is not None else "environment"
    return CapProof(level, mechanism, len(members), tuple(dict.fromkeys(problems)))


def _problems(
    pid: int,
    level: str,
    since_seconds: float,
    report: CpuidReport | None,
    asking: dict[tuple[int, int], bool],
) -> Iterator[str]:
    who = f"process {pid} ({os.path.basename(os.readlink(f'/proc/{pid}/exe'))})"
    # the tracer looked when the program began; servers that set their title write over what is here
    broken = broken_caps(level, environment(pid)) if report is None else report.uncapped.get(pid, ())
    if broken:
        yield f"{who} was started without {', '.join(broken)}"
    files = tuple(mapped_files(pid))
    for file in files:
        found = _HWCAPS.search(file.path)
        if found is not None and not reaches(found[1], level):
            yield f"{who} uses a library for {found[1]}: {file.path}"
    above = active_above(pid, level, files)
    if above:
        yield f"glibc of {who} uses {' '.join(above)}"
    for found_in_file in built_for_more(pid, level, files):
        yield f"{who} {found_in_file}"
    if level not in _HAS_AVX512 and _used_avx512(pid, since_seconds):
        yield f"{who} has executed AVX-512"
    if report is None:
        yield from _unmasked_problems(who, level, files, above, asking)


def _unmasked_problems(
    who: str,
    level: str,
    files: tuple[MappedFile, ...],
    above: tuple[str, ...] | None,
    asking: dict[tuple[int, int], bool],
) -> Iterator[str]:
    if above is None:
        yield f"{who} has no glibc that listens to GLIBC_TUNABLES"
    if any(not file.is_file and not file.path.startswith("[") for file in files):
        yield f"{who} compiles code at run time, for this CPU"
    loose = [
        os.path.basename(file.path)
        for file in files
        if file.is_file and not _CAPPED_FILES.search(file.path) and _asks(file, asking)
    ]
    if loose:
        names = ", ".join(sorted(loose)[:_LISTED])
        more = f" and {len(loose) - _LISTED} more" if len(loose) > _LISTED else ""
        yield f"{who} has code that asks the CPU past every cap to {level}: {names}{more}"


def _asks(file: MappedFile, asked: dict[tuple[int, int], bool]) -> bool:
    """Whether the bytes of CPUID stand in what is mapped for execution; by chance counts too."""
    if file.identity not in asked:
        asked[file.identity] = _CPUID in file.code()
    return asked[file.identity]


def _used_avx512(pid: int, since_seconds: float) -> bool:
    """Whether the kernel saw AVX-512 state in a thread since the tree began; it looks now and then only."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{task}/arch_status").read_text()
            if (found := re.search(r"AVX512_elapsed_ms:\s*(-?\d+)", text)) is None:
                continue
            elapsed_milliseconds = int(found[1])
            # a fork hands the mark of its parent on, exec does not clear it: older ones are no news
            if 0 <= elapsed_milliseconds < since_seconds * 1000 - _LOOSE_MILLISECONDS:
                return True
    return False
