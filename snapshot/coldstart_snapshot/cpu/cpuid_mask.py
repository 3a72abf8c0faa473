"""CPUID as a CPU of one x86-64 level would answer it: this CPU's own words, cut down."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coldstart_host.cpu_levels import BITS, XFEATURES, level_flags

Registers = tuple[int, int, int, int]
Cpuid = Callable[[int, int], Registers]

_XSTATE_LEAF = 0xD

# Where Intel puts the last byte of AVX-512; AMD needs less. Programs reserve what CPUID says and save with
# plain XSAVE where XSAVEC is hidden: all that the *running* CPU has of the components they name, whatever
# CPUID says. glibc 2.36 told the 832 bytes of AVX2 overwrites its stack here at the first lazy binding.
LARGEST_AREA_BYTES = 2688
_LEAF_WITH_BITS = 7

# of these registers every bit that can be a new instruction is named in BITS; the rest stays as it is:
# address sizes, topology, what only the kernel can use
_KEPT_BITS: Mapping[tuple[int, int], int] = {
    # cmpxchg16b and below are named; x2apic, tsc_deadline and hypervisor are for kernels
    (1, 2): 1 << 21 | 1 << 24 | 1 << 31,
    (7, 0): 0,
    # smep and smap
    (7, 1): 1 << 7 | 1 << 20,
    # umip, la57
    (7, 2): 1 << 2 | 1 << 16,
    # md_clear, arch_capabilities and the speculation controls
    (7, 3): 1 << 10 | 0b111111 << 26,
    (0x80000001, 2): 0,
    # what AMD repeats of leaf 1, then syscall, nx, pages of 1 GiB, long mode
    (0x80000001, 3): 0x0183F3FF | 1 << 11 | 1 << 20 | 1 << 26 | 1 << 29,
    # clzero, wbnoinvd and others of AMD
    (0x80000008, 1): 0,
}

# features that no level has: SGX, processor trace, AMX, key locker, history reset, AVX10
_EMPTY_LEAVES = frozenset({0x12, 0x14, 0x19, 0x1D, 0x1E, 0x20, 0x21, 0x24})


def masked(leaf: int, subleaf: int, level: str, cpuid: Cpuid) -> Registers:
    """EAX to EDX of one CPUID question, with nothing in it that is above `level`."""
    if leaf in _EMPTY_LEAVES or (leaf == _LEAF_WITH_BITS and subleaf):
        return (0, 0, 0, 0)
    answer = cpuid(leaf, subleaf)
    if leaf == _XSTATE_LEAF:
        return _xstate(subleaf, level, answer, cpuid)
    registers = list(answer)
    for (where, number), kept in _KEPT_BITS.items():
        if where == leaf:
            registers[number] &= kept | _shown_bits(leaf, number, level)
    eax, ebx, ecx, edx = registers
    return (eax, ebx, ecx, edx)


def _shown_bits(leaf: int, register: int, level: str) -> int:
    flags = level_flags(level)
    if "xsave" in flags:  # the kernel's own bit: it says that XSAVE may be used
        flags |= {"osxsave"}
    places = [place for name, place in BITS.items() if name in flags]
    return sum(1 << place.bit for place in places if (place.leaf, place.register) == (leaf, register))


def _xstate(subleaf: int, level: str, answer: Registers, cpuid: Cpuid) -> Registers:
    if "xsave" not in level_flags(level):
        return (0, 0, 0, 0)
    supported = cpuid(_XSTATE_LEAF, 0)[0] & XFEATURES[level]
    eax, ebx, *_ = answer
    if subleaf == 0:
        return (supported, LARGEST_AREA_BYTES, LARGEST_AREA_BYTES, 0)
    if subleaf == 1:
        names = ("xsaveopt", "xsavec", "xgetbv1")
        kept = sum(1 << BITS[name].bit for name in names if name in level_flags(level))
        return (eax & kept, ebx if kept else 0, 0, 0)
    return answer if subleaf < 32 and supported >> subleaf & 1 else (0, 0, 0, 0)
