"""What each host of a fleet would restore, by the files with its CPU facts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_host.cpu import CpuFacts
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.kept.inventory import StoredVariant
from coldstart_snapshot.restoring.fleet import answers_for, read_hosts
from snapshot.cpus import CASCADE_LAKE, GUEST, HASWELL, NEHALEM, ROME, SAPPHIRE_RAPIDS, cpuinfo
from snapshot.made import make_variant

V3 = CapProof("x86-64-v3", "cpuid", 1)


def _doctor(folder: Path, name: str, cpu: CpuFacts) -> Path:
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps({"schema": "coldstart.doctor", "version": 1, "host": name, "cpu": cpu.to_dict()})
    )
    return path


def test_documents_of_doctor_texts_of_cpuinfo_and_folders_of_both_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    _doctor(folder, "amx", SAPPHIRE_RAPIDS)
    (folder / "old.txt").write_text(cpuinfo(HASWELL))
    hosts = read_hosts([folder, _doctor(tmp_path, "amd", ROME)])
    assert [(host.name, host.derived) for host in hosts] == [("amx", False), ("old", True), ("amd", False)]
    assert hosts[0].cpu == SAPPHIRE_RAPIDS


@pytest.mark.parametrize("facts", [HASWELL, GUEST, ROME, NEHALEM])
def test_xsave_sizes_that_cpuinfo_does_not_tell_follow_from_its_flags(
    tmp_path: Path, facts: CpuFacts
) -> None:
    path = tmp_path / "host"
    path.write_text(cpuinfo(facts))
    assert read_hosts([path])[0].cpu == facts


def test_each_host_gets_its_variant_or_what_to_build(tmp_path: Path) -> None:
    stored = [
        StoredVariant(*make_variant(tmp_path, "web", GUEST)),
        StoredVariant(*make_variant(tmp_path, "web", GUEST, V3)),
    ]
    files = [
        _doctor(tmp_path, name, cpu)
        for name, cpu in [("a", GUEST), ("b", CASCADE_LAKE), ("c", ROME), ("d", NEHALEM)]
    ]
    answers = answers_for(read_hosts(files), stored)
    native, capped = (variant.manifest.variant for variant in stored)
    assert [answer.variant for answer in answers] == [native, capped, capped, None]
    lacking = answers[-1]
    assert "avx2" in lacking.missing_flags
    assert lacking.build == "coldstart snap create web --spec SPEC --cpu-level x86-64-v2"
    assert answers[2].warnings == ("it was captured on GenuineIntel, this CPU is from AuthenticAMD",)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "what is this",
        "{",
        "[1]",
        '{"schema": "coldstart.launch", "cpu": {}}',
        '{"schema": "coldstart.doctor"}',
        '{"schema": "coldstart.doctor", "cpu": {"flags": 3}}',
        '{"schema": "coldstart.doctor", "cpu": []}',
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "host"
    path.write_text(content)
    with pytest.raises(DataError, match=str(path)):
        read_hosts([path])


def test_what_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read_hosts([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no files"):
        read_hosts([tmp_path / "empty"])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"file with host facts cannot be used: .*: not a regular file"):
        read_hosts([tmp_path / "pipe"])
