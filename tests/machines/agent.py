"""Runs inside the guest: executes what the host sends through a virtio port, one command after another.

A message is one line of JSON and as many bytes as it announces. Only the standard library is there.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

_OUTPUT_LIMIT_BYTES = 1 << 30


def main() -> None:
    with open(_port(), "r+b", buffering=0) as raw:
        _write(raw, {"ready": True})
        while True:
            request = json.loads(_line(raw))
            _write(raw, *_execute(request, _exactly(raw, request["stdin_bytes"])))


def _port() -> str:
    """The port's device, which the kernel makes a moment after its driver is loaded."""
    deadline = time.monotonic() + 30
    while not (found := glob.glob("/dev/vport*p*")):
        if time.monotonic() > deadline:
            sys.exit("no virtio port came up")
        time.sleep(0.05)
    return found[0]


def _execute(request: dict[str, Any], stdin: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    # files, not pipes: what the command leaves in the background may keep its output open
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(stdin)
        given.seek(0)
        begin = time.monotonic()
        process = subprocess.Popen(
            request["arguments"],
            stdin=given,
            stdout=output,
            stderr=errors,
            env=os.environ | request["environment"],
            cwd="/root",
            start_new_session=True,
        )
        timed_out = False
        try:
            status = process.wait(request["deadline_seconds"])
        except subprocess.TimeoutExpired:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait(20)
        said = [_content(stream) for stream in (output, errors)]
        header = {
            "status": status,
            "timed_out": timed_out,
            "seconds": time.monotonic() - begin,
            "stdout_bytes": len(said[0]),
            "stderr_bytes": len(said[1]),
        }
        return header, said[0], said[1]


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read(_OUTPUT_LIMIT_BYTES)


def _line(raw: IO[bytes]) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += _exactly(raw, 1)
    return line


def _exactly(raw: IO[bytes], size_bytes: int) -> bytes:
    parts = []
    while size_bytes:
        part = raw.read(min(size_bytes, 1 << 20))
        if not part:
            sys.exit("the host closed the port")
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


def _write(raw: IO[bytes], header: dict[str, Any], *parts: bytes) -> None:
    for part in (json.dumps(header).encode() + b"\n", *parts):
        view = memoryview(part)
        while view:
            view = view[raw.write(view[: 1 << 20]) or 0 :]


if __name__ == "__main__":
    main()
