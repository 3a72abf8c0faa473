"""The NVLink fabric: what all GPUs share is the fabric's, what one has alone is that GPU's."""

from __future__ import annotations

import pytest

from coldstart_health.fabric_checks import fabric_findings, has_fabric
from coldstart_health.verdict import Verdict
from coldstart_host.fabric import FabricFacts
from coldstart_host.gpu_probe import read_gpus
from stand_ins.gpu_driver import GpuDriver

NO_SWITCHES = FabricFacts(0, manager_running=False, in_container=False)
BAD = "GPU-00000000-0000-0000-0000-000000000001"


def found(driver: GpuDriver, *lines: str, facts: FabricFacts = NO_SWITCHES) -> list[tuple[str, Verdict, str]]:
    driver.control("* count 4", *lines)
    findings = list(fabric_findings(read_gpus().gpus, facts))
    assert all(finding.action and finding.evidence for finding in findings)
    return [(finding.reason, finding.verdict, finding.subject) for finding in findings]


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("fabric_state 1", "fabric_not_started", Verdict.DRAIN),
        ("fabric_state 2", "fabric_in_progress", Verdict.UNKNOWN),
        ("fabric_status 23", "fabric_insufficient_resources", Verdict.DRAIN),
        ("fabric_status 999", "fabric_failed", Verdict.DRAIN),
        ("fabric_summary 2", "fabric_unhealthy", Verdict.DRAIN),
        ("fabric_summary 3", "fabric_limited", Verdict.DEGRADED),
        ("fabric_summary 4", "fabric_health_other", Verdict.UNKNOWN),
        ("fabric_summary 255", "fabric_health_other", Verdict.UNKNOWN),
    ],
)
def test_what_one_gpu_has_is_its_own_and_what_all_have_is_the_fabrics(
    driver: GpuDriver, line: str, reason: str, verdict: Verdict
) -> None:
    assert found(driver, f"1 {line}") == [(reason, verdict, BAD)]
    assert found(driver, f"* {line}") == [(reason, verdict, "fabric")]


@pytest.mark.parametrize(
    ("mask", "reason", "words"),
    [
        (0x1, "fabric_limited", "bandwidth is reduced"),
        (0x10, "fabric_unhealthy", "a route is unhealthy"),
        (0x500, "fabric_unhealthy", "too few NVLinks"),
        (0x8000, "fabric_limited", "the fabric manager is disconnected"),
        (0x2 | 0x8 | 0x20 | 0x80 | 0x100 | 0x1000 | 0x4000, None, ""),
    ],
)
def test_a_driver_without_a_summary_is_judged_by_its_health_mask(
    driver: GpuDriver, mask: int, reason: str | None, words: str
) -> None:
    driver.control("* count 2", "* fabric_v2_only 1", f"0 fabric_mask {mask}")
    findings = list(fabric_findings(read_gpus().gpus, NO_SWITCHES))
    assert [finding.reason for finding in findings] == ([reason] if reason else [])
    assert all(words in finding.evidence for finding in findings)


def test_gpus_in_two_cliques_or_clusters_do_not_reach_each_other(driver: GpuDriver) -> None:
    split = [("fabric_split", Verdict.DRAIN, "fabric")]
    assert found(driver, "3 clique 1") == split
    assert found(driver, "3 cluster 171") == split
    assert found(driver, "* clique 7", "* cluster 171") == []
    assert found(driver, "3 clique 1", "3 model 1") == [], "another model is elsewhere by right"


def test_gpus_without_a_fabric_have_none(driver: GpuDriver) -> None:
    assert found(driver, "* fabric_state 0") == []
    assert not has_fabric(read_gpus().gpus, NO_SWITCHES)


@pytest.mark.parametrize(
    ("line", "facts", "expected"),
    [
        ("fabric_state 3", FabricFacts(4, manager_running=True, in_container=False), None),
        (
            "fabric_state 3",
            FabricFacts(4, manager_running=False, in_container=False),
            ("fabric_manager_down", Verdict.DEGRADED),
        ),
        (
            "fabric_state 0",
            FabricFacts(6, manager_running=False, in_container=False),
            ("fabric_manager_down", Verdict.DRAIN),
        ),
        (
            "fabric_state 3",
            FabricFacts(4, manager_running=False, in_container=True),
            ("fabric_manager_unseen", Verdict.OK),
        ),
    ],
)
def test_switches_without_their_manager_are_a_fault_where_it_could_be_seen(
    driver: GpuDriver, line: str, facts: FabricFacts, expected: tuple[str, Verdict] | None
) -> None:
    assert found(driver, f"* {line}", facts=facts) == ([(*expected, "fabric")] if expected else [])
    assert has_fabric(read_gpus().gpus, facts)
