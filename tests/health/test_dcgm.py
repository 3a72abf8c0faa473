"""Verdicts on every recorded diagnosis, DCGM's error ids and exit statuses, and the run itself."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError
from coldstart_health.dcgm import Diagnosis, Names, judge, read_output, read_outputs, wants_retest
from coldstart_health.dcgm_document import parse
from coldstart_health.dcgm_errors import judge_error
from coldstart_health.dcgm_run import (
    DcgmGpu,
    DcgmOutput,
    Ending,
    discover,
    interrupted_run,
    parse_discovery,
    raw_output_path,
    run_dcgmi,
)
from coldstart_health.verdict import Finding, Verdict, worst
from coldstart_host.gpu import GpuFacts
from conftest import shared_data, wait_until
from stand_ins.gpu_driver import Dcgmi

Expected = list[tuple[str, Verdict, str]]

# file -> level asked for, exit status, findings: from the release's own writer code and the research on it
RECORDED: dict[str, tuple[int, int, Expected]] = {
    "dcgmi-real/v3.1-r3-t4-pass.json": (3, 0, []),
    "dcgmi-real/v4.2.3-r1-gb10-persistence-off.json": (
        1,
        226,
        [("persistence_off", Verdict.DEGRADED, "dcgm:0")],
    ),
    "dcgmi-real/v4.2.3-r2-gb10-partial-skip.json": (
        2,
        226,
        [("nothing_ran", Verdict.UNKNOWN, "host"), ("persistence_off", Verdict.DEGRADED, "dcgm:0")],
    ),
    "dcgmi-real/nvvs-v3.1.0-stdout-with-prefix-and-nulls.txt": (1, 0, []),
    "dcgmi-handwritten/v2.4-r1-l1-fail-string-warning.json": (
        1,
        226,
        [("persistence_off", Verdict.DEGRADED, "dcgm:0")],
    ),
    "dcgmi-handwritten/v2.4-r3-plugin-fail-string-warning.json": (
        3,
        226,
        [("test_skipped", Verdict.UNKNOWN, "dcgm:1"), ("pcie_width", Verdict.DEGRADED, "dcgm:1")],
    ),
    "dcgmi-handwritten/v2.4-runtime-error-no-version.json": (
        3,
        235,
        [("dcgm_engine_down", Verdict.UNKNOWN, "host")],
    ),
    # three GPUs in the group, results of two
    "dcgmi-handwritten/v3.1.7-root-version-keys.json": (2, 0, [("gpu_not_tested", Verdict.UNKNOWN, "host")]),
    "dcgmi-handwritten/v3.2.5-result-level-error-id.json": (
        2,
        205,
        [("faulty_memory", Verdict.DRAIN, "dcgm:0")],
    ),
    "dcgmi-handwritten/v3.3.1-l1-result-per-error.json": (
        1,
        226,
        [("persistence_off", Verdict.DEGRADED, "dcgm:0"), ("persistence_off", Verdict.DEGRADED, "dcgm:1")],
    ),
    "dcgmi-handwritten/v3.3.9-mixed-keys-null.json": (
        2,
        226,
        [
            ("bandwidth_low", Verdict.DRAIN, "dcgm:2"),
            ("test_skipped", Verdict.UNKNOWN, "dcgm:2"),
            ("persistence_off", Verdict.DEGRADED, "dcgm:0"),
            ("persistence_off", Verdict.DEGRADED, "dcgm:2"),
        ],
    ),
    "dcgmi-handwritten/v4.1-isolate-one-of-two.json": (2, 205, [("faulty_memory", Verdict.DRAIN, "dcgm:1")]),
    "dcgmi-handwritten/v4.1-iterations-overall-fail.json": (
        2,
        205,
        [("faulty_memory", Verdict.DRAIN, "dcgm:1")],
    ),
    "dcgmi-handwritten/v4.4-all-plugins-skip-exit-0.json": (2, 0, [("nothing_ran", Verdict.UNKNOWN, "host")]),
    "dcgmi-handwritten/v4.5-isolate-summary-repeats.json": (
        2,
        205,
        [("faulty_memory", Verdict.DRAIN, "dcgm:1")],
    ),
    "dcgmi-handwritten/stdout-polluted-host-fallback.txt": (
        2,
        205,
        [("faulty_memory", Verdict.DRAIN, "dcgm:1"), ("dcgm_embedded_engine", Verdict.OK, "host")],
    ),
    "dcgmi-handwritten/stdout-plain-text-embedded-engine-failed.txt": (
        3,
        255,
        [("dcgm_engine_down", Verdict.UNKNOWN, "host")],
    ),
    "dcgmi-real/health-check-healthy.json": (3, 0, [("dcgm_output_unreadable", Verdict.UNKNOWN, "host")]),
}


def judged(output: str, *, level: int, status: int, gpus: tuple[GpuFacts, ...] = ()) -> tuple[Finding, ...]:
    return judge(parse(output), status=status, level=level, names=Names((), gpus), words=output[:200])


def diagnose(level: int, deadline_seconds: float, gpus: tuple[GpuFacts, ...] = ()) -> Diagnosis:
    output = run_dcgmi(configuration.load(), level=level, deadline_seconds=deadline_seconds)
    return read_output(output, gpus)


def brief(findings: tuple[Finding, ...]) -> Expected:
    return [(finding.reason, finding.verdict, finding.subject) for finding in findings]


@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_diagnosis_has_its_verdict(name: str) -> None:
    level, status, expected = RECORDED[name]
    findings = judged(shared_data(f"health/{name}").read_text(), level=level, status=status)
    assert sorted(brief(findings)) == sorted(expected)
    assert all(finding.evidence and finding.action for finding in findings)
    assert not any("{gpu}" in (finding.action or "") for finding in findings)
    assert not any("9223372036854775794" in finding.evidence for finding in findings)


def test_every_recorded_diagnosis_is_expected_here() -> None:
    folder = shared_data("health")
    files = {
        str(path.relative_to(folder))
        for path in folder.glob("dcgmi-*/*")
        if path.name not in {"exit-codes.csv", "nvidia-dcgm_diag_schema-v4.6.0.json"}
    }
    runtime_errors = {name for name in files if "runtime-error" in name}
    assert files - RECORDED.keys() - runtime_errors == set()


@pytest.mark.parametrize("name", ["v3.2.5-runtime-error-with-version", "v4.x-runtime-error"])
def test_another_diagnosis_at_work_is_busy_and_not_sick(name: str) -> None:
    output = shared_data(f"health/dcgmi-handwritten/{name}.json").read_text()
    with pytest.raises(BusyError, match="another diagnosis is running"):
        judged(output, level=3, status=226)


def test_level_one_results_are_no_answer_to_level_three() -> None:
    output = shared_data("health/dcgmi-real/nvvs-v3.1.0-stdout-with-prefix-and-nulls.txt").read_text()
    assert brief(judged(output, level=3, status=0)) == [("nothing_ran", Verdict.UNKNOWN, "host")]


def test_no_exit_status_of_dcgmi_without_a_diagnosis_may_serve() -> None:
    with shared_data("health/dcgmi-handwritten/exit-codes.csv").open() as stream:
        statuses = [int(row["exit_status"]) for row in csv.DictReader(stream)]
    assert len(statuses) > 20
    expected = {238: Verdict.REBOOT, 237: Verdict.RESET, 189: Verdict.DRAIN}
    unusable: dict[int, type[ColdstartError]] = dict.fromkeys([204, 215, 231], UnavailableError)
    unusable |= dict.fromkeys([217, 222], BusyError)
    for status in [*statuses, 1, 2, 137, 143]:
        if status in unusable:
            with pytest.raises(unusable[status]) as caught:
                judge(None, status=status, level=3, words="words of dcgmi")
            assert caught.value.hint
            continue
        findings = judge(None, status=status, level=3, words="words of dcgmi")
        assert worst(finding.verdict for finding in findings) is expected.get(status, Verdict.UNKNOWN)


def test_every_error_id_of_dcgm_4_6_is_judged_without_asking_for_its_severity() -> None:
    with shared_data("health/tables/dcgm-error-severity.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 133
    for row in rows:
        if "DEPRECATED" in row["description"]:
            continue
        own = judge_error(int(row["error_id"]), None, "text")
        assert not own.reason.startswith("dcgm_error_"), row
        # what the vendor isolates never passes as fit to serve, and set-up never takes a host out
        if row["severity_4_6_0"] == "ISOLATE":
            assert not own.verdict.may_serve, row
        if row["severity_4_6_0"] == "CONFIG" and row["name"] != "FABRIC_MANAGER_TRAINING_ERROR":
            assert own.verdict in {Verdict.DEGRADED, Verdict.UNKNOWN}, row


@pytest.mark.parametrize(
    ("error_id", "severity", "text", "reason", "verdict"),
    [
        (80, 6, "Row remap failure", "row_remap_failure", Verdict.REPLACE),
        (29, 2, "Persistence mode for GPU 0 is disabled.", "persistence_off", Verdict.DEGRADED),
        (55, 2, "ECC is off", "ecc_off", Verdict.DEGRADED),
        (56, 4, "Cannot allocate", "gpu_busy", Verdict.UNKNOWN),
        (900, 1, "new", "dcgm_error_900", Verdict.DEGRADED),
        (900, 2, "new", "dcgm_error_900", Verdict.DRAIN),
        (900, 6, "new", "dcgm_error_900", Verdict.RESET),
        (900, None, "new", "dcgm_error_900", Verdict.UNKNOWN),
        (900, 77, "new", "dcgm_error_900", Verdict.UNKNOWN),
        (
            None,
            None,
            "A pending retired page has been detected in GPU 1",
            "page_retirement_pending",
            Verdict.RESET,
        ),
        (None, None, "something nobody knows", "dcgm_test_failed", Verdict.DRAIN),
        (
            None,
            None,
            "GPU 0's MIG configuration is incompatible with the diagnostic because",
            "mig_enabled",
            Verdict.UNKNOWN,
        ),
    ],
)
def test_the_id_decides_then_the_severity_then_the_text(
    error_id: int | None, severity: int | None, text: str, reason: str, verdict: Verdict
) -> None:
    own = judge_error(error_id, severity, text)
    assert (own.reason, own.verdict) == (reason, verdict)


def diagnosis(*results: dict[str, Any], serials: tuple[str, ...] = ("A", "B")) -> str:
    """A 4.x document: one `memory` test with the given results."""
    entities = [{"entity_id": number, "serial_num": serial} for number, serial in enumerate(serials)]
    return json.dumps(
        {
            "DCGM Diagnostic": {
                "test_categories": [
                    {"category": "Hardware", "tests": [{"name": "memory", "results": list(results)}]}
                ]
            },
            "entity_groups": [{"entity_group": "GPU", "entities": entities}],
            "metadata": {"version": "4.6.0"},
        }
    )


def result(gpu: int, status: str, **more: object) -> dict[str, Any]:
    return {"entity_group": "GPU", "entity_id": gpu, "status": status, **more}


def test_a_gpu_is_named_by_the_uuid_of_its_serial_number_whatever_its_index() -> None:
    gpus = (GpuFacts(0, uuid="GPU-b", serial="B"), GpuFacts(1, uuid="GPU-a", serial="A"))
    output = diagnosis(result(0, "Pass"), result(1, "Fail"))
    assert brief(judged(output, level=2, status=226, gpus=gpus)) == [
        ("dcgm_test_failed", Verdict.DRAIN, "GPU-b")
    ]


def test_a_warning_of_a_passed_test_is_read() -> None:
    warning = {"warning": "Cannot allocate memory", "error_id": 56}
    output = diagnosis(result(0, "Pass", warnings=[warning]), result(1, "Pass"))
    assert brief(judged(output, level=2, status=0)) == [("gpu_busy", Verdict.UNKNOWN, "dcgm:0")]


def test_a_gpu_that_nvml_knows_and_dcgm_did_not_test_is_unknown() -> None:
    gpus = tuple(GpuFacts(index, uuid=f"GPU-{index}") for index in range(3))
    findings = judged(diagnosis(result(0, "Pass"), result(1, "Pass")), level=2, status=0, gpus=gpus)
    assert brief(findings) == [("gpu_not_tested", Verdict.UNKNOWN, "host")]
    assert findings[0].evidence == "DCGM tested 2 of 3 GPUs"


def test_a_failed_status_that_no_test_explains_is_unknown() -> None:
    findings = judged(diagnosis(result(0, "Pass"), result(1, "Pass")), level=2, status=226)
    assert brief(findings) == [("dcgm_unexplained", Verdict.UNKNOWN, "host")]


def test_a_status_word_of_a_later_release_is_unknown() -> None:
    findings = judged(diagnosis(result(0, "Pass"), result(1, "Splendid")), level=2, status=0)
    assert ("dcgm_status_unknown", Verdict.UNKNOWN, "host") in brief(findings)


def test_a_cpu_that_fails_is_the_hosts_fault() -> None:
    output = diagnosis(
        result(0, "Pass"),
        result(1, "Pass"),
        {
            "entity_group": "CPU",
            "entity_id": 0,
            "status": "Fail",
            "warnings": [{"warning": "x", "error_id": 95}],
        },
    )
    assert brief(judged(output, level=2, status=205)) == [("eud_failed", Verdict.DRAIN, "host")]


@pytest.fixture
def dcgmi(tmp_path: Path) -> Dcgmi:
    return Dcgmi(tmp_path)


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_what_dcgmi_printed_is_kept_whole(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.write_text("a line first\n" + diagnosis(result(0, "Pass"), result(1, "Pass")))
    set_environment(monkeypatch, dcgmi.prints(output))
    config = configuration.load()
    done = diagnose(2, 30)
    assert (done.findings, done.version) == ((), "4.6.0")
    assert done.labels == {"dcgm:0": "GPU 0", "dcgm:1": "GPU 1"}
    assert dcgmi.calls == ["diag -r 2 -j"]
    assert raw_output_path(config.state_folder).read_bytes() == output.read_bytes()


def test_a_dcgmi_that_hangs_is_killed_with_its_children(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, dcgmi.hangs())
    done = diagnose(3, 1)
    assert brief(done.findings) == [("probe_hang", Verdict.UNKNOWN, "host")]
    assert done.findings[0].evidence == "dcgmi diag -r 3: no end after 1 s, killed"
    for pid in dcgmi.pids:
        wait_until(lambda pid=pid: not alive(pid), f"process {pid} to be gone")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_absent_dcgmi_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDSTART_PROGRAMS_DCGMI", "/nowhere/dcgmi")
    with pytest.raises(UnavailableError, match="/nowhere/dcgmi") as caught:
        diagnose(1, 5)
    assert "datacenter-gpu-manager" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a folder nobody may write")
def test_a_state_folder_that_cannot_be_written_costs_only_the_record(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.write_text(diagnosis(result(0, "Pass"), result(1, "Pass")))
    set_environment(monkeypatch, dcgmi.prints(output))
    monkeypatch.setenv("COLDSTART_STATE_DIR", "/proc/no-such-folder")
    done = diagnose(2, 30)
    assert brief(done.findings) == [("dcgm_output_not_kept", Verdict.OK, "host")]


def test_dcgms_numbers_are_those_of_its_own_list_whatever_nvml_calls_them() -> None:
    gpus = (
        GpuFacts(0, uuid="GPU-a", pci_bus_id="0000:1a:00.0"),
        GpuFacts(1, uuid="GPU-b", pci_bus_id="0000:1b:00.0"),
    )
    by_uuid = (DcgmGpu(0, uuid="GPU-b"), DcgmGpu(1, uuid="GPU-a"))
    by_bus = (DcgmGpu(0, pci_bus_id="0000:1b:00.0"), DcgmGpu(1, pci_bus_id="0000:1a:00.0"))
    text = diagnosis(result(0, "Fail"), result(1, "Pass"))
    for known in (by_uuid, by_bus):
        done = read_output(DcgmOutput(2, 226, text, "", 1.0, known=known), gpus)
        assert brief(done.findings) == [("dcgm_test_failed", Verdict.DRAIN, "GPU-b")]
        assert done.labels == {"GPU-b": "GPU 1", "GPU-a": "GPU 0"}


def test_a_gpu_that_only_dcgm_sees_keeps_its_uuid() -> None:
    known = (DcgmGpu(0, uuid="GPU-x"), DcgmGpu(1, uuid="GPU-y"))
    text = diagnosis(result(0, "Fail"), result(1, "Pass"))
    done = read_output(DcgmOutput(2, 226, text, "", 1.0, known=known), ())
    assert [finding.subject for finding in done.findings] == ["GPU-x"]


def test_gpus_that_were_asked_for_and_not_tested_are_unknown_and_strangers_are_told() -> None:
    known = tuple(DcgmGpu(number, uuid=f"GPU-{number}") for number in range(4))
    text = diagnosis(result(0, "Pass"), result(3, "Pass"), serials=())
    done = read_output(DcgmOutput(2, 0, text, "", 1.0, wanted=(0, 1), known=known), ())
    assert brief(done.findings) == [
        ("gpu_not_tested", Verdict.UNKNOWN, "GPU-1"),
        ("gpu_not_requested", Verdict.OK, "host"),
    ]


def test_a_fault_that_was_printed_before_the_deadline_counts_beside_it(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = diagnosis(result(0, "Fail", warnings=[{"warning": "x", "error_id": 52}]), result(1, "Pass"))
    done = read_output(DcgmOutput(2, None, text, "no end", 1.0, ending=Ending.DEADLINE), ())
    assert brief(done.findings) == [
        ("probe_hang", Verdict.UNKNOWN, "host"),
        ("faulty_memory", Verdict.DRAIN, "dcgm:0"),
    ]
    cut = read_output(DcgmOutput(2, None, text[:-40], "no end", 1.0, ending=Ending.DEADLINE), ())
    assert brief(cut.findings) == [("probe_hang", Verdict.UNKNOWN, "host")]


def test_an_interrupted_run_leaves_its_gpus_unknown() -> None:
    known = (DcgmGpu(0, uuid="GPU-a"), DcgmGpu(1, uuid="GPU-b"))
    done = read_output(interrupted_run(3, (1,), known), ())
    assert brief(done.findings) == [("diagnosis_aborted", Verdict.UNKNOWN, "GPU-b")]
    assert done.findings[0].action == "coldstart health deep --level 3"


def hot(gpu: int) -> dict[str, Any]:
    return result(gpu, "Fail", warnings=[{"warning": "thermal violation", "error_id": 41}])


@pytest.mark.parametrize(
    ("again", "status", "verdict"),
    [
        ([result(0, "Pass"), result(1, "Pass")], 0, Verdict.OK),
        ([hot(0), result(1, "Pass")], 226, Verdict.DEGRADED),
        ([result(0, "Skip"), result(1, "Skip")], 0, Verdict.DEGRADED),
    ],
)
def test_heat_counts_when_it_comes_again(again: list[dict[str, Any]], status: int, verdict: Verdict) -> None:
    first = DcgmOutput(2, 226, diagnosis(hot(0), result(1, "Pass")), "", 1.0)
    second = DcgmOutput(2, status, diagnosis(*again), "", 1.0, repeats=0)
    assert wants_retest(read_output(first, ()))
    found = {finding.reason: finding.verdict for finding in read_outputs([first, second], ()).findings}
    assert found["thermal_violation"] is verdict


def test_what_is_no_reading_of_the_moment_is_not_repeated() -> None:
    text = diagnosis(result(0, "Fail", warnings=[{"warning": "x", "error_id": 52}]), result(1, "Pass"))
    assert not wants_retest(read_output(DcgmOutput(2, 205, text, "", 1.0), ()))


def test_the_list_of_dcgm_is_read_with_its_switches_left_aside(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, dcgmi.environment)
    assert discover(configuration.load()) == (), "an engine that does not answer lists nothing"
    dcgmi.discovers(("H100", "00000000:1B:00.0", "GPU-b"), ("H100", "00000000:1A:00.0", "GPU-a"))
    assert discover(configuration.load()) == (
        DcgmGpu(0, "H100", "GPU-b", "0000:1b:00.0"),
        DcgmGpu(1, "H100", "GPU-a", "0000:1a:00.0"),
    )
    assert parse_discovery("rubbish\n| 1 |\n") == ()


def test_a_dcgmi_that_is_older_than_its_engine_names_both_versions(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi.is_of_versions("3.3.5", "4.2.3")
    dcgmi.answers("", status=244)
    dcgmi.answers("Error: unable to run the diagnostic: API version mismatch\n", status=253)
    set_environment(monkeypatch, dcgmi.environment)
    for _ in range(2):
        (finding,) = diagnose(2, 30).findings
        assert (finding.reason, finding.verdict) == ("dcgm_version_mismatch", Verdict.UNKNOWN)
        assert "dcgmi 3.3.5, host engine 4.2.3" in finding.evidence


@pytest.mark.parametrize(
    "text", ["", "\x00\xff{{{{", "{}", "[1, 2]", '{"DCGM Diagnostic": 5}', "{" * 5000, "Killed\n" * 50000]
)
def test_rubbish_is_unknown(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    dcgmi.answers(text)
    set_environment(monkeypatch, dcgmi.environment)
    (finding,) = diagnose(2, 30).findings
    assert finding.verdict is Verdict.UNKNOWN
    assert raw_output_path(configuration.load().state_folder).stat().st_size <= 1 << 20


def test_a_dcgmi_that_crashes_is_unknown_whatever_it_printed(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.write_text(diagnosis(result(0, "Pass"), result(1, "Pass")))
    set_environment(monkeypatch, dcgmi.dies(output))
    (finding,) = diagnose(2, 30).findings
    assert finding.verdict is Verdict.UNKNOWN
    assert "139" in finding.evidence


def test_the_outputs_of_an_earlier_diagnosis_with_more_runs_go(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, dcgmi.environment)
    config = configuration.load()
    for number in (0, 1, 2, 0):
        run_dcgmi(config, level=2, deadline_seconds=30, number=number)
    assert sorted(path.name for path in (config.state_folder / "health").iterdir()) == ["dcgmi-diag.out"]
