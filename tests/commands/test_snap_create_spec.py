"""`coldstart snap create --spec`: a replica started for its snapshot, held to a CPU level or not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.config import load
from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import level_flags, reaches
from coldstart_snapshot.cpu.cpuid_cap import can_mask
from replicas import Replica
from small_root import answers, ask
from snapshot.cpus import NEHALEM, cpuinfo
from snapshot.made import make_variant
from snapshot.servers import require_cpuid_faults, require_engine


@pytest.fixture(autouse=True)
def _engine() -> None:
    require_engine()


def _create(replica: Replica, *options: str, status: int = 0) -> dict[str, Any]:
    result = replica.coldstart(
        "snap", "create", replica.name, "--spec", replica.spec, *options, "--json", timeout_seconds=180
    )
    assert result.status == status, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.snap.create", 1)
    return document


def _require_level(level: str) -> None:
    if not reaches(level, read_cpu_facts().level):
        pytest.skip(f"this CPU does not reach {level}")


def test_a_replica_held_to_a_level_is_proven_captured_ended_and_restored(replica: Replica) -> None:
    _require_level("x86-64-v3")
    require_cpuid_faults()
    created = _create(replica, "--cpu-level", "x86-64-v3")
    assert created["cpu_caps"]["problems"] == []
    assert created["variant"].startswith("x86-64-v3.")
    assert created["cpu_caps"]["mechanism"] == "cpuid"
    assert set(created["required_flags"]) <= level_flags("x86-64-v3")
    assert {"avx2", "fma"} <= set(created["required_flags"])
    assert created["stopped"]
    assert not answers(replica.port)

    restored = replica.launch("--detach", "--no-fallback", "--json")
    assert restored.status == 0, restored.stderr
    assert json.loads(restored.stdout)["variant"] == created["variant"]
    assert ask(replica.port) == "1"
    assert "GLIBC_TUNABLES" in (_environment(json.loads(restored.stdout)["pid"]))
    assert replica.stop().status == 0


def _environment(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", encoding="utf-8") as stream:
        return dict(entry.split("=", 1) for entry in stream.read().split("\0") if "=" in entry)


def test_without_a_level_the_variant_is_for_all_of_this_cpu(replica: Replica) -> None:
    created = _create(replica)
    assert created["cpu_caps"] is None
    assert created["variant"].startswith(read_cpu_facts().level)
    assert not answers(replica.port)


def test_the_replica_stays_when_told_and_its_level_is_let_go(replica: Replica) -> None:
    _require_level("x86-64-v2")
    # where CPUID cannot be answered, Debian's Python may have asked past every cap
    status = 0 if can_mask(read_cpu_facts()) else 3
    created = _create(replica, "--cpu-level", "x86-64-v2", "--leave-running", status=status)
    assert not created["stopped"]
    assert ask(replica.port) == "1"
    assert replica.stop().status == 0


def test_an_environment_that_allows_more_is_refused_before_anything_starts(replica: Replica) -> None:
    text = replica.spec.read_text().replace(
        "[environment]\n", '[environment]\nATEN_CPU_CAPABILITY = "avx512"\n'
    )
    replica.spec.write_text(text)
    result = replica.coldstart("snap", "create", "x", "--spec", replica.spec, "--cpu-level", "x86-64-v3")
    assert result.status == 65
    assert "environment allows more than x86-64-v3: ATEN_CPU_CAPABILITY=avx512" in result.stderr
    assert not (replica.run_folder / "replicas" / replica.name).exists()


def test_what_cannot_be_held_to_a_level_is_refused(replica: Replica) -> None:
    running = replica.coldstart("snap", "create", "x", "--pid", str(os.getpid()), "--cpu-level", "x86-64-v3")
    assert (running.status, "cannot be held to x86-64-v3 any more" in running.stderr) == (2, True)
    unknown = replica.coldstart("snap", "create", "x", "--spec", replica.spec, "--cpu-level", "x86-64-v5")
    assert (unknown.status, "unknown CPU level: x86-64-v5" in unknown.stderr) == (2, True)
    both = replica.coldstart("snap", "create", "x", "--spec", replica.spec, "--pid", "1")
    assert both.status == 2


@pytest.mark.parametrize("options", [(), ("--leave-running",)], ids=["ended", "left running"])
def test_a_replica_that_drops_its_caps_is_captured_for_all_of_this_cpu_with_the_reason(
    replica: Replica, options: tuple[str, ...]
) -> None:
    _require_level("x86-64-v3")
    program = (
        "import os, sys; del os.environ['GLIBC_TUNABLES']\n"
        "os.execv('/usr/bin/python3', ['python3', '/srv/server.py'])"
    )
    replica.write(command=json.dumps(["/usr/bin/python3", "-c", program]))
    result = replica.coldstart(
        "snap",
        "create",
        replica.name,
        "--spec",
        replica.spec,
        "--cpu-level",
        "x86-64-v3",
        *options,
        timeout_seconds=180,
    )
    assert result.status == 3, result.stderr
    assert answers(replica.port) == bool(options)
    assert ".unproven." in result.stdout
    assert "was started without GLIBC_TUNABLES" in result.stderr
    assert "not proven to keep to x86-64-v3" in result.stderr
    shown = json.loads(replica.coldstart("snap", "show", replica.name, "--json").stdout)
    assert set(read_cpu_facts().flags) >= set(shown["cpu"]["required_flags"])
    assert not set(shown["cpu"]["required_flags"]) <= level_flags("x86-64-v3")
    if options:
        assert replica.stop().status == 0


def test_a_restore_says_which_variant_it_takes_and_a_host_without_one_what_to_build(
    replica: Replica, tmp_path: Path
) -> None:
    created = _create(replica)
    restored = replica.coldstart("snap", "restore", replica.name, "--dry-run")
    assert f"variant {created['variant']}: {read_cpu_facts().level} as its CPU had it" in restored.stderr
    facts = tmp_path / "old"
    facts.write_text(cpuinfo(NEHALEM))
    fleet = replica.coldstart("snap", "list", "--host-facts", facts)
    assert (fleet.status, "--cpu-level x86-64-v2" in fleet.stdout) == (3, True)


def test_a_launch_where_no_variant_fits_starts_cold_and_says_what_to_build(replica: Replica) -> None:
    here = read_cpu_facts()
    make_variant(load().state_folder, replica.name, replace(here, flags=(*here.flags, "zz_future")))
    result = replica.launch("--detach")
    assert result.status == 0, result.stderr
    assert "this CPU lacks zz_future; coldstart snap create" in result.stderr
    assert ask(replica.port) == "1"
    assert replica.stop().status == 0
