"""The queue of the document-reading server: what a broken model does to those who wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import REPOSITORY


@pytest.mark.parametrize("model", ["lambda items: []", "lambda items: 1 / 0"])
def test_a_model_that_breaks_fails_its_batch_and_not_the_queue(model: str) -> None:
    program = f"""
from batching import BatchQueue
from metrics import Metrics
broken = {model}
models = iter([broken, lambda items: ["read"] * len(items)])
queue = BatchQueue(lambda items: next(models)(items), Metrics(), batch_limit=1, wait_seconds=0, queue_limit=9)
print(type(queue.submit(b"").exception(10)).__name__, queue.submit(b"").result(60))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY / "examples" / "ocr",
        env=dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() in (["RuntimeError", "read"], ["ZeroDivisionError", "read"])
