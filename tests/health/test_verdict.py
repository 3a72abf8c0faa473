"""The order of verdicts, and how findings add up to a report."""

from __future__ import annotations

import pytest

from coldstart_cli.errors import BusyError, UnavailableError
from coldstart_health.verdict import HOST, CheckRun, Finding, GpuVerdict, HealthReport, Verdict, merged, worst


def finding(verdict: Verdict, reason: str = "reason", subject: str = HOST) -> Finding:
    return Finding(reason, verdict, subject, "test", f"evidence of {verdict.word}")


def report(
    *findings: Finding, gpus: tuple[GpuVerdict, ...] = (), checks: tuple[CheckRun, ...] = ()
) -> HealthReport:
    return HealthReport(merged(findings), gpus, checks, 0.1)


def test_the_order_is_the_documented_one() -> None:
    words = ["ok", "degraded", "unknown", "drain", "reset", "reboot", "replace"]
    assert [verdict.word for verdict in sorted(Verdict)] == words


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_ok_and_degraded_may_serve(verdict: Verdict) -> None:
    assert report(finding(verdict)).may_serve == (verdict.word in {"ok", "degraded"})


def test_the_worst_wins() -> None:
    assert worst([Verdict.RESET, Verdict.UNKNOWN, Verdict.OK]) is Verdict.RESET
    assert report(finding(Verdict.DEGRADED, "a"), finding(Verdict.DRAIN, "b")).overall is Verdict.DRAIN


def test_the_host_is_judged_apart_from_its_gpus() -> None:
    gpu = GpuVerdict("GPU-1", Verdict.REPLACE, "GPU 1")
    seen = report(finding(Verdict.REPLACE, subject="GPU-1"), finding(Verdict.DEGRADED), gpus=(gpu,))
    assert seen.host_verdict is Verdict.DEGRADED
    assert seen.overall is Verdict.REPLACE


def test_one_reason_is_reported_once_a_subject_at_its_worst() -> None:
    kept = merged([finding(Verdict.DEGRADED), finding(Verdict.DRAIN), finding(Verdict.OK, subject="GPU-1")])
    assert [(item.verdict, item.subject) for item in kept] == [(Verdict.DRAIN, HOST), (Verdict.OK, "GPU-1")]


def test_the_summary_names_the_worst_finding_and_counts_the_rest() -> None:
    text = report(
        finding(Verdict.OK, "a"), finding(Verdict.DEGRADED, "b"), finding(Verdict.RESET, "c")
    ).summary
    assert text == "reset: c on host: evidence of reset (and 1 more)"
    assert report(finding(Verdict.OK)).summary == "ok"


def test_a_missing_program_is_the_answer_only_when_nothing_worse_is_known() -> None:
    missing = UnavailableError("program is not installed: dcgmi")
    unchecked = finding(Verdict.UNKNOWN, "dcgm_not_checked")
    check = CheckRun("dcgm", 0.0, missing)
    assert report(unchecked, finding(Verdict.DEGRADED, "b"), checks=(check,)).unavailable is missing
    assert report(unchecked, finding(Verdict.RESET, "b"), checks=(check,)).unavailable is None
    busy = CheckRun("nvml", 0.0, BusyError("busy"))
    assert report(unchecked, checks=(check, busy)).unavailable is None
    assert report().unavailable is None
