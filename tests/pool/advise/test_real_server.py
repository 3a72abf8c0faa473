"""`pool advise` beside the example's server under real load: it names what is really wrong, each time."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import REPOSITORY, wait_until
from ports import free_port

COLDSTART = str(Path(sys.executable).parent / "coldstart")
MODELS = (Path(__file__).parent, REPOSITORY / "tests" / "stand_ins")


@dataclass
class Replica:
    address: str

    def ask(self) -> list[str]:
        """The answer to one request."""
        with urllib.request.urlopen(f"{self.address}/ocr", data=b"a picture", timeout=120) as answer:
            lines: list[str] = json.load(answer)["lines"]
        assert lines
        return lines

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=60) as answer:
            found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])


@contextmanager
def replica(
    model: str = "serving_model:Device", *, batch_limit: int, batch_seconds: float = 0.0
) -> Iterator[Replica]:
    port = free_port()
    environment = dict(os.environ) | {
        "DEVICE_BATCH_SECONDS": str(batch_seconds),
        "MATRIX_LAYERS": "8",
        "PYTHONPATH": os.pathsep.join(map(str, MODELS)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    server = REPOSITORY / "examples" / "ocr" / "server.py"
    options = ["--port", str(port), "--batch-limit", str(batch_limit), "--model", model]
    process = subprocess.Popen([sys.executable, str(server), *options], env=environment)
    try:
        address = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert process.poll() is None
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
                    return int(answer.status) == 200
            except OSError:
                return False

        wait_until(ready, "the server is ready", 60)
        yield Replica(address)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def load(replicas: list[Replica], clients: int, *, period_seconds: float = 0.0) -> Iterator[None]:
    """Clients that each ask once a period, or as soon as they have their answer where that comes later.

    They begin one after the other, so that requests come evenly.
    """
    stop = threading.Event()

    def ask_on(number: int) -> None:
        due = time.monotonic() + period_seconds * number / clients
        while not stop.wait(max(0.0, due - time.monotonic())):
            replicas[number % len(replicas)].ask()
            due = max(due + period_seconds, time.monotonic() if period_seconds == 0 else 0.0)

    threads = [threading.Thread(target=ask_on, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


def advise(
    replicas: list[Replica], *, wanted_seconds: float, window_seconds: float
) -> tuple[int, dict[str, object]]:
    addresses = [f"{target.address}/metrics" for target in replicas]
    options = ["--first-result", str(wanted_seconds), "--window", str(window_seconds), "--json"]
    done = subprocess.run(
        [COLDSTART, "pool", "advise", *addresses, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def wait_for_queue(target: Replica, requests: int) -> None:
    wait_until(
        lambda: target.metric("vllm:num_requests_waiting") >= requests, f"{requests} requests wait", 60
    )


# What each is proved by has a factor of two and more to spare on a machine whose processors others use:
# computing takes the device's time, and only the queue in front of it makes the rest.


def test_requests_that_wait_beside_batches_of_one_are_a_batching_problem() -> None:
    """16 clients of 0.15 s each wait 2.4 s for answers that take 0.15 s."""
    with replica(batch_limit=1, batch_seconds=0.15) as target, load([target], 16):
        wait_for_queue(target, 10)
        status, answer = advise([target], wanted_seconds=0.6, window_seconds=2)
    assert (status, answer["cause"]) == (3, "batching"), answer
    # a request that was on its way at the first look counts in part
    assert re.search(r"batches hold (0\.[5-9]|1\.[0-3])", str(answer["evidence"])), answer


def test_computing_that_alone_takes_longer_than_wanted_is_a_model_problem() -> None:
    with replica(batch_limit=8, batch_seconds=0.8) as target, load([target], 16):
        wait_for_queue(target, 4)
        status, answer = advise([target], wanted_seconds=0.4, window_seconds=3)
    assert (status, answer["cause"]) == (3, "model"), answer
    assert answer["needed_replicas"] is None


def test_full_batches_and_a_queue_are_a_capacity_problem_and_a_second_replica_ends_it() -> None:
    """40 requests/s come to a replica that answers 27: the same load is half of what two can bear."""
    wanted = {"wanted_seconds": 1.0, "window_seconds": 2}
    with ExitStack() as stack:
        first, second = (stack.enter_context(replica(batch_limit=8, batch_seconds=0.3)) for _ in range(2))
        with load([first], 80, period_seconds=2):
            wait_for_queue(first, 36)
            status, answer = advise([first], **wanted)
        assert (status, answer["cause"]) == (3, "capacity"), answer
        assert answer["needed_replicas"] in {2, 3}  # 1.9, and whatever the machine's other work adds
        with load([first, second], 80, period_seconds=2):
            # with one it stays as it is; with two, what a stall of this machine leaves is soon worked off
            for _ in range(6):
                status, answer = advise([first, second], **wanted)
                if status == 0:
                    break
        assert (status, answer["cause"]) == (0, "none"), answer
        busy = [item["busy_share"] for item in answer["observed"]]  # type: ignore[attr-defined]
        assert all(0 < share <= 1 for share in busy), answer


def test_a_replica_that_is_not_there_is_named() -> None:
    with socket.socket() as bound:  # nobody listens there
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}/metrics"
        done = subprocess.run(
            [COLDSTART, "pool", "advise", address], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 75
    assert f"cannot fetch metrics: {address}" in done.stderr


@pytest.mark.parametrize("clients", [1, 9])
def test_answers_do_not_depend_on_who_shares_the_batch(clients: int) -> None:
    lines: list[list[str]] = []
    with replica("matrix_model:Matrix", batch_limit=4) as target:
        threads = [threading.Thread(target=lambda: lines.append(target.ask())) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(lines) == clients
    assert all(line == lines[0] for line in lines)
