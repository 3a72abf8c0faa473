"""Names of variants, and which one a host gets."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.cpu.match import required_flags
from coldstart_snapshot.cpu.variants import Choice, choose_variant, variant_name, what_to_build
from snapshot.cpus import CASCADE_LAKE, GRAVITON, GUEST, HASWELL, NEHALEM, ROME, SAPPHIRE_RAPIDS


def _named(*facts: CpuFacts) -> list[tuple[str, CpuFacts]]:
    return [(variant_name(each), each) for each in facts]


def test_a_name_says_level_and_xsave_size() -> None:
    assert re.fullmatch(r"x86-64-v4\.xsave11008\.[0-9a-f]{8}", variant_name(SAPPHIRE_RAPIDS))
    assert re.fullmatch(r"aarch64\.[0-9a-f]{8}", variant_name(GRAVITON))
    assert re.fullmatch(r"[A-Za-z0-9._-]+", variant_name(read_cpu_facts()))


def test_hosts_that_differ_only_in_what_programs_cannot_see_share_a_name() -> None:
    twin = replace(HASWELL, brand="another", model=9, stepping=7, flags=(*HASWELL.flags, "hypervisor"))
    assert variant_name(twin) == variant_name(HASWELL)


@pytest.mark.parametrize(
    "other",
    [
        replace(HASWELL, vendor="AuthenticAMD"),
        replace(HASWELL, flags=(*HASWELL.flags, "gfni")),
        replace(HASWELL, xsave_max_bytes=2696),
        replace(HASWELL, xfeatures_mask=0x207),
    ],
)
def test_everything_that_decides_about_a_fit_changes_the_name(other: CpuFacts) -> None:
    assert variant_name(other) != variant_name(HASWELL)


def test_the_richest_fitting_variant_wins() -> None:
    lower = replace(CASCADE_LAKE, flags=HASWELL.flags, level=HASWELL.level)
    choice = choose_variant(_named(HASWELL, lower, CASCADE_LAKE, SAPPHIRE_RAPIDS), CASCADE_LAKE)
    assert choice.name == variant_name(CASCADE_LAKE)
    assert choice.reason == "x86-64-v4 as its CPU had it, the best of 2 that fit this CPU, of 4 variants"
    assert choice.warnings == ()


def test_the_order_of_the_candidates_does_not_matter() -> None:
    candidates = _named(CASCADE_LAKE, replace(CASCADE_LAKE, flags=HASWELL.flags))
    assert choose_variant(candidates, CASCADE_LAKE) == choose_variant(candidates[::-1], CASCADE_LAKE)


def test_the_only_variant_is_taken_and_a_foreign_vendor_warned_about() -> None:
    recorded = replace(HASWELL, flags=ROME.flags)
    choice = choose_variant(_named(recorded), ROME)
    assert choice.reason == "x86-64-v3 as its CPU had it, it fits this CPU"
    assert choice.warnings == ("it was captured on GenuineIntel, this CPU is from AuthenticAMD",)


def test_the_same_vendor_goes_before_a_richer_variant_of_another() -> None:
    foreign = replace(ROME, vendor="GenuineIntel")
    modest = replace(ROME, flags=tuple(flag for flag in ROME.flags if flag != "clzero"))
    assert choose_variant(_named(foreign, modest), ROME).name == variant_name(modest)


def test_flags_a_manifest_lists_as_required_count_instead_of_all() -> None:
    recorded = replace(CASCADE_LAKE, xsave_bytes=832, xsave_max_bytes=832, xfeatures_mask=0x7)
    with pytest.raises(UnavailableError):
        choose_variant([("capped", recorded)], HASWELL)
    choice = choose_variant([("capped", recorded)], HASWELL, required={"capped": ["avx2", "sse2"]})
    assert choice.name == "capped"


def test_when_none_fits_the_nearest_is_named_with_its_missing_flags_and_what_to_build() -> None:
    with pytest.raises(UnavailableError) as caught:
        choose_variant(_named(CASCADE_LAKE, SAPPHIRE_RAPIDS), HASWELL)
    error = caught.value
    nearest = variant_name(CASCADE_LAKE)
    assert error.message.startswith(f"no variant fits this CPU: of 2 variants the nearest is {nearest}: ")
    assert "avx512_vnni avx512bw avx512cd avx512dq avx512f avx512vl" in error.message
    assert "its XSAVE area has 2696 bytes, this CPU's 832" in error.message
    assert error.hint == "coldstart snap create NAME --spec SPEC --cpu-level x86-64-v3"


def test_what_to_build_names_the_snapshot_and_the_highest_level_the_host_has_in_full() -> None:
    assert what_to_build(CASCADE_LAKE, "web") == "coldstart snap create web --spec SPEC --cpu-level x86-64-v4"
    assert what_to_build(NEHALEM, "web").endswith("--cpu-level x86-64-v2")
    without_aes = replace(HASWELL, flags=tuple(flag for flag in HASWELL.flags if flag != "aes"))
    assert what_to_build(without_aes, "web").endswith("--cpu-level x86-64-v2")
    assert variant_name(GRAVITON) in what_to_build(GRAVITON, "web")


def _capped(level: str, facts: CpuFacts, *problems: str) -> tuple[str, CpuFacts, CapProof]:
    caps = CapProof(level, "cpuid", 1, problems)
    return variant_name(facts, caps), facts, caps


def _choose(host: CpuFacts, *variants: tuple[str, CpuFacts, CapProof | None]) -> Choice:
    return choose_variant(
        [(name, facts) for name, facts, _ in variants],
        host,
        required={name: required_flags(facts, caps) for name, facts, caps in variants},
        caps={name: caps for name, _, caps in variants},
    )


def test_a_proven_level_goes_to_hosts_with_other_xsave_areas() -> None:
    capped = _capped("x86-64-v3", GUEST)
    for host in (HASWELL, CASCADE_LAKE, SAPPHIRE_RAPIDS, ROME):
        choice = _choose(host, capped)
        assert choice.name == capped[0]
        assert choice.reason == "held to x86-64-v3, it fits this CPU"
    with pytest.raises(UnavailableError, match="this CPU lacks abm aes avx avx2"):
        _choose(NEHALEM, capped)


def test_a_level_that_was_not_proven_needs_all_of_the_cpu() -> None:
    vain = _capped("x86-64-v3", GUEST, "process 7 (server) compiles code at run time, for this CPU")
    assert ".unproven." in vain[0]
    with pytest.raises(UnavailableError, match="avx512f"):
        _choose(HASWELL, vain)
    native: tuple[str, CpuFacts, None] = (variant_name(GUEST), GUEST, None)
    assert _choose(GUEST, vain).name == vain[0]
    assert _choose(GUEST, vain, native).name == native[0]


def test_of_levels_the_highest_that_fits_is_taken_and_the_cpu_as_it_is_before_them() -> None:
    levels = [_capped(level, GUEST) for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4")]
    native = (variant_name(GUEST), GUEST, None)
    assert _choose(NEHALEM, *levels, native).name == levels[0][0]
    assert _choose(HASWELL, *levels, native).name == levels[1][0]
    assert _choose(CASCADE_LAKE, *levels, native).name == levels[2][0]
    assert _choose(GUEST, *levels, native).name == native[0]


def test_a_level_has_one_name_wherever_it_was_built() -> None:
    assert _capped("x86-64-v3", GUEST)[0] == _capped("x86-64-v3", SAPPHIRE_RAPIDS)[0]
    assert _capped("x86-64-v3", GUEST)[0] != _capped("x86-64-v2", GUEST)[0]


def test_another_architecture_is_never_the_nearest_when_there_is_a_choice() -> None:
    with pytest.raises(UnavailableError, match=re.escape(variant_name(SAPPHIRE_RAPIDS))):
        choose_variant(_named(GRAVITON, SAPPHIRE_RAPIDS), HASWELL)


def test_a_snapshot_without_variants_is_refused() -> None:
    with pytest.raises(UnavailableError, match="no variants"):
        choose_variant([], HASWELL)
