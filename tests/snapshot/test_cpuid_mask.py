"""CPUID cut down to a level: from the answers of the real CPU, and from made-up ones."""

from __future__ import annotations

import os

import pytest

from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import BITS, LEVELS, XFEATURES, level_flags, reaches
from coldstart_host.cpuid import read_cpuid
from coldstart_snapshot.cpu.cpuid_mask import LARGEST_AREA_BYTES, Registers, masked

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs an x86-64 host")

ALL = 0xFFFFFFFF


def _everything(leaf: int, subleaf: int) -> Registers:
    return (ALL, ALL, ALL, ALL)


@pytest.mark.parametrize("level", LEVELS)
def test_of_a_cpu_with_everything_only_the_flags_of_the_level_are_shown(level: str) -> None:
    for name, place in BITS.items():
        if name == "osxsave":
            continue
        registers = masked(place.leaf, place.subleaf, level, _everything)
        assert bool(registers[place.register] >> place.bit & 1) == (name in level_flags(level)), name


@pytest.mark.parametrize("level", LEVELS)
def test_unknown_bits_of_feature_leaves_and_leaves_of_no_level_are_never_shown(level: str) -> None:
    known = {(place.register, place.bit) for place in BITS.values() if place.leaf == 7}
    kept = {(1, 7), (1, 20), (2, 2), (2, 16), (3, 10), *((3, bit) for bit in range(26, 32))}
    registers = masked(7, 0, level, _everything)
    shown = {(number, bit) for number in range(4) for bit in range(32) if registers[number] >> bit & 1}
    assert shown <= known | kept
    for leaf, subleaf in [(7, 1), (7, 2), (0x14, 0), (0x19, 0), (0x1D, 0), (0x1E, 0), (0x24, 0)]:
        assert masked(leaf, subleaf, level, _everything) == (0, 0, 0, 0)


def test_what_is_no_feature_stays_as_the_cpu_says() -> None:
    for leaf in (0, 2, 0x80000000, 0x80000002):
        assert masked(leaf, 0, "x86-64-v3", read_cpuid) == read_cpuid(leaf, 0)
    assert masked(1, 0, "x86-64-v3", read_cpuid)[0] == read_cpuid(1, 0)[0]
    assert masked(1, 0, "x86-64-v3", read_cpuid)[3] == read_cpuid(1, 0)[3]


@pytest.mark.parametrize("level", [level for level in LEVELS if reaches(level, read_cpu_facts().level)])
def test_the_save_area_is_large_enough_for_every_cpu_and_holds_no_state_above_the_level(level: str) -> None:
    features, in_use_bytes, largest_bytes, _ = masked(0xD, 0, level, read_cpuid)
    if level == "x86-64-v2":
        assert (features, largest_bytes) == (0, 0)
        return
    assert features == XFEATURES[level]
    assert in_use_bytes == largest_bytes == LARGEST_AREA_BYTES
    for component in range(2, 32):
        length, *_ = masked(0xD, component, level, read_cpuid)
        assert bool(length) == bool(XFEATURES[level] >> component & 1)
