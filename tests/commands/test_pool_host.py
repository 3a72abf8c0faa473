"""`coldstart pool status`, `take`, `release` and `refill` on a host whose driver the tests provide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Coldstart, Result, wait_until
from stand_ins.gpu_driver import GpuDriver

UNLIMITED = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}


class Host:
    def __init__(self, coldstart: Coldstart, driver: GpuDriver) -> None:
        self._coldstart = coldstart
        self.driver = driver
        self.environment: dict[str, str] = {}

    def pool(self, *arguments: str) -> Result:
        environment = UNLIMITED | self.driver.environment | self.environment
        return self._coldstart("pool", *arguments, environment=environment)

    def status(self) -> dict[str, Any]:
        result = self.pool("status", "--json")
        assert result.status == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["schema"], document["version"]) == ("coldstart.pool.status", 1)
        assert isinstance(document, dict)
        return document

    def refills_with(self, folder: Path, script: str) -> None:
        path = folder / "refills.toml"
        path.write_text(
            '[[offer]]\nprovider = "lab"\ngpu = "H100-80GB"\nattempts = 1\n'
            f"command = {json.dumps(['/bin/sh', '-c', script])}\n"
        )
        self.environment["COLDSTART_POOL_REFILL_FILE"] = str(path)


@pytest.fixture
def host(coldstart: Coldstart, tmp_path: Path) -> Host:
    return Host(coldstart, GpuDriver(tmp_path))


def test_taken_gpus_are_shown_with_their_holder_and_are_free_after_the_release(host: Host) -> None:
    gpus = host.status()["gpus"]
    taken = host.pool("take", "job-1", "--gpus", "2")
    assert taken.status == 0, taken.stderr
    assert taken.stdout.strip() == ",".join(gpu["uuid"] for gpu in gpus[:2])
    after = host.status()
    assert after["level"] == len(gpus) - 2
    assert [gpu["holder"] for gpu in after["gpus"][:3]] == ["job-1", "job-1", None]
    assert host.pool("release", "job-1").status == 0
    assert host.status()["level"] == len(gpus)


def test_a_gpu_that_health_finds_sick_is_not_taken(host: Host) -> None:
    gpus = host.status()["gpus"]
    host.driver.control("0 remap_pending 1")
    shown = host.status()["gpus"][0]
    assert not shown["free"]
    assert shown["kept_out_because"]
    taken = host.pool("take", "job-1")
    assert taken.stdout.strip() == gpus[1]["uuid"]


def test_more_than_there_are_is_no_for_an_answer(host: Host) -> None:
    taken = host.pool("take", "job-1", "--gpus", "99")
    assert taken.status == 3
    assert "not enough free GPUs in the pool" in taken.stderr
    assert host.pool("take", "job-1", "--dry-run").status == 0
    assert all(gpu["holder"] is None for gpu in host.status()["gpus"])


def test_a_take_orders_in_the_background_and_the_supply_table_remembers(host: Host, tmp_path: Path) -> None:
    host.refills_with(tmp_path, "exit 0")
    taken = json.loads(host.pool("take", "job-1", "--json").stdout)
    assert taken["refill"] is True
    wait_until(lambda: host.status()["refills"][0]["state"] == "obtained", "the refill has come", 60)
    log = Path(host.status()["refill_log"])
    table = log.with_name("supply.csv").read_text().splitlines()
    assert len(table) == 2
    assert table[1].split(",")[1] == "lab"


def test_orders_that_wait_with_nobody_at_work_are_said_and_a_refill_by_hand_goes_on(
    host: Host, tmp_path: Path
) -> None:
    host.refills_with(tmp_path, "echo no capacity >&2; exit 1")
    assert host.pool("take", "job-1", "--gpus", "1").status == 0
    wait_until(lambda: host.status()["refills"][0]["state"] == "gave up", "the refill was given up", 60)
    result = host.pool("refill")
    assert result.status == 0
    assert "nothing is on order" in result.stdout


def test_without_a_refill_file_a_refill_is_refused(host: Host) -> None:
    result = host.pool("refill")
    assert result.status == 78
    assert "no refill file is configured" in result.stderr


def test_a_bad_refill_file_keeps_nobody_from_the_gpus_and_the_order_waits(host: Host, tmp_path: Path) -> None:
    host.refills_with(tmp_path, "exit 0")
    path = Path(host.environment["COLDSTART_POOL_REFILL_FILE"])
    good = path.read_text()
    path.write_text("[[offer]]\n")
    taken = host.pool("take", "job-1")
    assert taken.status == 0
    assert "the order waits for `coldstart pool refill`" in taken.stderr
    path.write_text(good)
    result = host.pool("refill")
    assert (result.status, host.status()["refills"][0]["state"]) == (0, "obtained")


def test_a_refusal_has_its_document_too(host: Host) -> None:
    result = host.pool("take", "job-1", "--gpus", "99", "--json")
    assert result.status == 3
    assert json.loads(result.stdout)["gpus"] == []


def test_a_holder_without_a_name_is_refused(host: Host) -> None:
    assert host.pool("take", "").status == 2
