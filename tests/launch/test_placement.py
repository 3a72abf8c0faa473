"""On which verdicts a launch depends: the host's, and those of the GPUs that the replica may see."""

from __future__ import annotations

import pytest

from coldstart_cli.errors import NegativeAnswer
from coldstart_health.verdict import FABRIC, HOST, Finding, GpuVerdict, HealthReport, Verdict
from coldstart_host.gpu import GpuFacts
from coldstart_launch.placement import concerning, require_place

GOOD, BAD = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000"


def report(*, subject: str = BAD, verdict: Verdict = Verdict.DRAIN) -> HealthReport:
    finding = Finding("quarantined", verdict, subject, "quarantine", "since yesterday")
    gpus = tuple(
        GpuVerdict(
            uuid, verdict if uuid == subject else Verdict.OK, f"GPU {index}", GpuFacts(index, uuid=uuid)
        )
        for index, uuid in enumerate((GOOD, BAD))
    )
    return HealthReport((finding,), gpus, (), 0.1)


def may_place(environment: dict[str, str], **case: object) -> bool:
    try:
        require_place(concerning(report(**case), environment))  # type: ignore[arg-type]
    except NegativeAnswer:
        return False
    return True


IN_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("environment", "allowed"),
    [
        ({}, False),
        ({"CUDA_VISIBLE_DEVICES": GOOD}, True),
        ({"CUDA_VISIBLE_DEVICES": BAD}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, True),
        ({"CUDA_VISIBLE_DEVICES": f"{GOOD}, {BAD}"}, False),
        ({"CUDA_VISIBLE_DEVICES": f"{GOOD},-1,{BAD}"}, True),
        ({"CUDA_VISIBLE_DEVICES": ""}, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, False),
        ({"CUDA_VISIBLE_DEVICES": "0", **IN_ORDER}, True),
        ({"CUDA_VISIBLE_DEVICES": "1", **IN_ORDER}, False),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aaaa1111"}, False),
        ({"CUDA_VISIBLE_DEVICES": "7", **IN_ORDER}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, False),
    ],
)
def test_only_gpus_that_the_replica_can_see_keep_it_out(environment: dict[str, str], allowed: bool) -> None:
    assert may_place(environment) is allowed


@pytest.mark.parametrize("subject", [HOST, FABRIC, "dcgm:3", "pci:0000:21:00.0"])
@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.REBOOT])
def test_what_is_no_gpu_of_the_report_concerns_every_replica(subject: str, verdict: Verdict) -> None:
    assert not may_place({"CUDA_VISIBLE_DEVICES": GOOD}, subject=subject, verdict=verdict)


def test_a_degraded_gpu_may_serve() -> None:
    assert may_place({}, verdict=Verdict.DEGRADED)
