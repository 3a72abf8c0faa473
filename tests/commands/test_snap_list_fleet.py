"""`coldstart snap list --host-facts`: which hosts of a fleet have a variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_snapshot.cpu.caps import CapProof
from conftest import Coldstart
from snapshot.cpus import GUEST, HASWELL, NEHALEM, cpuinfo
from snapshot.made import make_variant


@pytest.fixture
def state(tmp_path: Path, isolated_environment: None) -> Path:
    return tmp_path / "coldstart" / "state"


def test_a_host_without_a_variant_is_an_answer_of_no_with_what_to_build(
    coldstart: Coldstart, state: Path, tmp_path: Path
) -> None:
    _, manifest = make_variant(state, "web", GUEST, CapProof("x86-64-v3", "cpuid", 1))
    (tmp_path / "new").write_text(cpuinfo(HASWELL))
    (tmp_path / "old").write_text(cpuinfo(NEHALEM))
    served = coldstart("snap", "list", "web", "--host-facts", tmp_path / "new")
    assert (served.status, manifest.variant in served.stdout) == (0, True), served.stderr
    result = coldstart(
        "snap", "list", "--host-facts", tmp_path / "new", "--host-facts", tmp_path / "old", "--json"
    )
    assert result.status == 3
    document = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.snap.list.fleet", 1)
    new, old = document["hosts"]
    assert (new["host"], new["variant"], new["missing_flags"]) == ("new", manifest.variant, [])
    assert (old["host"], old["variant"], "avx2" in old["missing_flags"]) == ("old", None, True)
    assert old["build"] == "coldstart snap create web --spec SPEC --cpu-level x86-64-v2"
    assert "hosts without a variant of every snapshot: old" in result.stderr


def test_what_doctor_writes_here_is_read(coldstart: Coldstart, state: Path, tmp_path: Path) -> None:
    _, manifest = make_variant(state, "web")
    facts = tmp_path / "here.json"
    facts.write_text(coldstart("doctor", "--json").stdout)
    result = coldstart("snap", "list", "--host-facts", facts, "--json")
    assert result.status == 0, result.stderr
    (host,) = json.loads(result.stdout)["hosts"]
    assert host["variant"] == manifest.variant
    assert not host["xsave_derived"]


def test_a_text_of_cpuinfo_does_not_tell_of_xsave_sizes_and_no_variant_is_ruled_out_by_them(
    coldstart: Coldstart, state: Path, tmp_path: Path
) -> None:
    # a guest whose largest area is larger than its flags would have it
    odd = replace(GUEST, xsave_max_bytes=11008)
    _, native = make_variant(state, "web", odd)
    (tmp_path / "here").write_text(cpuinfo(odd))
    result = coldstart("snap", "list", "--host-facts", tmp_path / "here", "--json")
    (answer,) = json.loads(result.stdout)["hosts"]
    assert (result.status, answer["variant"], answer["build"], answer["unsure"]) == (3, None, None, True)
    assert f"cannot tell from /proc/cpuinfo whether {native.variant} fits" in answer["reason"]
    assert "coldstart doctor --json" in result.stderr
    # flags that are missing decide all the same, and a variant of a level needs no sizes
    (tmp_path / "old").write_text(cpuinfo(NEHALEM))
    old = coldstart("snap", "list", "--host-facts", tmp_path / "old")
    assert (old.status, "this CPU lacks" in old.stdout, "XSAVE" in old.stdout) == (3, True, False)
    _, capped = make_variant(state, "web", GUEST, CapProof("x86-64-v3", "cpuid", 1))
    sure = coldstart("snap", "list", "--host-facts", tmp_path / "here", "--json")
    (answer,) = json.loads(sure.stdout)["hosts"]
    assert (sure.status, answer["variant"]) == (0, capped.variant)
    assert any(f"whether {native.variant} fits too" in warning for warning in answer["warnings"])


def test_without_snapshots_there_is_nothing_to_answer(
    coldstart: Coldstart, state: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").write_text(cpuinfo(HASWELL))
    result = coldstart("snap", "list", "--host-facts", tmp_path / "new")
    assert (result.status, "there are no snapshots" in result.stderr) == (66, True)
