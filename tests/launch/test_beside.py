"""Work beside the main thread: its results, its errors, and nobody who waits for what hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from coldstart_launch.beside import Beside

HANGS = """
import threading, time
from coldstart_launch.beside import Beside

with Beside(unwind_seconds=0.1) as side:
    side.submit(threading.Event().wait)
    raise SystemExit(7)
"""


def test_results_and_errors_come_back() -> None:
    with Beside() as side:
        good, bad = side.submit(lambda: 42), side.submit(lambda: 1 // 0)
        assert good.result(60) == 42
        with pytest.raises(ZeroDivisionError):
            bad.result(60)


def test_a_failure_sees_the_end_of_the_other_work_before_it_goes_on() -> None:
    go, ended = threading.Event(), threading.Event()

    def fail() -> None:
        with Beside() as side:
            side.submit(lambda: go.wait(60) and ended.set())
            go.set()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ended.is_set()


def test_neither_the_block_nor_the_process_waits_for_a_thread_that_hangs() -> None:
    begun = time.monotonic()
    process = subprocess.run([sys.executable, "-c", HANGS], timeout=60, check=False)
    assert process.returncode == 7
    assert time.monotonic() - begun < 30
