"""The document-reading example: its specification, its report, and the whole demo with its leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_launch.spec import load_spec
from conftest import REPOSITORY, wait_until

EXAMPLE = REPOSITORY / "examples" / "ocr"


def test_the_specification_waits_for_the_port_that_the_server_takes_by_default() -> None:
    spec = load_spec(EXAMPLE / "spec.toml")
    default = re.search(r'"--port", type=int, default=(\d+)', (EXAMPLE / "server.py").read_text())
    assert default is not None
    assert spec.ready.url == f"http://127.0.0.1:{default[1]}/health"


def test_the_report_sets_medians_side_by_side_and_leaves_out_what_comes_after_ready() -> None:
    program = """
from demo_report import Start, print_report
def start(method, total, *stages):
    stages = [dict(name=n, start_seconds=b, duration_seconds=d) for n, b, d in stages]
    return Start.from_document(dict(method=method, total_seconds=total, stages=stages), ["text"], 0.5)
cold = [start("cold", t, ("mount", 0, 0.4), ("ready", 0.4, t - 0.4), ("snapshot", t, 9)) for t in (3, 4, 8)]
restored = [start("restore", t, ("mount", 0, 0.4), ("restore", 0.4, t - 0.4)) for t in (0.9, 1, 1.1)]
print_report(cold, restored)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=EXAMPLE,
        env=dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"^to ready +4\.00 +1\.00$", done.stdout, re.MULTILINE)
    assert "start to ready 3.60 s, verify and restore to ready 0.60 s: 6.0 times sooner" in done.stdout
    assert "ready 4.0 times sooner (medians of 3 and 3 starts)" in done.stdout
    assert "snapshot " not in done.stdout.replace("from the snapshot", "")


def _demo(*options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE / "demo.py"), *options], stdin=subprocess.DEVNULL, cwd=REPOSITORY
    )


def _leftovers() -> list[str]:
    """Mounts below .demo/ and processes that run the example's server or a mount of it."""
    found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/.demo/" in line]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if "/srv/ocr/server.py" in command or "/.demo/" in command:
            found.append(command)
    return found


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="the demo needs root")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_was_ended_leaves_nothing_after_the_next_one(ending: signal.Signals) -> None:
    ended = _demo("--runs", "1")
    try:
        wait_until(lambda: bool(_leftovers()) or ended.poll() is not None, "the demo at work", 900)
        assert ended.poll() is None
    finally:
        ended.send_signal(ending)
        ended.wait(timeout=120)
    if ending is signal.SIGINT:
        assert _leftovers() == []
    again = _demo("--runs", "1")
    assert again.wait(timeout=900) == 0
    assert _leftovers() == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="the demo needs root")
def test_the_server_reads_the_same_page_after_each_of_twenty_restores() -> None:
    again = _demo("--runs", "20")
    assert again.wait(timeout=1700) == 0
    assert _leftovers() == []
