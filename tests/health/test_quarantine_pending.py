"""A state folder that takes nothing: a note in the run folder keeps who is bad out until it is recorded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_health.audit import Person
from coldstart_health.clearing import clear_all, clear_gpu
from coldstart_health.quarantine import load_quarantine
from coldstart_health.quarantine_pending import pending_path
from coldstart_health.standing import standing
from coldstart_health.verdict import HealthReport, Verdict
from stand_ins.gpu_host import GpuHost, state_folder

BAD = "0 remap_failure 1"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


@contextmanager
def takes_nothing(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=60)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True, timeout=60)
        yield
    finally:
        subprocess.run(["umount", folder], check=True, timeout=60)


def reasons(report: HealthReport) -> dict[str, Verdict]:
    return {finding.reason: finding.verdict for finding in report.findings}


def test_a_gpu_found_bad_stays_bad_until_it_can_be_recorded_and_then_is(host: GpuHost) -> None:
    host.quick()
    with takes_nothing(state_folder()):
        first = host.quick(BAD)
        assert first.overall is Verdict.REPLACE
        assert reasons(first)["quarantine_not_recorded"] is Verdict.DEGRADED
        assert host.quick().overall is Verdict.REPLACE, "a look that finds nothing releases nobody"
        assert host.quick().overall is Verdict.REPLACE
        assert standing(configuration.load()).blocking
        assert not load_quarantine(state_folder()).records
    assert host.quick().overall is Verdict.REPLACE
    assert load_quarantine(state_folder()).records[0].blocks
    assert not pending_path(configuration.load()).exists()
    assert host.quick().overall is Verdict.REPLACE


def test_what_gets_worse_is_kept_too(host: GpuHost) -> None:
    host.quick("0 remap_pending 1")
    with takes_nothing(state_folder()):
        assert host.quick(BAD).overall is Verdict.REPLACE
        assert host.quick().overall is Verdict.REPLACE


def test_where_neither_folder_takes_it_nobody_may_serve(host: GpuHost) -> None:
    host.quick()
    with takes_nothing(state_folder()), takes_nothing(configuration.load().run_folder):
        report = host.quick(BAD)
    assert reasons(report)["quarantine_not_recorded"] is Verdict.UNKNOWN
    assert report.host_verdict is Verdict.UNKNOWN


def test_a_damaged_note_is_no_empty_one(host: GpuHost) -> None:
    path = pending_path(configuration.load())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    assert host.quick().overall is Verdict.UNKNOWN
    clear_all(configuration.load(), why="looked at it", by=Person(0, "root", None, None, 1))
    assert host.quick().overall is Verdict.OK


@pytest.mark.parametrize("everything", [True, False])
def test_what_waits_can_be_cleared(host: GpuHost, everything: bool) -> None:
    host.quick()
    with takes_nothing(state_folder()):
        host.quick(BAD)
    settings, by = configuration.load(), Person(0, "root", None, None, 1)
    if everything:
        clear_all(settings, why="exchanged", by=by)
    else:
        clear_gpu(settings, "0", why="exchanged", by=by)
    assert host.quick().overall is Verdict.OK
