"""What keeps a process from going on on another CPU, and what does not."""

from __future__ import annotations

from dataclasses import replace

from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import flags_within
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.cpu.match import compare, required_flags
from snapshot.cpus import CASCADE_LAKE, GRAVITON, HASWELL, NEHALEM, ROME, SAPPHIRE_RAPIDS


def test_a_host_fits_itself() -> None:
    facts = read_cpu_facts()
    assert compare(facts, facts) == ()


def test_missing_flags_are_named_in_order() -> None:
    weaker = replace(
        CASCADE_LAKE, flags=tuple(flag for flag in CASCADE_LAKE.flags if flag not in {"avx2", "fma"})
    )
    (problem,) = compare(CASCADE_LAKE, weaker)
    assert problem.kind == "flags"
    assert problem.flags == ("avx2", "fma")
    assert problem.message == "this CPU lacks avx2 fma"
    assert problem.blocking


def test_more_flags_do_not_matter() -> None:
    richer = replace(HASWELL, flags=(*HASWELL.flags, "gfni", "vaes"))
    assert compare(HASWELL, richer) == ()


def test_flags_that_programs_cannot_see_do_not_matter() -> None:
    bare = replace(HASWELL, flags=tuple(f for f in HASWELL.flags if f not in {"vmx", "ibrs", "nx", "smep"}))
    assert compare(HASWELL, bare) == ()
    assert "vmx" not in required_flags(HASWELL)
    assert "avx2" in required_flags(HASWELL)


def test_an_unknown_flag_counts_as_an_instruction_set() -> None:
    future = replace(HASWELL, flags=(*HASWELL.flags, "zz_future"))
    assert [problem.flags for problem in compare(future, HASWELL)] == [("zz_future",)]


def test_proven_requirements_replace_the_flags_of_the_cpu() -> None:
    narrow = replace(CASCADE_LAKE, flags=HASWELL.flags)
    assert compare(CASCADE_LAKE, narrow) != ()
    assert compare(CASCADE_LAKE, narrow, required=["avx2", "sse2"]) == ()


def test_a_bigger_and_a_smaller_xsave_area_are_both_refused() -> None:
    for recorded, host in ((CASCADE_LAKE, SAPPHIRE_RAPIDS), (SAPPHIRE_RAPIDS, CASCADE_LAKE)):
        messages = [problem.message for problem in compare(recorded, host) if problem.kind == "xsave"]
        assert messages == [f"its XSAVE area has {recorded.xsave_bytes} bytes, this CPU's {host.xsave_bytes}"]


def test_a_larger_possible_xsave_area_is_refused_too() -> None:
    (problem,) = compare(CASCADE_LAKE, replace(CASCADE_LAKE, xsave_max_bytes=11008))
    assert problem.message == "its largest XSAVE area has 2696 bytes, this CPU's 11008"


def test_state_that_the_host_does_not_save_is_named() -> None:
    (problem,) = compare(CASCADE_LAKE, replace(CASCADE_LAKE, xfeatures_mask=0xE7))
    assert problem.message == "this CPU does not save pkru"
    (problem,) = compare(
        replace(CASCADE_LAKE, xfeatures_mask=1 << 40), replace(CASCADE_LAKE, xfeatures_mask=0)
    )
    assert problem.message == "this CPU does not save bit 40"


def test_another_vendor_is_a_warning() -> None:
    (problem,) = compare(replace(HASWELL, flags=ROME.flags), ROME)
    assert not problem.blocking
    assert problem.message == "it was captured on GenuineIntel, this CPU is from AuthenticAMD"


def test_another_architecture_says_so_and_nothing_else() -> None:
    (problem,) = compare(HASWELL, GRAVITON)
    assert problem.kind == "architecture"
    assert problem.message == "it was captured on x86_64, this host is aarch64"


def test_a_capped_process_is_judged_by_its_flags_alone() -> None:
    for recorded, host in ((CASCADE_LAKE, HASWELL), (HASWELL, SAPPHIRE_RAPIDS), (SAPPHIRE_RAPIDS, HASWELL)):
        needed = flags_within("x86-64-v3", recorded.flags)
        assert compare(recorded, host, needed, capped=True) == ()
    (problem,) = compare(HASWELL, NEHALEM, flags_within("x86-64-v3", HASWELL.flags), capped=True)
    assert "avx2" in problem.flags


def test_a_proven_level_requires_its_flags_and_no_others() -> None:
    proven = required_flags(SAPPHIRE_RAPIDS, CapProof("x86-64-v3", "cpuid", 1))
    assert "avx2" in proven
    assert not [flag for flag in proven if flag.startswith(("avx512", "amx"))]
    vain = required_flags(SAPPHIRE_RAPIDS, CapProof("x86-64-v3", "cpuid", 1, ("it does not hold",)))
    assert vain == required_flags(SAPPHIRE_RAPIDS)
