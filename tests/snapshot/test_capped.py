"""Captures of containers that were started for a CPU level, with CPUID answered and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import CannotCreateError, ColdstartError, UnavailableError
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_host.cpu_levels import level_flags, reaches
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.container import RunningContainer, run_container
from coldstart_snapshot.cpu.capped import CappedStart, check_reached
from coldstart_snapshot.cpu.cpuid_cap import can_mask
from conftest import wait_until
from snapshot.cpus import GRAVITON, HASWELL
from snapshot.servers import Lab, ask, free_port, laboratory, require_cpuid_faults, url

LEVEL = "x86-64-v3"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if not reaches(LEVEL, read_cpu_facts().level):
        pytest.skip(f"this CPU does not reach {LEVEL}")
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def capped() -> Iterator[CappedStart]:
    start = CappedStart(LEVEL, read_cpu_facts())
    yield start
    start.close()


def _start(lab: Lab, capped: CappedStart, port: int, *extras: str) -> RunningContainer:
    overlay = lab.overlay("web").mount()
    (overlay.root / "srv").mkdir(exist_ok=True)
    spec = capped.apply(lab.spec("web", overlay, port, *extras))
    container = run_container(spec, lab.config, before_start=capped.before_start)
    wait_ready(url(port), 60, pid=container.pid)
    return container


def _tracer(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))


def test_a_tree_with_threads_and_children_is_proven_and_goes_on_afterwards(
    lab: Lab, capped: CappedStart
) -> None:
    require_cpuid_faults()
    container = _start(lab, capped, port := free_port(), "threads", "child", "pair")
    assert _tracer(container.pid)
    request = CaptureRequest("web", container_id=container.id, ready_url=url(port), capped=capped)
    manifest = create_snapshot(request, lab.config).manifest
    assert manifest.caps is not None
    assert (manifest.caps.processes, manifest.caps.problems) == (2, ())
    assert set(manifest.required_flags) <= level_flags(LEVEL)
    assert not _tracer(container.pid)
    assert ask(port, "/pair") == "through the pair"
    assert ask(port) == "1"


def test_a_capture_that_fails_lets_the_server_go(
    lab: Lab, capped: CappedStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = _start(lab, capped, port := free_port())

    def fail(*_: object) -> None:
        assert bool(_tracer(container.pid)) == can_mask(read_cpu_facts())
        raise CannotCreateError("the disk filled up meanwhile")

    monkeypatch.setattr("coldstart_snapshot.capturing.dump.Dump._refuse_small_disk", fail)
    request = CaptureRequest("web", container_id=container.id, ready_url=url(port), capped=capped)
    with pytest.raises(ColdstartError, match=r"filled up meanwhile.*runs and answers"):
        create_snapshot(request, lab.config)
    assert not _tracer(container.pid)
    assert ask(port) == "1"


def test_where_cpuid_cannot_fault_the_environment_is_looked_at_and_what_asks_past_it_named(lab: Lab) -> None:
    here = read_cpu_facts()
    without = replace(here, flags=tuple(flag for flag in here.flags if flag != "cpuid_fault"))
    capped = CappedStart(LEVEL, without)
    container = _start(lab, capped, port := free_port())
    assert not _tracer(container.pid)
    request = CaptureRequest("web", container_id=container.id, ready_url=url(port), capped=capped)
    manifest = create_snapshot(request, lab.config).manifest
    assert manifest.caps is not None
    assert manifest.caps.mechanism == "environment"
    # Debian's Python has the bytes of CPUID in it: whether it heeds a cap nobody knows
    assert [problem for problem in manifest.caps.problems if "past every cap" not in problem] == []
    assert (manifest.variant.split(".")[2] == "unproven") == bool(manifest.caps.problems)
    assert ask(port) == "1"


def test_a_start_that_is_given_up_takes_its_server_with_it(lab: Lab, capped: CappedStart) -> None:
    require_cpuid_faults()
    container = _start(lab, capped, free_port(), "child")
    capped.close()
    wait_until(lambda: not lab.processes_in(container.id), "the server to end")


@pytest.mark.parametrize(("level", "host"), [("x86-64-v4", HASWELL), ("x86-64-v2", GRAVITON)])
def test_a_level_that_the_cpu_does_not_have_is_refused(level: str, host: CpuFacts) -> None:
    with pytest.raises(UnavailableError, match=f"cannot be held to {level}: it reaches {host.level}"):
        check_reached(level, host)
