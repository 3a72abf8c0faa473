"""Facts about the CPU: read from the real one, and from recorded /proc/cpuinfo texts of others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_cli.process import find_program, run
from coldstart_host.cpu import CpuFacts, psabi_level, read_cpu_facts
from coldstart_host.cpuid import _by_device, _by_instruction

x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs an x86-64 host")

V1 = "fpu cx8 cmov mmx fxsr sse sse2 syscall lm"
V2 = f"{V1} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl"


def test_the_facts_of_this_host_are_complete() -> None:
    facts = read_cpu_facts()
    assert facts.architecture == os.uname().machine
    assert facts.flags == tuple(sorted(set(facts.flags)))
    assert len(facts.flags) > 3
    assert facts.vendor


@x86
def test_xsave_sizes_are_those_that_criu_records(tmp_path: Path) -> None:
    facts = read_cpu_facts()
    log = tmp_path / "criu.log"
    criu = find_program("criu")
    run([criu, "cpuinfo", "dump", "-D", tmp_path, "-v4", "-o", log], deadline_seconds=20, check=False)
    sizes = re.search(r"xsave_size (\d+) xsave_size_max (\d+)", log.read_text())
    assert sizes is not None
    assert (facts.xsave_bytes, facts.xsave_max_bytes) == (int(sizes[1]), int(sizes[2]))


@x86
def test_level_agrees_with_the_dynamic_linker() -> None:
    loader = "/lib64/ld-linux-x86-64.so.2"
    if not os.path.exists(loader):
        pytest.skip("no glibc loader here")
    text = run([loader, "--help"], deadline_seconds=60, check=False).text
    supported = re.findall(r"(x86-64-v\d) \(supported", text)
    expected = max(supported, default="x86-64-v1")
    assert read_cpu_facts().level == expected


@x86
@pytest.mark.skipif(not os.access("/dev/cpu/0/cpuid", os.R_OK), reason="no readable /dev/cpu/0/cpuid")
def test_the_cpuid_device_and_the_instruction_give_the_same_registers() -> None:
    assert _by_device(0xD, 0) == _by_instruction(0xD, 0)


@x86
def test_xsave_sizes_can_be_read_where_new_executable_memory_is_forbidden() -> None:
    # prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN): what systemd's MemoryDenyWriteExecute= asks for
    script = (
        "import ctypes, sys\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n"
        "from coldstart_host.cpuid import _by_instruction\n"
        "print(*_by_instruction(13, 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("kernel before 6.3")
    assert done.stderr == ""
    assert tuple(map(int, done.stdout.split())) == _by_instruction(0xD, 0)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", "x86-64"),
        (V1, "x86-64-v1"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V3.replace(" fma", "") + " avx512f avx512dq avx512cd avx512bw avx512vl", "x86-64-v2"),
        (V3 + " avx512f", "x86-64-v3"),
    ],
)
def test_a_level_needs_all_its_flags_and_all_levels_below(flags: str, level: str) -> None:
    assert psabi_level(frozenset(flags.split())) == level


def test_facts_survive_a_manifest() -> None:
    facts = read_cpu_facts()
    assert CpuFacts.from_dict(facts.to_dict() | {"required_flags": ["sse2"]}) == facts


@pytest.mark.parametrize(
    ("key", "value"),
    [("flags", "sse2"), ("flags", [1]), ("family", "6"), ("xsave_bytes", None), ("level", 3)],
)
def test_a_damaged_table_is_refused_by_the_name_of_its_key(key: str, value: object) -> None:
    table = read_cpu_facts().to_dict() | {key: value}
    with pytest.raises(DataError, match=f"`{key}`"):
        CpuFacts.from_dict(table)


@x86
def test_only_the_first_processor_is_read_and_odd_numbers_do_no_harm(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        f"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nstepping\t: unknown\n"
        f"model name\t: AMD EPYC 9R14: 96-Core\nflags\t\t: {V4} svm\n\nprocessor\t: 1\nflags\t\t: other\n"
    )
    facts = read_cpu_facts(cpuinfo)
    assert (facts.vendor, facts.family, facts.model, facts.stepping) == ("AuthenticAMD", 25, 17, 0)
    assert facts.brand == "AMD EPYC 9R14: 96-Core"
    assert "svm" in facts.flags
    assert "other" not in facts.flags


@x86
def test_a_cpuinfo_without_flags_is_refused_rather_than_taken_for_a_bare_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\n")
    with pytest.raises(UnavailableError, match="no CPU flags"):
        read_cpu_facts(cpuinfo)
    with pytest.raises(UnavailableError, match="cannot read"):
        read_cpu_facts(tmp_path / "absent")
