"""`coldstart health status` and `health clear`: what blocks, why, and how a person lets it go, on record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conftest import Coldstart, Result
from stand_ins.gpu_driver import GpuDriver
from stand_ins.kernel_log import KernelLogFile

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


@pytest.fixture
def driver(tmp_path: Path) -> GpuDriver:
    return GpuDriver(tmp_path)


@pytest.fixture
def health(tmp_path: Path) -> Path:
    return tmp_path / "coldstart" / "state" / "health"


def quick(coldstart: Coldstart, driver: GpuDriver, *faults: str) -> Result:
    driver.control("* count 2", *faults)
    return coldstart("health", "quick", environment=driver.environment)


def document(result: Result, schema: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(result.stdout)
    assert (content["schema"], content["version"]) == (f"coldstart.health.{schema}", 1)
    return content


def audit(health: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (health / "audit.jsonl").read_text().splitlines()]


def test_nothing_in_quarantine_is_said_and_ends_with_0(coldstart: Coldstart) -> None:
    result = coldstart("health", "status")
    assert (result.status, result.stdout) == (0, "nothing is in quarantine\n")


def test_a_quarantined_gpu_is_shown_with_since_why_and_what_releases_it(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    assert quick(coldstart, driver, "1 remap_failure 1").status == 3
    result = coldstart("health", "status")
    assert result.status == 3
    assert f"replace   {UUID.format(1)}, index 1, serial 1650000000002, 0000:1b:00.0" in result.stdout
    assert "row_remap_failure (replace): a row could not be remapped" in result.stdout
    assert "next: take it out of service and have it replaced" in result.stdout
    assert "last quick check: 20" in result.stdout
    assert f"coldstart: error: in quarantine: {UUID.format(1)}: replace" in result.stderr
    content = document(coldstart("health", "status", "--json"), "status")
    (entry,) = content["quarantine"]
    assert (entry["verdict"], entry["blocks"], entry["uuid"]) == ("replace", True, UUID.format(1))
    assert content["last_runs"]["quick"]["verdict"] == "replace"
    assert content["last_runs"]["quick"]["this_boot"] is True


def test_the_next_quick_check_refuses_a_quarantined_gpu_that_looks_well(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    quick(coldstart, driver, "1 temperature 93")
    result = quick(coldstart, driver)
    assert result.status == 3
    assert "quarantined: since 20" in result.stdout


@pytest.mark.parametrize(
    "selector", [UUID.format(1), "1650000000002", "1", "0000:1b:00.0", "1b:00.0", "00000000:1B:00.0"]
)
def test_a_gpu_is_cleared_by_any_of_its_names(coldstart: Coldstart, driver: GpuDriver, selector: str) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    result = coldstart("health", "clear", selector, "--reason", "changed")
    assert result.status == 0, result.stderr
    assert f"cleared {UUID.format(1)}" in result.stdout
    assert quick(coldstart, driver).status == 0


def test_a_clearing_is_on_record_with_who_and_why(
    coldstart: Coldstart, driver: GpuDriver, health: Path
) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    environment = {"SUDO_USER": "ada"} if os.geteuid() == 0 else {}
    content = document(
        coldstart("health", "clear", "1", "--reason", " riser\nchanged ", "--json", environment=environment),
        "clear",
    )
    assert content["cleared"][0]["causes"] == ["row_remap_failure"]
    entered, cleared = audit(health)
    assert (entered["action"], entered["verdict"]) == ("entered", "replace")
    assert (cleared["action"], cleared["reason"]) == ("clear", "riser changed")
    assert cleared["who"]["uid"] == os.getuid()
    if environment:
        assert (cleared["who"]["sudo_user"], content["by"]) == ("ada", "ada")
    assert cleared["gpu"]["uuid"] == UUID.format(1)


def test_a_rehearsed_clearing_changes_nothing(coldstart: Coldstart, driver: GpuDriver, health: Path) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    before = (health / "quarantine.json").read_bytes(), (health / "audit.jsonl").read_bytes()
    result = coldstart("health", "clear", "1", "--reason", "x", "--dry-run")
    assert result.status == 0
    assert f"would clear {UUID.format(1)}" in result.stdout
    assert before == ((health / "quarantine.json").read_bytes(), (health / "audit.jsonl").read_bytes())


def test_a_clearing_without_a_reason_is_refused(coldstart: Coldstart, driver: GpuDriver) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    assert coldstart("health", "clear", "1").status == 2
    result = coldstart("health", "clear", "1", "--reason", "  \n")
    assert result.status == 2
    assert "--reason must not be empty" in result.stderr
    assert coldstart("health", "status").status == 3


def test_an_ambiguous_beginning_is_refused_with_the_candidates(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    quick(coldstart, driver, "* remap_failure 1")
    result = coldstart("health", "clear", "GPU-00000000-0000", "--reason", "x")
    assert result.status == 2
    assert UUID.format(0) in result.stderr
    assert UUID.format(1) in result.stderr


def test_a_gpu_that_is_not_in_quarantine_is_refused_with_those_that_are(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    for selector in ("0", "GPU-0", "7", "", "host"):
        result = coldstart("health", "clear", selector, "--reason", "x")
        assert result.status == 66, selector
        assert UUID.format(1) in result.stderr


def test_one_gpu_or_all_must_be_named(coldstart: Coldstart) -> None:
    assert coldstart("health", "clear", "--reason", "x").status == 2
    assert coldstart("health", "clear", "0", "--all", "--reason", "x").status == 2


def test_a_cause_that_lasts_puts_a_cleared_gpu_back_where_it_was(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    quick(coldstart, driver, "1 remap_failure 1")
    coldstart("health", "clear", "1", "--reason", "x")
    assert quick(coldstart, driver, "1 remap_failure 1").status == 3
    assert "cleared 20" in coldstart("health", "status").stdout


def test_a_cleared_xid_does_not_come_back_out_of_the_same_line_of_the_log(
    coldstart: Coldstart, driver: GpuDriver, kernel_log: KernelLogFile
) -> None:
    coldstart.environment["COLDSTART_HEALTH_KERNEL_LOG"] = str(kernel_log.path)
    kernel_log.say(
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus"
    )
    assert quick(coldstart, driver).status == 3
    assert f"reboot    {UUID.format(1)}" in coldstart("health", "status").stdout
    assert coldstart("health", "clear", "1b:00.0", "--reason", "seen to").status == 0
    assert quick(coldstart, driver).status == 0
    kernel_log.say("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus")
    assert quick(coldstart, driver).status == 3


def test_all_of_them_can_be_cleared_at_once(coldstart: Coldstart, driver: GpuDriver, health: Path) -> None:
    quick(coldstart, driver, "* remap_failure 1")
    assert coldstart("health", "clear", "--all", "--reason", "x").status == 0
    assert coldstart("health", "status").status == 0
    assert [entry["action"] for entry in audit(health)] == ["entered", "entered", "clear", "clear"]


@pytest.mark.parametrize("content", ["{", '{"schema": "coldstart.health.quarantine", "version": 9}'])
def test_a_record_that_cannot_be_read_blocks_until_a_person_starts_anew(
    coldstart: Coldstart, driver: GpuDriver, health: Path, content: str
) -> None:
    health.mkdir(parents=True)
    (health / "quarantine.json").write_text(content)
    assert coldstart("health", "status").status == 3
    assert quick(coldstart, driver).status == 3
    assert coldstart("health", "clear", "1", "--reason", "x").status == 3
    result = coldstart("health", "clear", "--all", "--reason", "seen to")
    assert result.status == 0, result.stderr
    (copy,) = health.glob("quarantine.json.damaged-*")
    assert copy.read_text() == content
    assert str(copy) in result.stdout
    assert audit(health)[0]["action"] == "clear_all"
    assert quick(coldstart, driver).status == 0
