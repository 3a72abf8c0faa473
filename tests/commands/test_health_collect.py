"""`coldstart health collect` and `health quick --replay`, from one host to a ticket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Coldstart
from stand_ins.gpu_driver import GpuDriver
from stand_ins.kernel_log import KernelLogFile

LIMITS = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}


@pytest.fixture
def sick(tmp_path: Path) -> dict[str, str]:
    """A host of two GPUs, of which one lost the bus and one waits for a reset."""
    driver, log = GpuDriver(tmp_path), KernelLogFile(tmp_path)
    driver.control("* count 2", "0 remap_pending 1")
    log.say("NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.")
    return LIMITS | driver.environment | {"COLDSTART_HEALTH_KERNEL_LOG": str(log.path)}


@pytest.mark.parametrize("place", [("folder",), ("--output", "x.tar.gz")])
def test_a_sick_host_is_collected_with_status_0_and_judged_elsewhere(
    coldstart: Coldstart, sick: dict[str, str], place: tuple[str, ...]
) -> None:
    result = coldstart("health", "collect", *place, environment=sick)
    assert result.status == 0, result.stderr
    assert "verdict reboot" in result.stdout
    other = {"LD_LIBRARY_PATH": "", "COLDSTART_HEALTH_KERNEL_LOG": "/dev/null"}
    replayed = coldstart("health", "quick", "--replay", place[-1], environment=other)
    assert replayed.status == 3
    assert replayed.stdout.startswith(f"replay of {place[-1]}, not this host: recorded ")
    assert "xid_79" in replayed.stdout
    assert "row_remap_pending" in replayed.stdout
    assert not (coldstart.folder / "coldstart" / "state").exists()


def test_a_replay_is_marked_in_its_document(coldstart: Coldstart, sick: dict[str, str]) -> None:
    answer = json.loads(coldstart("health", "collect", "folder", "--json", environment=sick).stdout)
    assert (answer["schema"], answer["verdict"]) == ("coldstart.health.collect", "reboot")
    assert set(answer["files"]) >= {"manifest.json", "evidence.json", "report.json", "kernel-log.txt"}
    content = json.loads(coldstart("health", "quick", "--replay", "folder", "--json").stdout)
    assert content["schema"] == "coldstart.health.quick"
    assert content["verdict"] == "reboot"
    assert content["replay"]["verdict_then"] == "reboot"
    assert content["replay"]["source"] == "folder"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("collect",), 2, "name one place"),
        (("collect", "a", "--output", "b.tar"), 2, "name one place"),
        (("collect", "--output", "b.zip"), 2, "not the name of an archive"),
        (("collect", "."), 73, "there is something already"),
        (("collect", "/proc/no"), 73, "/proc/no"),
        (("quick", "--replay", "nowhere"), 66, "no such collection: nowhere"),
        (("quick", "--replay", "."), 65, "nothing to judge"),
        (("quick", "--replay", ".", "--active"), 2, "--replay looks at no host"),
        (("quick", "--replay", ".", "--nagios"), 2, "--replay looks at no host"),
    ],
)
def test_what_cannot_be_done_is_said(
    coldstart: Coldstart, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = coldstart("health", *arguments)
    assert (result.status, message in result.stderr) == (status, True), result.stderr
    assert "Traceback" not in result.stderr


def test_a_verdict_that_is_not_the_one_of_then_is_pointed_out(
    coldstart: Coldstart, sick: dict[str, str]
) -> None:
    coldstart("health", "collect", "folder", environment=sick)
    report = coldstart.folder / "folder" / "report.json"
    report.write_text(json.dumps(json.loads(report.read_text()) | {"verdict": "ok"}))
    result = coldstart("health", "quick", "--replay", "folder")
    assert "came to another verdict: ok" in result.stderr
