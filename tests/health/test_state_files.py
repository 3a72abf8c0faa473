"""What stands where a state file should: FIFOs, devices, dead links; none holds up, none counts as absent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.errors import ColdstartError
from coldstart_health.audit import append_audit, audit_path
from coldstart_health.baseline import baseline_path
from coldstart_health.diagnosing import diagnosing_path
from coldstart_health.inventory import inventory_path, load_inventory
from coldstart_health.last_run import last_run_path
from coldstart_health.quarantine import QuarantineUnreadableError, load_quarantine, quarantine_path
from coldstart_health.quarantine_policy import Policy
from coldstart_health.replay import replay
from coldstart_health.samples import sample_path
from coldstart_health.standing import standing
from coldstart_health.verdict import Verdict
from stand_ins.gpu_host import GpuHost, state_folder


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


def no_file(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "dead link":
            path.symlink_to("nowhere")


def in_time(work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "still waiting for a file"
    if errors:
        raise errors[0]


def places() -> dict[str, Path]:
    state, run = state_folder(), configuration.load().run_folder
    return {
        "inventory": inventory_path(state),
        "baseline": baseline_path(state),
        "quarantine": quarantine_path(state),
        "sample": sample_path(run),
        "diagnosing": diagnosing_path(run),
        "kernel log": state / "health" / "kernel-log.json",
        "last run": last_run_path(state, "quick"),
        "audit": audit_path(state),
    }


@pytest.mark.parametrize("kind", ["fifo", "device", "dead link"])
@pytest.mark.parametrize(
    "name", ["inventory", "baseline", "quarantine", "sample", "diagnosing", "kernel log", "last run", "audit"]
)
def test_no_file_of_ours_holds_up_a_check(host: GpuHost, name: str, kind: str) -> None:
    place = places()[name]
    no_file(place, kind)

    def look() -> None:
        report = host.quick()
        if name in {"inventory", "quarantine"}:
            assert report.overall is Verdict.UNKNOWN
        if name == "audit":
            append_audit(state_folder(), [])
        try:
            standing(configuration.load())
        except QuarantineUnreadableError:
            assert name == "quarantine"

    in_time(look)


@pytest.mark.parametrize("above", ["health", "state"])
def test_a_dead_link_above_the_quarantine_is_not_an_empty_quarantine(tmp_path: Path, above: str) -> None:
    state = tmp_path / "state"
    link = state if above == "state" else state / "health"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "unmounted")
    with pytest.raises(QuarantineUnreadableError, match=f"a link to nothing: {link}"):
        load_quarantine(state)
    with pytest.raises(ColdstartError, match=f"a link to nothing: {link}"):
        load_inventory(inventory_path(state))


def test_a_link_to_a_file_is_read(host: GpuHost) -> None:
    host.quick("0 remap_failure 1")
    place = quarantine_path(state_folder())
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")
    assert load_quarantine(state_folder()).records


def test_an_audit_log_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    no_file(audit_path(tmp_path), "fifo")
    with pytest.raises(ColdstartError, match="not a regular file"):
        in_time(lambda: append_audit(tmp_path, [{"action": "entered"}]))


def test_a_collection_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ColdstartError, match="not a regular file"):
        in_time(lambda: replay(configuration.load(), tmp_path / "fifo") and None)


def test_a_person_s_inventory_need_say_no_more_than_the_uuids(tmp_path: Path) -> None:
    place = tmp_path / "inventory.json"
    place.write_text('{"schema": "coldstart.health.inventory", "version": 1, "gpus": [{"uuid": "GPU-1"}]}')
    known = load_inventory(place)
    assert known is not None
    assert [gpu.uuid for gpu in known.gpus] == ["GPU-1"]


@pytest.mark.parametrize(
    "gpu", ["{}", '{"uuid": null}', '{"uuid": 1}', '{"uuid": "GPU-1", "nmae": "x"}', "1"]
)
def test_an_inventory_of_what_is_no_gpu_is_damaged(tmp_path: Path, gpu: str) -> None:
    place = tmp_path / "inventory.json"
    place.write_text(f'{{"schema": "coldstart.health.inventory", "version": 1, "gpus": [{gpu}]}}')
    with pytest.raises(ColdstartError, match="damaged"):
        load_inventory(place)


def test_a_rule_that_would_release_at_once_is_refused() -> None:
    with pytest.raises(ColdstartError, match=r"health.clean_runs must be at least 1: 0 \(command line\)"):
        Policy.of(configuration.load({"health.clean_runs": 0}))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    place = quarantine_path(tmp_path)
    place.parent.mkdir()
    with place.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(QuarantineUnreadableError, match="larger than"):
        load_quarantine(tmp_path)
