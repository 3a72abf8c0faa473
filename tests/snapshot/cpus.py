"""CPUs of real hosts, reduced to what the choice of a variant looks at."""

from __future__ import annotations

from dataclasses import replace

from coldstart_host.cpu import CpuFacts, psabi_level

_V2 = "fpu cx8 cmov mmx fxsr sse sse2 syscall lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm rdtscp nx smep"
_V3 = f"{_V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave xsaveopt xsavec aes pclmulqdq rdrand fsgsbase"
_V4 = (
    f"{_V3} xsavec xgetbv1 rdseed adx erms avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni pku ospke"
)


def cpu(vendor: str, flags: str, xsave_bytes: int, xfeatures_mask: int) -> CpuFacts:
    names = tuple(sorted(set(flags.split())))
    return CpuFacts(
        architecture="x86_64",
        vendor=vendor,
        brand="a CPU",
        family=6,
        model=1,
        stepping=1,
        level=psabi_level(frozenset(names)),
        flags=names,
        xsave_bytes=xsave_bytes,
        xsave_max_bytes=xsave_bytes,
        xfeatures_mask=xfeatures_mask,
    )


HASWELL = cpu("GenuineIntel", f"{_V3} erms vmx ibrs", 832, 0x7)
CASCADE_LAKE = cpu("GenuineIntel", f"{_V4} vmx md_clear", 2696, 0x2E7)
# AVX-512 without PKU, as a small virtual machine shows it
GUEST = cpu(
    "GenuineIntel", f"{_V4} avx512_fp16 gfni hypervisor cpuid_fault".replace(" pku ospke", ""), 2688, 0xE7
)
NEHALEM = cpu("GenuineIntel", f"{_V2} vmx", 0, 0)
SAPPHIRE_RAPIDS = cpu("GenuineIntel", f"{_V4} amx_tile amx_bf16 amx_int8 avx512_fp16", 11008, 0x602E7)
ROME = cpu("AuthenticAMD", f"{_V3} svm clzero sse4a rdseed adx xsavec xgetbv1", 832, 0x7)
GRAVITON = replace(
    HASWELL, architecture="aarch64", vendor="0x41", level="aarch64", flags=("asimd", "fp"), xsave_bytes=0
)


def cpuinfo(facts: CpuFacts) -> str:
    """What /proc/cpuinfo of such a host says, of two processors."""
    block = (
        f"processor\t: 0\nvendor_id\t: {facts.vendor}\ncpu family\t: {facts.family}\n"
        f"model\t\t: {facts.model}\nmodel name\t: {facts.brand}\nstepping\t: {facts.stepping}\n"
        f"flags\t\t: {' '.join(facts.flags)}\nbugs\t\t: spectre_v1\n\n"
    )
    return block * 2
