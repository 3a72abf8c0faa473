"""The NVLink fabric: its switches, its manager, and whether all GPUs stand in the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coldstart_health.verdict import FABRIC, Finding, Verdict
from coldstart_host.fabric import FabricFacts
from coldstart_host.gpu import Fabric, GpuFacts
from coldstart_host.gpu_codes import FabricState, FabricSummary, NvmlCode

_SOURCE = "fabric"
_MANAGER = "systemctl status nvidia-fabricmanager"
_START = "systemctl enable --now nvidia-fabricmanager"
# the health mask: two bits a question, 1 is yes
_MASK: tuple[tuple[int, int, int, str], ...] = (
    (0, 0x3, 1, "bandwidth is reduced"),
    (2, 0x3, 1, "routes are being recovered"),
    (4, 0x3, 1, "a route is unhealthy"),
    (6, 0x3, 1, "recovering from an access timeout"),
    (14, 0x3, 2, "the fabric manager is disconnected"),
)
_CONFIGURATION = {  # four bits from the eighth on
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}

Found = tuple[str, Verdict, str, str]


def fabric_findings(gpus: Sequence[GpuFacts], facts: FabricFacts | None) -> Iterator[Finding]:
    """What all GPUs share is the fabric's; what one of them has alone is that GPU's."""
    members = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state != FabricState.NOT_SUPPORTED]
    found = [(gpu, judged) for gpu in members for judged in _judge(gpu.fabric)]
    for judged in dict.fromkeys(judged for _, judged in found):
        concerned = [gpu for gpu, other in found if other == judged]
        reason, verdict, evidence, action = judged
        if len(concerned) == len(members):
            evidence = f"{evidence} ({len(members)} of {len(members)} GPUs)"
            yield Finding(reason, verdict, FABRIC, _SOURCE, evidence, action)
            continue
        for gpu in concerned:
            yield Finding(reason, verdict, gpu.subject, _SOURCE, evidence, action)
    yield from _split(members)
    if facts is not None:
        yield from _manager(facts, members)


def has_fabric(gpus: Sequence[GpuFacts], facts: FabricFacts | None) -> bool:
    return bool(facts and facts.switches) or any(
        gpu.fabric and gpu.fabric.state != FabricState.NOT_SUPPORTED for gpu in gpus
    )


def _judge(fabric: Fabric | None) -> Iterator[Found]:
    assert fabric is not None
    if fabric.state == FabricState.IN_PROGRESS:
        yield "fabric_in_progress", Verdict.UNKNOWN, "NVLink fabric is still being set up", "ask again later"
    elif fabric.state != FabricState.COMPLETED:
        # CUDA does not start on such a GPU: "system not yet initialized"
        yield "fabric_not_started", Verdict.DRAIN, "NVLink fabric is not set up", _MANAGER
    elif fabric.status == NvmlCode.INSUFFICIENT_RESOURCES:
        evidence = "NVLink fabric completed with `insufficient resources`: some links or switches are missing"
        yield "fabric_insufficient_resources", Verdict.DRAIN, evidence, _MANAGER
    elif fabric.status:
        evidence = f"NVLink fabric completed with status {fabric.status}"
        yield "fabric_failed", Verdict.DRAIN, evidence, _MANAGER
    else:
        yield from _judge_health(fabric)


def _judge_health(fabric: Fabric) -> Iterator[Found]:
    words = list(_words(fabric.health_mask))
    bad = any(word in _CONFIGURATION.values() or "unhealthy" in word for word in words)
    about = ", ".join(words) or f"mask {fabric.health_mask:#x}"
    if fabric.health_summary == FabricSummary.UNHEALTHY:
        yield "fabric_unhealthy", Verdict.DRAIN, f"NVLink fabric is unhealthy: {about}", _MANAGER
    elif fabric.health_summary == FabricSummary.LIMITED:
        yield "fabric_limited", Verdict.DEGRADED, f"NVLink fabric has limited capacity: {about}", _MANAGER
    elif fabric.health_summary is not None and fabric.health_summary not in set(FabricSummary) and not bad:
        evidence = f"NVLink fabric health {fabric.health_summary}, which this coldstart does not know"
        yield "fabric_health_other", Verdict.UNKNOWN, evidence, _MANAGER
    elif words:
        # drivers before 570 have no summary, the mask alone
        reason = "fabric_unhealthy" if bad else "fabric_limited"
        verdict = Verdict.DRAIN if bad else Verdict.DEGRADED
        yield reason, verdict, f"NVLink fabric: {about}", _MANAGER


def _words(mask: int) -> Iterator[str]:
    for shift, width, bad, word in _MASK:
        if mask >> shift & width == bad:
            yield word
    if word := _CONFIGURATION.get(mask >> 8 & 0xF, ""):
        yield word


def _split(members: Sequence[GpuFacts]) -> Iterator[Finding]:
    """GPUs of one model in different clusters or cliques do not reach each other through NVLink."""
    homes: dict[tuple[str | None, str | None, int | None], list[str]] = {}
    for gpu in members:
        assert gpu.fabric is not None
        if gpu.fabric.state == FabricState.COMPLETED and not gpu.fabric.status:
            homes.setdefault((gpu.name, gpu.fabric.cluster_uuid, gpu.fabric.clique), []).append(
                f"GPU {gpu.index}"
            )
    for name in dict.fromkeys(name for name, _, _ in homes):
        own = {home: gpus for home, gpus in homes.items() if home[0] == name}
        if len(own) > 1:
            parts = "; ".join(
                f"cluster {cluster} clique {clique}: {', '.join(gpus)}"
                for (_, cluster, clique), gpus in own.items()
            )
            evidence = f"the GPUs are in {len(own)} fabrics: {parts}"
            yield Finding("fabric_split", Verdict.DRAIN, FABRIC, _SOURCE, evidence, _MANAGER)


def _manager(facts: FabricFacts, members: Sequence[GpuFacts]) -> Iterator[Finding]:
    if not facts.switches or facts.manager_running:
        return
    evidence = f"{facts.switches} NVSwitches, and no fabric manager runs"
    if facts.in_container:
        about = f"{evidence} in this container: its host may run it"
        yield Finding("fabric_manager_unseen", Verdict.OK, FABRIC, _SOURCE, about, _MANAGER)
        return
    set_up = members and all(gpu.fabric and gpu.fabric.state == FabricState.COMPLETED for gpu in members)
    verdict = Verdict.DEGRADED if set_up else Verdict.DRAIN
    yield Finding("fabric_manager_down", verdict, FABRIC, _SOURCE, evidence, _START)
