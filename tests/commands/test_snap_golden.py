"""`--golden`: a restored server that answers otherwise is ended, and started cold unless that is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.containers.new_bundle import Mount
from coldstart_snapshot.processes.tree import end_tree, is_alive
from conftest import Coldstart, Result, wait_until
from replicas import Replica
from small_root import answers
from snapshot.servers import Lab, ask, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.toml"
    path.write_text('[[golden]]\npath = "/health"\n[[golden]]\npath = "/file"\n')
    return path


def _stages(result: Result) -> list[str]:
    return [stage["name"] for stage in json.loads(result.stdout)["stages"]]


def _capture(coldstart: Coldstart, pid: int, port: int, golden: Path) -> None:
    created = coldstart(
        "snap",
        "create",
        "web",
        "--pid",
        str(pid),
        "--ready-url",
        url(port),
        "--golden",
        golden,
        "--stop",
        "--json",
    )
    assert created.status == 0, created.stderr
    assert json.loads(created.stdout)["golden_requests"] == 2
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the original to end")


def test_a_plain_process_that_answers_as_before_is_restored(
    coldstart: Coldstart, lab: Lab, golden: Path
) -> None:
    pid, _, _ = lab.start_process(port := free_port())
    ask(port)
    _capture(coldstart, pid, port, golden)
    result = coldstart("snap", "restore", "web", "--detach", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "restore"
    assert _stages(result) == ["verify", "restore", "ready", "golden"]
    assert ask(port) == "2"


def test_a_plain_process_that_answers_otherwise_is_ended_and_started_cold(
    coldstart: Coldstart, lab: Lab, golden: Path
) -> None:
    port = free_port()
    pid, _, folder = lab.start_process(port)
    ask(port)
    _capture(coldstart, pid, port, golden)
    (folder / "count").write_text("other weights")
    refused = coldstart("snap", "restore", "web", "--detach", "--no-fallback")
    assert refused.status == 65
    assert f"GET http://127.0.0.1:{port}/file is answered differently than at the capture" in refused.stderr
    assert not is_alive(pid)
    assert not answers(port)
    result = coldstart("snap", "restore", "web", "--detach", "--json")
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    lab.pids.append(document["pid"])
    assert "cold start, because the restore failed: golden request GET" in result.stderr
    assert (document["method"], document["variant"]) == ("cold", None)
    assert _stages(result) == ["verify", "restore", "ready", "golden", "start", "ready"]
    assert os.getsid(document["pid"]) == document["pid"]
    assert ask(port) == "1"  # it knows nothing of the earlier requests
    assert Path(f"/proc/{document['pid']}/cwd").readlink() == Path.cwd()


def test_a_server_that_still_runs_is_not_started_a_second_time(
    coldstart: Coldstart, lab: Lab, golden: Path
) -> None:
    pid, _, _ = lab.start_process(port := free_port())
    ask(port)
    created = coldstart(
        "snap", "create", "web", "--pid", str(pid), "--ready-url", url(port), "--golden", golden
    )
    assert created.status == 0, created.stderr
    result = coldstart("snap", "restore", "web", "--detach")
    assert result.status == 75
    assert f"process number that the snapshot needs is taken: {pid}" in result.stderr
    assert ask(port) == "2"


def test_a_cold_start_takes_secrets_from_the_environment_of_the_caller(
    coldstart: Coldstart, lab: Lab, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    port = free_port()
    pid, _, folder = lab.start_process(port)
    monkeypatch.delenv("HF_TOKEN")
    ask(port)
    _capture(coldstart, pid, port, golden)
    (manifest,) = (lab.config.state_folder / "snapshots" / "web").glob("*/manifest.toml")
    assert "hf_secret" not in manifest.read_text()
    (folder / "count").write_text("other weights")
    refused = coldstart("snap", "restore", "web", "--detach")
    assert refused.status == 69
    assert "its environment held secrets that are not kept: HF_TOKEN" in refused.stderr
    assert not answers(port)
    result = coldstart("snap", "restore", "web", "--detach", "--json", environment={"HF_TOKEN": "hf_new"})
    assert result.status == 0, result.stderr
    started = json.loads(result.stdout)["pid"]
    lab.pids.append(started)
    assert b"HF_TOKEN=hf_new\0" in Path(f"/proc/{started}/environ").read_bytes()


def test_a_container_that_answers_otherwise_is_killed_and_started_cold(
    coldstart: Coldstart, lab: Lab, golden: Path, tmp_path: Path
) -> None:
    port = free_port()
    served = tmp_path / "served"
    served.mkdir()
    container, _, _ = lab.start("web", port, mounts=(Mount(served, "/srv", read_only=False),))
    ask(port)
    created = coldstart(
        "snap",
        "create",
        "web",
        "--container",
        container.id,
        "--ready-url",
        url(port),
        "--golden",
        golden,
        "--stop",
    )
    assert created.status == 0, created.stderr
    copy = lab.id("copy")
    result = coldstart("snap", "restore", "web", "--id", copy, "--detach", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "restore"
    assert "golden" in _stages(result)
    assert coldstart("snap", "restore", "web", "--id", copy, "--stop").status == 0
    (served / "count").write_text("other weights")
    refused = coldstart("snap", "restore", "web", "--id", copy, "--detach", "--no-fallback")
    assert refused.status == 65
    assert "answered differently than at the capture" in refused.stderr
    assert lab.processes_in(copy) == []
    result = coldstart("snap", "restore", "web", "--id", copy, "--detach", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "cold"
    assert ask(port) == "1"
    assert coldstart("snap", "restore", "web", "--id", copy, "--stop").status == 0


def test_a_specification_has_golden_requests_that_its_snapshot_must_have_answered(replica: Replica) -> None:
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    assert replica.stop().status == 0
    with replica.spec.open("a") as stream:
        stream.write('\n[golden]\npath = "/health"\n')
    result = replica.launch("--detach", "--snapshot-when-ready", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "cold"
    assert "it has no recorded answers to these golden requests" in result.stderr
    assert replica.stop().status == 0
    result = replica.launch("--detach", "--json")
    assert (json.loads(result.stdout)["method"], result.status) == ("restore", 0), result.stderr
    assert "golden" in _stages(result)
    assert replica.stop().status == 0


def test_a_golden_request_that_cannot_be_read_is_refused_before_anything_is_touched(
    coldstart: Coldstart, lab: Lab, tmp_path: Path
) -> None:
    pid, _, _ = lab.start_process(port := free_port())
    path = tmp_path / "golden.toml"
    path.write_text('path = "/"\nexpct = "body"\n')
    create = ["snap", "create", "web", "--pid", str(pid), "--ready-url", url(port), "--golden"]
    refused = coldstart(*create, path)
    assert (refused.status, refused.stderr) == (
        65,
        f"coldstart: error: {path}: unknown key: expct\nhint: did you mean `expect`?\n",
    )
    assert coldstart(*create, tmp_path / "absent.toml").status == 66
    path.write_text('path = "/count"\n')
    refused = coldstart(*create, path)
    assert refused.status == 65
    assert "is not answered the same way twice" in refused.stderr
    assert "hint: record what stays the same: `json_values" in refused.stderr
    end_tree(pid)
