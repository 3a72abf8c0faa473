"""Engines sleep while they are captured and serve again: vLLM, SGLang, commands, and workers of Dynamo."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from coldstart_cli.errors import ColdstartError, UsageError
from coldstart_launch.after_restore import settle_copy
from coldstart_launch.spec import ReplicaSpec, load_spec
from coldstart_launch.waterfall import Waterfall
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, SnapshotVariant, create_snapshot
from coldstart_snapshot.containers.container import RunningContainer, kill_and_delete
from coldstart_snapshot.containers.new_bundle import Mount
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.engines.http_calls import Answer
from coldstart_snapshot.engines.sentinel import control_folder_of
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from conftest import wait_until
from snapshot.servers import Lab, Overlay, ask, free_port, laboratory, url

SERVER = Path(__file__).resolve().parent.parent / "stand_ins" / "engine_server.py"
WORKER = Path(__file__).resolve().parent.parent / "stand_ins" / "dynamo_worker.py"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@dataclass
class Engine:
    """A stand-in engine in a container."""

    lab: Lab
    port: int
    container: RunningContainer
    overlay: Overlay

    @property
    def calls(self) -> list[str]:
        path = self.overlay.root / "srv" / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def generate(self, prompt: str = "hello") -> dict[str, object]:
        answer: dict[str, object] = json.loads(ask(self.port, f"/generate?prompt={quote(prompt)}"))
        return answer

    def capture(self, settings: EngineSettings) -> SnapshotVariant:
        request = CaptureRequest(
            "engine", container_id=self.container.id, ready_url=url(self.port), engine=settings
        )
        return create_snapshot(request, self.lab.config)

    def restored(self, name: str = "copy") -> RunningContainer:
        """A copy, with its engine woken, in place of the source."""
        kill_and_delete(self.container.id, runc_root=self.lab.runc_root)
        plan = plan_restore("engine", self.lab.config)
        target = self.lab.overlay(name)
        assert plan.upper_archive is not None
        unpack_upper(plan.upper_archive, target.upper)
        target.mount()
        self.overlay = target
        copy = restore_container(
            plan,
            self.lab.config,
            root=target.root,
            container_id=self.lab.id(name),
            log=self.lab.tmp_path / name / "log",
        )
        spec = replace(_minimal_spec(self.lab.tmp_path), engine=plan.manifest.engine)
        settle_copy(spec, plan, copy, self.lab.config, Waterfall())
        return copy


def _minimal_spec(folder: Path) -> ReplicaSpec:
    path = folder / "spec.toml"
    path.write_text('schema = "coldstart.spec"\nversion = 1\nname = "x"\nimage = "x"\ncommand = ["x"]\n')
    return load_spec(path)


def _engine(lab: Lab, kind: str, *options: str) -> Engine:
    port = free_port()
    overlay = lab.overlay("source").mount()
    folder = overlay.root / "srv"
    folder.mkdir(exist_ok=True)
    shutil.copy(SERVER, folder / "engine.py")
    spec = replace(
        lab.spec("source", overlay, port),
        arguments=("/usr/bin/python3", "/srv/engine.py", str(port), kind, "/srv", *options),
    )
    container = lab.run(spec)
    wait_ready(url(port), 60, pid=container.pid)
    return Engine(lab, port, container, overlay)


def _settings(kind: str, port: int, **changes: object) -> EngineSettings:
    values = {"kind": kind, "url": f"http://127.0.0.1:{port}", "timeout_seconds": 20.0, **changes}
    return EngineSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("weights", ["keep", "park", "drop"])
def test_an_engine_answers_the_same_after_its_capture_and_in_a_copy_and_has_no_kv_cache(
    lab: Lab, kind: str, weights: str
) -> None:
    options = ("no-backup",) if kind == "sglang" and weights == "drop" else ("slow-sleep",)
    engine = _engine(lab, kind, *options)
    engine.generate("first")
    expected = engine.generate("second")
    assert expected["cached"] == 1
    captured = engine.capture(_settings(kind, engine.port, weights=weights))
    notes = " ".join(captured.notes)
    assert ("sleeps at level" if kind == "vllm" else "released kv_cache") in notes
    assert ("KV cache left out: 2.5 GiB" in notes) == (kind == "sglang")
    assert captured.manifest.engine is not None
    assert captured.manifest.engine.weights == weights
    # the source goes on, with an empty cache and the same weights
    assert engine.generate("second") == {**expected, "cached": 0}
    engine.restored()
    assert engine.generate("second") == {**expected, "cached": 0}


def test_what_is_under_way_is_waited_for_and_a_busy_engine_goes_on_serving(lab: Lab) -> None:
    engine = _engine(lab, "vllm", "busy")
    with pytest.raises(ColdstartError, match=r"still works on 1 requests.*runs and answers"):
        engine.capture(_settings("vllm", engine.port, timeout_seconds=4.0))
    assert not any("/sleep" in call for call in engine.calls)
    assert engine.generate()["cached"] == 0


@pytest.mark.parametrize(
    ("kind", "option", "what"),
    [
        ("vllm", "no-sleep", "GET /is_sleeping: 404"),
        ("vllm", "fail-sleep", "POST /sleep.*500 cannot sleep"),
        ("vllm", "hang-sleep", "no answer within 5 s"),
        ("sglang", "no-sleep", "cannot release its memory"),
        ("sglang", "no-backup", "would lose its weights"),
        ("sglang", "fail-sleep", "release_memory_occupation: 400 cannot release"),
    ],
)
def test_an_engine_that_cannot_sleep_is_not_captured_and_serves(
    lab: Lab, kind: str, option: str, what: str
) -> None:
    engine = _engine(lab, kind, option)
    with pytest.raises(ColdstartError, match=rf"{what}.*nothing was published.*runs and answers"):
        engine.capture(_settings(kind, engine.port, timeout_seconds=5.0 if "hang" in option else 60.0))
    if "hang" not in option:
        assert engine.generate()["answer"] == "hello: the weights"


def test_an_engine_that_does_not_wake_is_said_not_to_serve(lab: Lab) -> None:
    engine = _engine(lab, "vllm", "fail-wake")
    with pytest.raises(ColdstartError, match=r"POST /wake_up: 500 cannot wake"):
        engine.capture(_settings("vllm", engine.port))


def test_commands_run_inside_the_container_and_are_told_which_phase_it_is(lab: Lab) -> None:
    engine = _engine(lab, "vllm")
    command = "echo $COLDSTART_PHASE $COLDSTART_SNAPSHOT $COLDSTART_WEIGHTS $COLDSTART_PID >>/srv/phases"
    settings = EngineSettings(
        "command", weights="drop", quiesce=("/bin/sh", "-c", command), resume=("/bin/sh", "-c", command)
    )
    engine.capture(settings)
    phases = engine.overlay.root / "srv" / "phases"
    assert phases.read_text().splitlines() == ["quiesce engine drop 1", "resume engine drop 1"]
    engine.restored()
    phases = engine.overlay.root / "srv" / "phases"
    assert phases.read_text().splitlines() == ["quiesce engine drop 1", "restore engine drop 1"]


def test_a_command_that_fails_ends_the_capture_and_is_quoted(lab: Lab) -> None:
    engine = _engine(lab, "vllm")
    settings = EngineSettings("command", quiesce=("/bin/sh", "-c", "echo not now >&2; exit 3"))
    with pytest.raises(ColdstartError, match=r"engine command failed: /bin/sh: status 3: not now.*answers"):
        engine.capture(settings)


def _worker(lab: Lab, *mounts: Mount, **variables: str) -> Engine:
    port = free_port()
    overlay = lab.overlay("source").mount()
    folder = overlay.root / "srv"
    folder.mkdir(exist_ok=True)
    shutil.copy(WORKER, folder / "worker.py")
    spec = replace(
        lab.spec("source", overlay, port),
        arguments=("/usr/bin/python3", "/srv/worker.py", str(port)),
        environment={"PATH": "/usr/bin:/bin", **variables},
        mounts=mounts,
    )
    return Engine(lab, port, lab.run(spec), overlay)


@pytest.mark.parametrize("variable", ["SNAPSHOT_CONTROL_DIR", "DYN_SNAPSHOT_CONTROL_DIR"])
def test_a_worker_written_for_dynamo_is_captured_when_it_says_so_and_goes_on_when_told(
    lab: Lab, variable: str
) -> None:
    engine = _worker(lab, **{variable: "/srv/control"})
    settings = EngineSettings("sentinel", framework="vllm", timeout_seconds=20.0)
    # it listens only once it was told to go on: here, and in each copy
    captured = engine.capture(settings)
    assert captured.manifest.engine is not None
    assert captured.manifest.engine.control_folder == "/srv/control"
    assert json.loads(ask(engine.port, "/state")) == {"incarnation": "source", "resumed": 1}
    # it would end the source
    assert not (engine.overlay.root / "srv" / "control" / "snapshot-complete").exists()
    engine.restored()
    wait_ready(url(engine.port), 60)
    assert json.loads(ask(engine.port, "/state")) == {"incarnation": "copy", "resumed": 1}


def test_a_worker_that_is_not_ready_is_not_captured_and_can_be_later(lab: Lab) -> None:
    engine = _worker(lab, SNAPSHOT_CONTROL_DIR="/srv/control", READY_AFTER_FILE="/srv/now")
    settings = EngineSettings("sentinel", timeout_seconds=1.0)
    request = CaptureRequest("engine", container_id=engine.container.id, engine=settings)
    patient = replace(request, engine=replace(settings, timeout_seconds=60.0))
    with pytest.raises(ColdstartError, match=r"no worker says that it is ready for a snapshot within 1 s"):
        create_snapshot(request, lab.config)
    (engine.overlay.root / "srv" / "now").touch()
    control = engine.overlay.root / "srv" / "control"
    wait_until((control / "ready-for-snapshot").exists, "the worker is ready")
    assert create_snapshot(patient, lab.config).published
    wait_ready(url(engine.port), 60)


def test_links_in_a_control_folder_are_not_followed(lab: Lab) -> None:
    engine = _worker(lab, SNAPSHOT_CONTROL_DIR="/srv/control")
    control = engine.overlay.root / "srv" / "control"
    wait_until((control / "ready-for-snapshot").exists, "the worker is ready")
    victim = lab.tmp_path / "victim"
    os.symlink(victim, control / "restore-complete")
    captured = engine.capture(EngineSettings("sentinel", timeout_seconds=20.0))
    assert captured.published
    assert not victim.exists()
    assert not (control / "restore-complete").is_symlink()
    # a folder that is a link is no control folder
    shutil.rmtree(control)
    os.symlink(lab.tmp_path, control)
    with pytest.raises(ColdstartError, match=r"control folder cannot be used: /srv/control"):
        engine.capture(EngineSettings("sentinel", timeout_seconds=60.0))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kind": "triton"}, "no such engine"),
        ({"kind": "vllm"}, "needs an address"),
        ({"kind": "vllm", "url": "ftp://x"}, "cannot be used"),
        ({"kind": "command"}, "nothing to run"),
        ({"kind": "sentinel", "quiesce": ("x",)}, "takes no quiesce"),
        ({"kind": "sentinel", "control_folder": "../x"}, "control folder"),
        ({"kind": "sentinel", "framework": "a/b"}, "framework"),
        ({"kind": "sentinel", "weights": "burn"}, "weights cannot be"),
        ({"kind": "sentinel", "timeout_seconds": float("nan")}, "timeout"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        EngineSettings(**changes)  # type: ignore[arg-type]


def _killed_capture(engine: Engine, when: Callable[[], bool], by: signal.Signals = signal.SIGKILL) -> None:
    """A capture whose command is killed when the engine is at that point."""
    command = [sys.executable, "-P", "-m", "coldstart_cli", "snap", "create", "engine"]
    options = ["--container", engine.container.id, "--ready-url", url(engine.port), "--engine", "vllm"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(when, "the engine is spoken to", 60)
    finally:
        process.send_signal(by)
        process.wait(60)


def test_an_engine_wakes_after_the_command_was_killed_while_it_slept(lab: Lab) -> None:
    engine = _engine(lab, "vllm")
    engine.generate()
    _killed_capture(engine, lambda: any("/sleep" in call for call in engine.calls))
    wait_until(lambda: any("/wake_up" in call for call in engine.calls), "the engine is woken", 90)
    wait_ready(url(engine.port), 60)
    assert engine.generate()["answer"] == "hello: the weights"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_that_falls_asleep_after_the_capture_gave_up_is_woken(lab: Lab, kind: str) -> None:
    engine = _engine(lab, kind, "late-sleep")
    seconds = 1.0 if kind == "vllm" else 2.5
    with pytest.raises(ColdstartError, match=r"no answer within.*(woken|resumed).*nothing was published"):
        engine.capture(_settings(kind, engine.port, timeout_seconds=seconds))
    assert engine.generate()["answer"] == "hello: the weights"


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_an_engine_that_falls_asleep_after_the_command_was_killed_is_woken(
    lab: Lab, by: signal.Signals
) -> None:
    engine = _engine(lab, "vllm", "late-sleep")
    _killed_capture(engine, lambda: "under way" in engine.calls, by)
    wait_until(lambda: any("/wake_up" in call for call in engine.calls), "the engine is woken", 90)
    assert engine.generate()["answer"] == "hello: the weights"


def test_a_copy_that_dies_is_not_ready_by_the_files_of_its_source_in_a_folder_of_the_host(lab: Lab) -> None:
    control = lab.tmp_path / "control"
    control.mkdir()
    engine = _worker(lab, Mount(control, "/control", read_only=False), SNAPSHOT_CONTROL_DIR="/control")
    engine.capture(EngineSettings("sentinel", framework="vllm", timeout_seconds=20.0))
    assert (control / "vllm-restore-ready").exists()
    # this one insists on a file that its source has removed
    assert not (control / "ready-for-snapshot").exists()
    with pytest.raises(ColdstartError, match=r"the worker ended before it is ready"):
        engine.restored()
    assert not (control / "vllm-restore-ready").exists()


def test_an_answer_that_is_nested_too_deeply_is_none() -> None:
    assert Answer(200, b'{"a":' * 100_000).table() == {}
    assert Answer(200, b"[" * 100_000).table() == {}


@pytest.mark.parametrize("folder", ["control", "/srv/../control"])
def test_a_control_folder_that_cannot_be_used_is_not_passed_over(folder: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot be used: SNAPSHOT_CONTROL_DIR={folder}"):
        control_folder_of({"SNAPSHOT_CONTROL_DIR": folder, "DYN_SNAPSHOT_CONTROL_DIR": "/srv/control"})
    assert control_folder_of({"SNAPSHOT_CONTROL_DIR": "", "DYN_SNAPSHOT_CONTROL_DIR": "/x"}) == "/x"
