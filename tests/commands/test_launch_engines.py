"""Replicas of engines: asleep in their snapshots, woken by a restore, their weights read beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from conftest import REPOSITORY, Coldstart
from replicas import Replica
from small_root import ask


def _as_engine(replica: Replica, folder: Path, engine: str) -> None:
    weights = folder / "models"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(bytes(8 << 20))
    text = replica.spec.read_text().replace(
        'command = ["/usr/bin/python3", "/srv/server.py"]\n',
        f'command = ["/usr/bin/python3", "/tools/engine_server.py", "{replica.port}", "vllm", "/srv"]\n'
        'stream = ["/models"]\n',
    )
    for source, destination in ((REPOSITORY / "tests/stand_ins", "/tools"), (weights, "/models")):
        text += f'[[mounts]]\nsource = "{source}"\ndestination = "{destination}"\n'
    replica.spec.write_text(text + engine)


def _generate(replica: Replica) -> dict[str, object]:
    answer: dict[str, object] = json.loads(ask(replica.port, f"/generate?prompt={quote('hello')}"))
    return answer


def test_a_restore_wakes_the_engine_and_weights_are_read_meanwhile(replica: Replica, tmp_path: Path) -> None:
    _as_engine(replica, tmp_path, '[engine]\nkind = "vllm"\nweights = "drop"\n')
    result = replica.launch("--detach", "--json", "--snapshot-when-ready")
    assert result.status == 0, result.stderr
    expected = _generate(replica)
    assert replica.stop().status == 0
    for command in (
        ("launch", replica.spec, "--no-fallback", "--detach", "--json"),
        ("snap", "restore", replica.name, "--no-fallback", "--detach", "--json"),
    ):
        result = replica.coldstart(*command)
        assert result.status == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["method"] == "restore"
        stages = {stage["name"]: stage for stage in document["stages"]}
        assert {"restore", "wake", "weights", "ready"} <= set(stages)
        end = stages["restore"]["start_seconds"] + stages["restore"]["duration_seconds"]
        assert stages["weights"]["start_seconds"] < end
        assert _generate(replica) == expected
        assert replica.stop().status == 0


def test_an_engine_of_a_snapshot_is_shown(replica: Replica, tmp_path: Path) -> None:
    _as_engine(replica, tmp_path, '[engine]\nkind = "vllm"\n')
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    shown = replica.coldstart("snap", "show", replica.name)
    assert "vllm" in shown.stdout
    assert "/models" in shown.stdout
    assert replica.stop().status == 0


def test_an_engine_that_the_specification_describes_wrongly_is_refused_by_file_and_key(
    replica: Replica, tmp_path: Path
) -> None:
    text = replica.spec.read_text()
    for engine, what in (
        ('[engine]\nkind = "tritonserver"\n', "engine: no such engine: tritonserver"),
        ('[engine]\nkind = "vllm"\nlevel = 2\n', "unknown key: engine.level"),
        ('[engine]\nkind = "command"\n', "engine: engine command has nothing to run"),
        ('[engine]\nkind = "vllm"\nweights = "burn"\n', "engine: weights cannot be 'burn'"),
        ('[engine]\nkind = "vllm"\ntimeout_seconds = "x"\n', "engine: "),
    ):
        replica.spec.write_text(text + engine)
        result = replica.launch("--dry-run")
        assert result.status == 65, result.stderr
        assert f"{replica.spec}: {what}" in result.stderr


@pytest.mark.parametrize("trouble", ["fail-sleep", "no criu"])
def test_a_replica_that_cannot_be_captured_goes_on_serving_and_says_so(
    replica: Replica, tmp_path: Path, trouble: str
) -> None:
    _as_engine(replica, tmp_path, '[engine]\nkind = "vllm"\ntimeout_seconds = 5\n')
    replica.spec.write_text(replica.spec.read_text().replace('"/srv"]', f'"/srv", "{trouble}"]'))
    if trouble == "no criu":
        replica.coldstart.environment["COLDSTART_PROGRAMS_CRIU"] = "/bin/false"
    result = replica.launch("--detach", "--json", "--snapshot-when-ready")
    assert result.status == 0, result.stderr
    assert "the replica serves, but it was not captured" in result.stderr
    assert json.loads(result.stdout)["snapshot"] is None
    assert ask(replica.port, "/health") == "ok"
    assert replica.stop().status == 0
    # where the snapshot is all that is wanted, it is an error
    created = replica.coldstart("snap", "create", "wanted", "--spec", replica.spec)
    assert created.status not in {0, 70}
    assert "serves, but" not in created.stderr


def _as_worker(replica: Replica, folder: Path) -> Path:
    """A worker that listens only when it was told to go on, its control folder on the host."""
    control = folder / "control"
    control.mkdir()
    text = replica.spec.read_text().replace(
        'command = ["/usr/bin/python3", "/srv/server.py"]\n',
        f'command = ["/usr/bin/python3", "/examples/worker.py", "{replica.port}"]\n',
    )
    examples = folder / "examples"
    examples.mkdir()
    shutil.copy(REPOSITORY / "examples/engines/restorable.py", examples)
    (examples / "worker.py").write_text(_WORKER)
    for source, destination, read_only in ((examples, "/examples", "true"), (control, "/control", "false")):
        text += f'[[mounts]]\nsource = "{source}"\ndestination = "{destination}"\nread_only = {read_only}\n'
    text += '[engine]\nkind = "sentinel"\ncontrol_folder = "/control"\nframework = "vllm"\n'
    text = text.replace("[environment]\n", '[environment]\nSNAPSHOT_CONTROL_DIR = "/control"\n')
    replica.spec.write_text(text + "timeout_seconds = 20\n")
    return control


_WORKER = """
import http.server, sys
import restorable
where = restorable.wait("vllm")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(where.encode())
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_worker_told_by_files_is_captured_while_it_is_paused_and_comes_back(
    replica: Replica, tmp_path: Path
) -> None:
    _as_worker(replica, tmp_path)
    result = replica.launch("--detach", "--json", "--snapshot-when-ready")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["snapshot"] is not None
    assert ask(replica.port) == "source"
    assert replica.stop().status == 0
    result = replica.launch("--detach", "--json", "--no-fallback")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "restore"
    assert ask(replica.port) == "copy"
    assert replica.stop().status == 0


def test_a_worker_told_by_files_goes_on_where_nobody_captures_it(replica: Replica, tmp_path: Path) -> None:
    control = _as_worker(replica, tmp_path)
    # of an earlier one
    for name in ("ready-for-snapshot", "snapshot-complete", "restore-complete", "vllm-restore-ready"):
        (control / name).write_text("stale")
    result = replica.launch("--detach", "--json")
    assert result.status == 0, result.stderr
    assert (control / "restore-complete").read_text() == "source\n"
    assert ask(replica.port) == "source"
    assert replica.stop().status == 0


def test_a_worker_told_by_files_is_captured_by_a_start_for_that_alone(
    replica: Replica, tmp_path: Path
) -> None:
    _as_worker(replica, tmp_path)
    created = replica.coldstart("snap", "create", "worker", "--spec", replica.spec)
    assert created.status == 0, created.stderr


def test_a_worker_told_by_files_goes_on_when_it_cannot_be_captured(replica: Replica, tmp_path: Path) -> None:
    _as_worker(replica, tmp_path)
    replica.coldstart.environment["COLDSTART_PROGRAMS_CRIU"] = "/bin/false"
    result = replica.launch("--detach", "--json", "--snapshot-when-ready")
    assert result.status == 0, result.stderr
    assert "the worker goes on, but it was not captured" in result.stderr
    assert json.loads(result.stdout)["snapshot"] is None
    assert ask(replica.port) == "source"
    assert replica.stop().status == 0


def test_a_worker_told_by_files_that_ends_before_it_is_paused_is_quoted(
    replica: Replica, tmp_path: Path
) -> None:
    _as_worker(replica, tmp_path)
    (tmp_path / "examples/worker.py").write_text("import sys; sys.exit('no model here')")
    result = replica.launch("--detach")
    assert result.status not in {0, 70}
    assert "the worker ended before it says that it is ready for a snapshot" in result.stderr
    assert "no model here" in result.stderr


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (("--engine", "bogus"), "no such engine: bogus", "one of vllm, sglang"),
        (("--engine", "sentinel", "--engine-timeout", "-1"), "engine timeout is not a positive", ""),
        (("--engine", "vllm"), "engine vllm needs an address", "ready URL"),
        (("--engine", "command"), "nothing to run", "needs a specification"),
        (("--weights", "drop"), "--weights says nothing without --engine", "--engine KIND"),
        (("--engine-timeout", "5"), "--engine-timeout says nothing without --engine", "--engine KIND"),
        (("--spec", "x.toml", "--engine", "vllm"), "stands in it: --engine", "[engine]"),
    ],
)
def test_engine_options_that_cannot_work_are_refused_with_the_hint_that_helps(
    coldstart: Coldstart, options: tuple[str, ...], what: str, hint: str
) -> None:
    server = () if "--spec" in options else ("--pid", "1")
    result = coldstart("snap", "create", "x", *server, *options)
    assert result.status == 2, result.stderr
    assert what in result.stderr
    assert hint in result.stderr
    assert ("needs a specification" in result.stderr) == ("command" in options)
