"""May a process captured on one CPU go on on another? Flags, XSAVE sizes, vendor: each problem by name.

criu's own check (`--cpu-cap`) is off by default, does not say which flag is missing, and its list lacks
FMA and AMX (criu 4.2), so the decision is made here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldstart_host.cpu import CpuFacts

if TYPE_CHECKING:
    from coldstart_snapshot.cpu.caps import CapProof

# Flags in /proc/cpuinfo that no program can come to depend on, each group with its reason.
# A flag that stands in none of them is taken for an instruction set: refusing wrongly is the lesser harm.
_NOT_FOR_PROGRAMS: dict[str, str] = {
    "clock and power control, used by the kernel alone": """
        acc_power acpi aperfmperf arat art constant_tsc cpb cppc dtherm eff_freq_ro epb est hfi hw_pstate hwp
        hwp_act_window hwp_epp hwp_notify hwp_pkg_req ida nonstop_tsc pln proc_feedback pts rapl tm tm2
        tsc_adjust tsc_deadline_timer tsc_known_freq tsc_reliable ttp
    """,
    "speculation controls: registers that only the kernel writes": """
        amd_ibrs amd_psfd amd_ssbd amd_stibp arch_capabilities autoibrs bhi_ctrl btc_no flush_l1d ibpb
        ibpb_brtype ibrs ibrs_enhanced intel_stibp ipred_ctrl kaiser md_clear mds_no pti retpoline
        rrsba_ctrl rsb_ctxsw sbpb spec_ctrl ssbd stibp stibp_always_on tsx_force_abort virt_ssbd
    """,
    "virtualisation: for hypervisors, and the mark of a guest": """
        avic debug_swap decodeassists ept ept_ad flexpriority flushbyasid hypervisor lbrv npt nrip_save
        pausefilter pfthreshold sev sev_es sev_snp sme svm svm_lock tdx_guest tpr_shadow tsc_scale
        v_spec_ctrl v_vmsave_vmload vgif vmcb_clean vmmcall vmx vnmi vpid x2avic xen_pv
    """,
    "page tables, interrupts, system calls: privileged, or the same for every 64-bit process": """
        apic bus_lock_detect cr8_legacy de extapic fred hreset ibt invlpgb invpcid la57 lkgs mca mce monitor
        msr mtrr nx osxsave pae pat pcid pconfig pge pse pse36 sep skinit smap smep smx
        split_lock_detect tce umip up vme wbnoinvd wp x2apic xsaves
    """,
    "counters, tracing, resource control, error reporting: through the kernel only": """
        amd_lbr_pmc_freeze amd_lbr_v2 amd_ppin arch_lbr arch_perfmon bpext brs bts cat_l2 cat_l3 cdp_l2
        cdp_l3 cpuid_fault cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc dca ds_cpl dtes64 dts
        ibs intel_ppin intel_pt irperf mba nodeid_msr overflow_recov pbe pdcm pebs perfctr_core
        perfctr_l2 perfctr_llc perfctr_nb perfmon_v2 pschange_mc_no ptsc rdt_a sdbg smba smca succor wdt
        xtpr
    """,
    "names made up by the kernel, and topology": """
        amd_dcm cmp_legacy cpuid extd_apicid fxsr_opt ht nopl rep_good ss topoext xsaveerptr xtopology
    """,
    "speed of instructions that every CPU executes, and prefixes that older ones ignore": """
        cid erms fsrc fsrm fsrs fzrm hle misalignsse
    """,
    "enclaves: reached through /dev/sgx_enclave, never found by chance": """
        sgx sgx_lc
    """,
}
_IGNORED = frozenset(flag for group in _NOT_FOR_PROGRAMS.values() for flag in group.split())

_XFEATURES = {
    0: "x87",
    1: "sse",
    2: "avx",
    3: "mpx bounds",
    4: "mpx configuration",
    5: "avx512 masks",
    6: "avx512 upper halves",
    7: "avx512 registers 16-31",
    9: "pkru",
    17: "amx tile configuration",
    18: "amx tile data",
    19: "apx registers",
}


@dataclass(frozen=True)
class CpuProblem:
    """One difference. `blocking` ones make a restore wrong; the others deserve a warning."""

    kind: str
    message: str
    blocking: bool = True
    flags: tuple[str, ...] = ()


def required_flags(recorded: CpuFacts, caps: CapProof | None = None) -> tuple[str, ...]:
    """What a process may have bound itself to: the flags of a proven level, else all that it can see."""
    if caps is not None and caps.proven:
        from coldstart_host.cpu_levels import flags_within

        return flags_within(caps.level, recorded.flags)
    return tuple(flag for flag in recorded.flags if flag not in _IGNORED)


def compare(
    recorded: CpuFacts, host: CpuFacts, required: Iterable[str] | None = None, *, capped: bool = False
) -> tuple[CpuProblem, ...]:
    """Everything that speaks against running on `host` what was captured on `recorded`.

    `required` are the flags the process really needs, when they were proven to be fewer than its CPU had.
    A process that is proven `capped` has no register state above its level, and no save area that is too
    small for any host: its flags alone decide.
    """
    if recorded.architecture != host.architecture:
        message = f"it was captured on {recorded.architecture}, this host is {host.architecture}"
        return (CpuProblem("architecture", message),)
    problems = []
    needed = required_flags(recorded) if required is None else tuple(required)
    if missing := tuple(sorted(set(needed) - set(host.flags))):
        problems.append(CpuProblem("flags", f"this CPU lacks {' '.join(missing)}", flags=missing))
    if not capped:
        problems += _xsave_problems(recorded, host)
    if recorded.vendor != host.vendor:
        message = f"it was captured on {recorded.vendor}, this CPU is from {host.vendor}"
        problems.append(CpuProblem("vendor", message, blocking=False))
    return tuple(problems)


def _xsave_problems(recorded: CpuFacts, host: CpuFacts) -> list[CpuProblem]:
    # Programs size save areas by CPUID once, as glibc does for its lazy-binding trampolines. On a CPU with
    # more state XSAVE writes past them; with less, what was in the missing registers is lost: criu 4.2 drops
    # it without a word, and gives a thread the components that the restoring CPU has.
    problems = []
    if recorded.xsave_bytes != host.xsave_bytes:
        message = f"its XSAVE area has {recorded.xsave_bytes} bytes, this CPU's {host.xsave_bytes}"
        problems.append(CpuProblem("xsave", message))
    elif recorded.xsave_max_bytes != host.xsave_max_bytes:
        message = (
            f"its largest XSAVE area has {recorded.xsave_max_bytes} bytes, this CPU's {host.xsave_max_bytes}"
        )
        problems.append(CpuProblem("xsave", message))
    if missing := recorded.xfeatures_mask & ~host.xfeatures_mask:
        names = [_XFEATURES.get(bit, f"bit {bit}") for bit in range(64) if missing >> bit & 1]
        problems.append(CpuProblem("xfeatures", f"this CPU does not save {', '.join(names)}"))
    return problems
