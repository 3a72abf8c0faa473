from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from coldstart_cli.files import mounts_below
from conftest import wait_until
from image_builder import write_layout
from replicas import Replica
from small_root import answers, ask, make_root
from stand_ins.cuda import CudaStandIn, state_of
from stand_ins.cuda_host import CudaHost, uuid
from stand_ins.gpu_driver import GpuDriver


def nothing_is_left(replica: Replica) -> bool:
    return (
        not answers(replica.port)
        and not mounts_below(replica.run_folder)
        and not list(replica.run_folder.glob("replicas/*/"))
        and not list(replica.run_folder.glob("mounts/*/record.json"))
        and not list(replica.run_folder.glob("runc/*"))
    )


def image_servers(replica: Replica) -> list[int]:
    """Pids of the image servers whose files are this test's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"coldstart_fs.mounts.keeping" in command and os.fsencode(replica.run_folder) in command:
                found.append(int(entry.name))
    return found


def test_a_cold_start_serves_and_tells_where_the_time_went(replica: Replica) -> None:
    result = replica.launch("--detach", "--json")
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.launch", 1)
    assert (document["method"], document["variant"], document["snapshot"]) == ("cold", None, None)
    assert {stage["name"] for stage in document["stages"]} == {"health", "mount", "start", "ready"}
    assert document["total_seconds"] == pytest.approx(
        max(stage["start_seconds"] + stage["duration_seconds"] for stage in document["stages"]), abs=0.01
    )
    assert ask(replica.port) == "1"
    assert ask(replica.port, "/environment") == "hello"
    assert replica.stop().status == 0
    assert nothing_is_left(replica)
    assert not image_servers(replica)


def test_the_snapshot_of_a_cold_start_is_restored_by_the_next_launch(replica: Replica) -> None:
    first = json.loads(replica.launch("--detach", "--snapshot-when-ready", "--json").stdout)
    assert first["snapshot"].startswith(f"{replica.name}/")
    assert ask(replica.port) == "1"  # after the capture: the snapshot has counted none
    assert replica.stop().status == 0
    for _ in range(2):
        result = replica.launch("--detach", "--no-fallback", "--json")
        assert result.status == 0, result.stderr
        assert json.loads(result.stdout)["method"] == "restore"
        assert ask(replica.port) == "1"
        assert ask(replica.port, "/file") == "1"
        assert replica.stop().status == 0
    assert nothing_is_left(replica)


def test_a_second_launch_of_a_name_is_refused_and_the_first_goes_on(replica: Replica) -> None:
    assert replica.launch("--detach").status == 0
    second = replica.launch("--detach")
    assert second.status == 75
    assert "already launched" in second.stderr
    assert "--stop" in second.stderr
    assert ask(replica.port) == "1"


def test_sigterm_takes_a_foreground_launch_down_in_order(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert nothing_is_left(replica)


@pytest.mark.parametrize("victim", ["supervisor", "image server", "container"])
def test_after_a_kill_the_next_launch_starts_from_nothing(replica: Replica, victim: str) -> None:
    document = json.loads(replica.launch("--detach", "--json").stdout)
    record = json.loads((replica.run_folder / "replicas" / replica.name / "record.json").read_text())
    pid = {
        "supervisor": record["supervisor_pid"],
        "image server": image_servers(replica),
        "container": document["pid"],
    }[victim]
    for process in pid if isinstance(pid, list) else [pid]:
        os.kill(process, signal.SIGKILL)
    if victim in {"container", "image server"}:  # the supervisor notices and takes the rest down
        wait_until(lambda: nothing_is_left(replica), "the supervisor to take everything down")
    result = replica.launch("--detach", "--lock-wait", "10")
    assert result.status == 0, result.stderr
    assert ask(replica.port) == "1"
    assert len(image_servers(replica)) == 2, "keeper and server"
    assert replica.stop().status == 0
    assert nothing_is_left(replica)


@pytest.mark.parametrize("delay_seconds", [0.2, 0.5, 0.6, 0.7, 0.9])
def test_a_launch_killed_on_the_way_leaves_nothing_that_the_next_does_not_clear(
    replica: Replica, delay_seconds: float
) -> None:
    replica.launch("--detach", "--snapshot-when-ready")
    replica.stop()
    process = subprocess.Popen(
        [replica.coldstart.program, "launch", replica.spec],
        env=replica.coldstart.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(timeout=delay_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=60)
    assert replica.stop().status in {0, 66}  # 66: it had not begun, or had ended
    # a keeper whose mount nobody put on record looks for one for a second, and ends
    wait_until(lambda: nothing_is_left(replica), "what the killed launch began to end")
    result = replica.launch("--detach", "--no-fallback", "--lock-wait", "20")
    assert result.status == 0, result.stderr
    assert ask(replica.port) == "1"
    assert replica.stop().status == 0
    assert nothing_is_left(replica)
    wait_until(lambda: not image_servers(replica), "image servers without a mount to end")


def test_a_server_that_is_never_ready_ends_with_75_and_nothing_left(replica: Replica) -> None:
    text = (
        replica.spec.read_text()
        .replace("/health", "/never")
        .replace("timeout_seconds = 30", "timeout_seconds = 1")
    )
    replica.spec.write_text(text)
    result = replica.launch("--detach")
    assert result.status == 75
    assert "not ready after 1 s" in result.stderr
    assert "503" in result.stderr
    assert nothing_is_left(replica)


def test_a_server_that_ends_at_once_is_told_from_one_that_is_slow(replica: Replica) -> None:
    replica.spec.write_text(replica.spec.read_text().replace("[ready]", 'FAIL_AT_START = "1"\n[ready]'))
    result = replica.launch("--detach")
    assert result.status == 1
    assert "ended before it was ready" in result.stderr
    assert "cannot start: told so" in result.stderr
    assert nothing_is_left(replica)


def test_a_replica_that_ends_by_itself_ends_the_launch_with_its_last_words(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    ask(replica.port)
    with pytest.raises(OSError):
        ask(replica.port, "/exit")
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"replica ended" in complaint
    assert b"request 1" in complaint
    assert nothing_is_left(replica)


def damage(replica: Replica) -> Path:
    """Flip one byte in the middle of the largest pages image of the replica's snapshot."""
    folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots" / replica.name
    pages = max(folder.glob("*/images/pages-*.img"), key=lambda path: path.stat().st_size)
    with open(pages, "r+b") as stream:
        stream.seek(pages.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 1]))
    return pages


def test_a_damaged_snapshot_starts_cold_and_says_so_or_fails_when_told_to(replica: Replica) -> None:
    replica.launch("--detach", "--snapshot-when-ready")
    replica.stop()
    pages = damage(replica)
    strict = replica.launch("--detach", "--no-fallback")
    assert strict.status == 65
    assert pages.name in strict.stderr
    assert nothing_is_left(replica)
    result = replica.launch("--detach", "--json")
    assert result.status == 0
    assert json.loads(result.stdout)["method"] == "cold"
    assert "cold start, because the snapshot cannot be used" in result.stderr


def test_a_snapshot_of_another_server_is_not_taken_for_this_one(replica: Replica) -> None:
    replica.launch("--detach", "--snapshot-when-ready")
    replica.stop()
    replica.spec.write_text(replica.spec.read_text().replace('GREETING = "hello"', 'GREETING = "good-bye"'))
    result = replica.launch("--detach", "--json")
    assert json.loads(result.stdout)["method"] == "cold"
    assert "another GREETING" in result.stderr
    assert ask(replica.port, "/environment") == "good-bye"


def test_a_server_runs_as_the_user_of_the_specification_without_new_privileges(replica: Replica) -> None:
    replica.write(user='"server"')
    assert replica.launch("--detach").status == 0
    assert ask(replica.port, "/user") == "1234:1235 1"


def test_a_host_that_may_not_serve_gets_no_replica(replica: Replica) -> None:
    result = replica.launch("--detach", "--expect-gpus", "8")
    assert result.status == 3
    assert "nothing may be placed on this host" in result.stderr
    assert nothing_is_left(replica)


def test_an_image_that_does_not_exist_is_named_with_near_matches(replica: Replica) -> None:
    replica.write(image='"servre"')
    result = replica.launch("--detach")
    assert result.status == 66
    assert "did you mean `server`" in result.stderr


def test_a_bare_image_name_is_warned_of_and_works(replica: Replica) -> None:
    replica.write(image='"server"')
    result = replica.launch("--detach")
    assert result.status == 0
    assert "image is not pinned: server" in result.stderr


def test_a_rehearsal_says_what_would_be_done_and_does_nothing(replica: Replica) -> None:
    result = replica.launch("--dry-run", "--json")
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["schema"], document["method"]) == ("coldstart.launch.rehearsal", "cold")
    assert not (replica.run_folder / "replicas").exists() or nothing_is_left(replica)


def test_a_detached_launch_lets_go_of_its_callers_output(replica: Replica) -> None:
    command = f"'{replica.coldstart.program}' launch '{replica.spec}' --detach 2>&1 | cat"
    done = subprocess.run(
        ["sh", "-c", command], env=replica.coldstart.environment, capture_output=True, timeout=60, check=False
    )
    assert b"ready after" in done.stdout
    assert ask(replica.port) == "1"


def test_stopping_what_does_not_run_is_66(replica: Replica) -> None:
    assert replica.stop().status == 66


@pytest.fixture
def gpu_host(replica: Replica, tmp_path: Path) -> CudaHost:
    """The replica's server has CUDA state, and the host GPUs."""
    host = CudaHost(tmp_path)
    replica.coldstart.environment.update(host.environment)
    variables = 'LD_PRELOAD = "/lib/cuda/libcuda.so.1"\n'
    variables += 'CUDA_STAND_IN_AT_START = "1"\nCUDA_STAND_IN_VRAM = "/srv"\n'
    mount = f'[[mounts]]\nsource = "{host.cuda.libraries}"\ndestination = "/lib/cuda"\n'
    spec = replica.spec.read_text().replace("[ready]", f"{variables}[ready]")
    replica.spec.write_text(f"{spec}{mount}")
    return host


@pytest.fixture
def cuda(gpu_host: CudaHost) -> CudaStandIn:
    return gpu_host.cuda


def test_gpu_state_goes_to_the_gpu_that_the_restored_replica_took(
    replica: Replica, gpu_host: CudaHost
) -> None:
    replica.write(gpus="1")
    first = json.loads(replica.launch("--detach", "--json").stdout)
    gpu_host.uses(first["pid"], 1)
    runc_root = str(replica.run_folder / "runc")
    ready = f"http://127.0.0.1:{replica.port}/health"
    created = replica.coldstart(
        "snap", "create", replica.name, "--container", replica.name, "--runc-root", runc_root,
        "--ready-url", ready,
    )  # fmt: skip
    assert created.status == 0, created.stderr
    assert replica.stop().status == 0
    gpu_host.unsay()
    # somebody else has the GPU of the capture
    gpu_host.say("0 used_mib 81920")
    assert replica.coldstart("pool", "take", "somebody").stdout.strip() == uuid(0)
    again = replica.launch("--detach", "--no-fallback", "--json")
    assert again.status == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["method"] == "restore"
    assert state_of(document["pid"]) == "running"
    memory = [name for name in os.listdir(f"/proc/{document['pid']}/root/srv") if name.startswith("gpu")]
    assert [name[:4] for name in memory] == ["gpu1"]


def test_gpu_state_of_a_container_is_suspended_for_the_capture_and_resumed_after_the_restore(
    replica: Replica, cuda: CudaStandIn
) -> None:
    first = json.loads(replica.launch("--detach", "--snapshot-when-ready", "--json").stdout)
    assert state_of(first["pid"]) == "running"
    assert replica.stop().status == 0
    again = replica.launch("--detach", "--no-fallback", "--json")
    assert again.status == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["method"] == "restore"
    assert state_of(document["pid"]) == "running"
    assert ask(replica.port) == "1"
    actions = [call.split()[0] for call in cuda.calls() if not call.startswith("get-")]
    assert actions == ["lock", "checkpoint", "restore", "unlock", "restore", "unlock"]


def test_gpu_state_that_does_not_come_back_ends_in_a_cold_start_or_in_nothing(
    replica: Replica, cuda: CudaStandIn
) -> None:
    replica.launch("--detach", "--snapshot-when-ready")
    replica.stop()
    cuda.fault("restore", "out of memory", times=2)
    strict = replica.launch("--detach", "--no-fallback")
    assert strict.status != 0
    assert "out of memory" in strict.stderr
    assert nothing_is_left(replica)
    result = replica.launch("--detach", "--json")
    assert json.loads(result.stdout)["method"] == "cold"
    assert "cold start, because the restore failed" in result.stderr
    assert ask(replica.port) == "1"


@pytest.mark.parametrize("method", ["cold", "restore"])
def test_an_address_that_somebody_else_answers_on_is_refused_before_anything_starts(
    replica: Replica, method: str
) -> None:
    if method == "restore":
        replica.launch("--detach", "--snapshot-when-ready")
        replica.stop()
    with socket.create_server(("127.0.0.1", replica.port)):
        result = replica.launch("--detach")
        rehearsal = replica.launch("--dry-run")
    assert (result.status, rehearsal.status) == (75, 75)
    assert f"process {os.getpid()}" in result.stderr
    assert nothing_is_left(replica)


@pytest.mark.parametrize("output", [">/dev/full", ">&-", "| true"])
def test_a_detached_replica_stays_when_its_answer_cannot_be_written(replica: Replica, output: str) -> None:
    command = f"'{replica.coldstart.program}' launch '{replica.spec}' --detach --json {output}"
    subprocess.run(
        ["sh", "-c", command],
        env=replica.coldstart.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ask(replica.port) == "1"
    assert replica.stop().status == 0
    assert nothing_is_left(replica)


def test_a_replica_whose_image_server_died_is_ended_with_that_reason(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    for pid in image_servers(replica):
        os.kill(pid, signal.SIGKILL)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"image server of replica" in complaint
    assert nothing_is_left(replica)


def test_a_replica_in_the_background_leaves_in_its_log_why_it_was_ended(replica: Replica) -> None:
    launched = replica.launch("--detach", "--json")
    assert launched.status == 0, launched.stderr
    for pid in image_servers(replica):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: nothing_is_left(replica), "the supervisor to take everything down")
    assert "image server of replica" in Path(json.loads(launched.stdout)["log"]).read_text()


def test_a_replica_survives_the_death_of_its_image_server(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    keeper, server = image_servers(replica)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: len(set(image_servers(replica)) - {server}) == 2, "a successor")
    assert keeper in image_servers(replica)
    assert ask(replica.port) == "1"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert nothing_is_left(replica)


def test_a_container_does_not_notice_that_its_image_server_is_replaced(replica: Replica) -> None:
    assert replica.launch("--detach").status == 0
    before = image_servers(replica)
    (mount,) = json.loads(replica.coldstart("image", "status", "--json").stdout)["mounts"]
    store = ("--store", mount["store"], "--cache", mount["cache"])
    done = replica.coldstart("image", "mount", mount["name"], mount["mountpoint"], *store, "--replace")
    assert done.status == 0, done.stderr
    assert not set(before) & set(image_servers(replica))
    assert ask(replica.port) == "1"
    assert ask(replica.port, "/file") == "1"
    assert replica.stop().status == 0
    assert nothing_is_left(replica)


def test_a_lost_terminal_takes_a_foreground_launch_down_in_order(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert nothing_is_left(replica)


def test_a_gpu_in_quarantine_keeps_a_replica_out_unless_it_cannot_see_it(
    replica: Replica, tmp_path: Path
) -> None:
    driver = GpuDriver(tmp_path)
    replica.coldstart.environment |= driver.environment
    driver.control("* count 2", "1 temperature 93")
    assert replica.coldstart("health", "quick").status == 3
    driver.control("* count 2")
    result = replica.launch("--detach")
    assert result.status == 3
    assert "nothing may be placed on this host: drain: quarantined on GPU-" in result.stderr
    assert nothing_is_left(replica)
    first = "GPU-00000000-0000-0000-0000-000000000000"
    replica.spec.write_text(
        replica.spec.read_text().replace("[environment]", f'[environment]\nCUDA_VISIBLE_DEVICES = "{first}"')
    )
    result = replica.launch("--dry-run", "--json")
    assert result.status == 0, result.stderr
    # not `drain`; a busy machine degrades every host
    assert json.loads(result.stdout)["health"] in {"ok", "degraded"}


def test_a_replica_takes_its_gpus_from_the_pool_and_gives_them_back_when_it_is_stopped(
    replica: Replica, tmp_path: Path
) -> None:
    driver = GpuDriver(tmp_path)
    replica.coldstart.environment |= driver.environment
    driver.control("* count 2", "0 remap_pending 1")
    replica.write(gpus="1")

    def holders() -> list[str | None]:
        shown = json.loads(replica.coldstart("pool", "status", "--json").stdout)
        return [gpu["holder"] for gpu in shown["gpus"]]

    result = replica.launch("--cold", "--detach", "--json")
    assert result.status == 0, result.stderr
    pid = json.loads(result.stdout)["pid"]
    visible = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    # the first GPU wants a reset: it is kept out
    assert b"CUDA_VISIBLE_DEVICES=GPU-00000000-0000-0000-0000-000000000001" in visible
    assert holders() == [None, f"replica:{replica.name}"]
    refused = replica.coldstart("pool", "take", "somebody")
    assert refused.status == 3
    assert f"held by replica:{replica.name}; 1 kept out by health" in refused.stderr
    assert replica.stop().status == 0
    assert holders() == [None, None]
    assert nothing_is_left(replica)


def test_a_replica_that_wants_more_gpus_than_are_free_is_not_started(
    replica: Replica, tmp_path: Path
) -> None:
    driver = GpuDriver(tmp_path)
    replica.coldstart.environment |= driver.environment
    driver.control("* count 2")
    replica.write(gpus="3")
    result = replica.launch("--detach")
    assert result.status == 3
    assert "not enough free GPUs in the pool: 2 of 3 wanted" in result.stderr
    assert nothing_is_left(replica)


def test_the_image_s_configuration_runs_and_the_specification_s_wins(
    replica: Replica, tmp_path: Path
) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(make_root(tmp_path / "root"), ".")
    runtime = {
        "Entrypoint": ["python3"],
        "Cmd": ["server.py"],
        "Env": ["GREETING=from the image", "PATH=/usr/bin", "START_SECONDS=0"],
        "WorkingDir": "/srv",
        "User": "server",
    }
    write_layout(tmp_path / "layout", [layer.getvalue()], compression="none", config=runtime)
    store = ("--store", tmp_path / "store")
    replica.coldstart.environment["COLDSTART_STORE"] = str(tmp_path / "store")
    assert replica.coldstart("image", "index", "oci:layout", "--name", "configured", *store).status == 0
    lines = [
        line for line in replica.spec.read_text().splitlines() if not line.startswith(("command", "GREETING"))
    ]
    replica.spec.write_text("\n".join(lines) + "\n")
    replica.write(image='"configured"')
    result = replica.launch("--detach")
    assert result.status == 0, result.stderr
    assert ask(replica.port, "/environment") == "from the image"
    assert ask(replica.port, "/folder") == "/srv"
    assert ask(replica.port, "/user").split()[0] == "1234:1235"
    assert replica.stop().status == 0

    # criu wants all capabilities to capture processes of other users: root's is captured
    replica.write(command='["/usr/bin/python3", "/srv/server.py"]', working_directory='"/tmp"', user='"0:0"')
    replica.spec.write_text(
        replica.spec.read_text().replace("[environment]", '[environment]\nGREETING = "mine"')
    )
    captured = replica.launch("--detach", "--snapshot-when-ready")
    assert captured.status == 0, captured.stderr
    assert ask(replica.port, "/environment") == "mine"
    assert ask(replica.port, "/folder") == "/tmp"
    assert ask(replica.port, "/user").split()[0] == "0:0"
    assert replica.stop().status == 0

    # a snapshot of another user or working directory is not of this replica
    for change, said in (
        ({"user": '"77:78"'}, "it runs as 0:0"),
        ({"working_directory": '"/"'}, "it runs in /tmp"),
    ):
        replica.write(user='"0:0"', working_directory='"/tmp"')
        replica.write(**change)
        refused = replica.launch("--detach", "--no-fallback")
        assert refused.status == 3, refused.stderr
        assert said in refused.stderr
