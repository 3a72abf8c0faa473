"""The examples for engines: specifications, units, the worker's file, and a node with containerd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from coldstart_launch.spec import load_spec
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.new_bundle import Mount
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.processes.tree import end_tree
from conftest import REPOSITORY, Coldstart, wait_until
from fs.conformance.references import Containerd
from image_builder import write_layout
from ports import free_port
from small_root import ask, can_run_containers, make_root
from snapshot.servers import Lab, laboratory, require_root, url

EXAMPLE = REPOSITORY / "examples" / "engines"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_specification_is_complete_but_for_the_folder_of_models(engine: str, tmp_path: Path) -> None:
    text = (EXAMPLE / f"{engine}.toml").read_text()
    assert '"/srv/models"' in text
    path = tmp_path / "spec.toml"
    path.write_text(text.replace('"/srv/models"', f'"{tmp_path}"'))
    spec = load_spec(path)
    assert spec.engine is not None
    assert (spec.engine.kind, spec.engine.weights, spec.gpus) == (engine, "park", 1)
    assert spec.ready.url == f"{spec.engine.url}/health"
    assert spec.stream == ("/models/model",)
    assert len(spec.golden) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_systemd_accepts_the_unit(engine: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (EXAMPLE / f"{engine}.service").read_text()
    assert f"/etc/coldstart/replicas/{engine}.toml" in text
    program = Path(sys.executable).parent / "coldstart"
    unit = tmp_path / f"{engine}.service"
    unit.write_text(text.replace("/usr/local/bin/coldstart", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if engine in line] == []
    assert done.returncode == 0, done.stderr


# draws a number after it was told to go on: in the source and in each copy another one
_WORKER = r"""
import http.server, json, random, sys
sys.path.insert(0, '/srv')
import restorable
random.seed(1)
connected = []
restorable.after_restore(lambda: connected.append('anew'))
where = restorable.wait('vllm')
answer = json.dumps({'where': where, 'number': random.random(), 'connected': connected}).encode()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(answer)
    def log_message(self, *arguments): pass
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.mark.parametrize("on_host", [False, True])
def test_a_worker_with_the_example_file_knows_copies_from_its_source_and_reseeds_them(
    lab: Lab, coldstart: Coldstart, on_host: bool
) -> None:
    (lab.tmp_path / "control").mkdir()
    port = free_port()
    overlay = lab.overlay("source").mount()
    folder = overlay.root / "srv"
    folder.mkdir(exist_ok=True)
    shutil.copy(EXAMPLE / "restorable.py", folder)
    (folder / "worker.py").write_text(_WORKER)
    spec = replace(
        lab.spec("source", overlay, port),
        arguments=("/usr/bin/python3", "/srv/worker.py", str(port)),
        environment={"PATH": "/usr/bin:/bin", "SNAPSHOT_CONTROL_DIR": "/srv/control"},
        mounts=(Mount(lab.tmp_path / "control", "/srv/control", read_only=False),) if on_host else (),
    )
    container = lab.run(spec)
    settings = EngineSettings("sentinel", framework="vllm", timeout_seconds=30.0)
    request = CaptureRequest(
        "worker", container_id=container.id, ready_url=url(port), engine=settings, stop=True
    )
    create_snapshot(request, lab.config)
    answers = []
    for turn in ("one", "two"):
        result = coldstart("snap", "restore", "worker", "--id", lab.id(turn), "--no-fallback", "--detach")
        assert result.status == 0, result.stderr
        answers.append(json.loads(ask(port)))
        assert coldstart("snap", "restore", "worker", "--id", lab.containers[-1], "--stop").status == 0
    assert [(answer["where"], answer["connected"]) for answer in answers] == [("copy", ["anew"])] * 2
    assert answers[0]["number"] != answers[1]["number"]


def test_a_plain_worker_comes_back_though_its_source_went_on_in_the_same_control_folder(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    require_root()
    port = free_port()
    control = tmp_path / "control"
    shutil.copy(EXAMPLE / "restorable.py", tmp_path)
    needed = tmp_path / "needed"
    needed.write_text("anew")
    text = _WORKER.replace("/srv", str(tmp_path)).replace("'anew'", f"open('{needed}').read()")
    (tmp_path / "worker.py").write_text(text)
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            ["/usr/bin/python3", str(tmp_path / "worker.py"), str(port)],
            env={"PATH": "/usr/bin:/bin", "SNAPSHOT_CONTROL_DIR": str(control)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = url(port)
    try:
        wait_until((control / "ready-for-snapshot").exists, "the worker is ready")
        created = coldstart(
            "snap",
            "create",
            "plain",
            "--pid",
            str(worker.pid),
            "--engine",
            "sentinel",
            "--ready-url",
            address,
        )
        assert created.status == 0, created.stderr
        assert (control / "restore-complete").exists()
    finally:
        worker.kill()
        worker.wait(60)
    # the second copy dies of what it needs, and the worker starts cold
    for where, fallback in (("copy", ("--no-fallback",)), ("source", ())):
        restored = coldstart("snap", "restore", "plain", *fallback, "--detach", "--json")
        assert restored.status == 0, restored.stderr
        try:
            assert json.loads(ask(port))["where"] == where
        finally:
            end_tree(json.loads(restored.stdout)["pid"], grace_seconds=1.0)
        needed.unlink(missing_ok=True)


def test_an_image_of_containerd_becomes_a_replica_that_comes_back_from_its_snapshot(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    if reason := can_run_containers():
        pytest.skip(reason)
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(make_root(tmp_path / "root"), ".")
    write_layout(tmp_path / "layout", [layer.getvalue()], compression="none")
    archive = tmp_path / "image.tar"
    source = f"oci:{tmp_path}/layout"
    target = f"docker-archive:{archive}:example.test/team/server:1"
    subprocess.run(["skopeo", "copy", "--quiet", source, target], check=True, timeout=120)
    port = free_port()
    spec = tmp_path / "spec.toml"
    name = f"node{os.getpid()}"
    spec.write_text(
        f'schema = "coldstart.spec"\nversion = 1\nname = "{name}"\nimage = "server"\n'
        f'command = ["/usr/bin/python3", "/srv/server.py"]\n[environment]\nPORT = "{port}"\n'
        f'[ready]\nurl = "http://127.0.0.1:{port}/health"\ntimeout_seconds = 30\n'
    )
    with Containerd.running(tmp_path / "c"):
        environment = coldstart.environment | {
            "CONTAINERD_ADDRESS": str(tmp_path / "c" / "s"),
            "PATH": f"{Path(coldstart.program).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "COLDSTART_HEALTH_WARN_PERCENT": "99.8",
            "COLDSTART_HEALTH_FAIL_PERCENT": "99.9",
        }
        imported = ["ctr", "--namespace", "node", "images", "import", str(archive)]
        subprocess.run(imported, env=environment, check=True, timeout=120, capture_output=True)
        try:
            done = subprocess.run(
                [EXAMPLE / "node.sh", "node", "example.test/team/server:1", spec],
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "restored" in done.stdout
            assert ask(port) == "1"
        finally:
            coldstart("launch", spec, "--stop")
