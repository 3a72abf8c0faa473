"""The whole chain on a real server: start it cold, snapshot it, restore it, compare. `make demo` runs this.

All state stays in .demo/ of the checkout. A demo that was killed is taken down by the next one.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from demo_report import Start, print_report
from request import read_picture

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parent.parent
_DEMO = _CHECKOUT / ".demo"
_COLDSTART = str(_CHECKOUT / ".venv" / "bin" / "coldstart")
_PORT = 18230
_PR_SET_PDEATHSIG = 1
_LOCK_WAIT_SECONDS = 90.0


class DemoError(Exception):
    """A step failed; the message says which."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts of each kind; the report shows medians")
    parser.add_argument("--clean", action="store_true", help="take down what is left and delete .demo/")
    arguments = parser.parse_args()
    # Ctrl-C, a service manager and the end of `make` all unwind through the same `finally`
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    _die_with_parent(signal.SIGTERM)
    try:
        with _only_demo():
            demo = Demo()
            demo.take_down()
            if arguments.clean:
                shutil.rmtree(_DEMO)
                return 0
            try:
                demo.run(max(1, arguments.runs))
            finally:
                demo.take_down()
            demo.check_nothing_left()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    return 0


class Demo:
    def __init__(self) -> None:
        self._spec = _DEMO / "spec.toml"
        self._run_folder = _run_folder()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDSTART_")}
        self._environment = kept | {
            "COLDSTART_STATE_DIR": str(_DEMO / "state"),
            "COLDSTART_CACHE_DIR": str(_DEMO / "cache"),
            "COLDSTART_RUN_DIR": str(self._run_folder),
            # the host's own configuration must not change what is shown
            "CONFIGURATION_DIRECTORY": str(_DEMO / "etc"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin",
        }

    def run(self, runs: int) -> None:
        image = self._build_and_index()
        port = _free_port(_PORT)
        self._write_spec(image, port)
        page = (_HERE / "page.png").read_bytes()
        expected = (_HERE / "page.txt").read_text().splitlines()
        self._coldstart("snap", "remove", "ocr", "--json", absent_is_fine=True)

        _say("starting it cold, with a snapshot when it is ready")
        starts: list[Start] = []
        starts.append(self._start("--cold", "--snapshot-when-ready", page=page, port=port))
        _say("the server reads: " + " | ".join(starts[0].lines))
        for number in range(runs):
            _say(f"restoring it ({number + 1} of {runs})")
            starts.append(self._start("--no-fallback", page=page, port=port))
            if number:
                _say(f"starting it cold ({number + 1} of {runs})")
                starts.append(self._start("--cold", page=page, port=port))
        for start in starts:
            # word gaps are the model's guess and differ between processors
            if _letters(start.lines) != _letters(expected):
                raise DemoError(f"the server misread the page after a {start.method} start: {start.lines}")
            if start.lines != starts[0].lines:
                raise DemoError(f"a {start.method} start gave another answer: {start.lines}")
        print_report([s for s in starts if s.method == "cold"], [s for s in starts if s.method != "cold"])

    def _build_and_index(self) -> str:
        layout = _DEMO / "image"
        self._execute([str(_HERE / "build-image.sh"), str(layout)], 1500)
        inputs = (_DEMO / "image.inputs").read_text()
        indexed = _DEMO / "indexed.json"
        with suppress(FileNotFoundError, ValueError, KeyError):
            known = json.loads(indexed.read_text())
            names = json.loads(self._coldstart("image", "ls", "--json"))
            if known["inputs"] == inputs and known["image"].rpartition("@")[2] in json.dumps(names):
                return str(known["image"])
        _say("indexing the image")
        document = json.loads(self._coldstart("image", "index", f"oci:{layout}", "--name", "ocr", "--json"))
        image = str(document["digest"])
        pinned = f"ocr@{image}"
        indexed.write_text(json.dumps({"inputs": inputs, "image": pinned}))
        return pinned

    def _write_spec(self, image: str, port: int) -> None:
        text = (_HERE / "spec.toml").read_text()
        text = text.replace('image = "ocr"', f'image = "{image}"').replace(str(_PORT), str(port))
        if port != _PORT:
            command = ["/usr/bin/python3", "/srv/ocr/server.py", "--port", str(port)]
            text = text.replace("network =", f"command = {json.dumps(command)}\nnetwork =")
        self._spec.write_text(text)

    def _start(self, *options: str, page: bytes, port: int) -> Start:
        """One launch, one real request, one stop."""
        document = json.loads(self._coldstart("launch", str(self._spec), *options, "--detach", "--json"))
        try:
            asked = time.monotonic()
            lines = read_picture(f"http://127.0.0.1:{port}/ocr", page)
            request_seconds = time.monotonic() - asked
        except OSError as error:
            raise DemoError(
                f"no answer from the server after a {document['method']} start: {error}"
            ) from error
        self._coldstart("launch", str(self._spec), "--stop", "--quiet")
        return Start.from_document(document, lines, request_seconds)

    def take_down(self) -> None:
        """End what this demo or a killed one left: the replica, its mounts, its container."""
        if self._spec.exists():
            self._coldstart("launch", str(self._spec), "--stop", absent_is_fine=True)

    def check_nothing_left(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        below = (str(_DEMO), str(self._run_folder))
        if left := [mount for mount in mounts if mount.startswith(below)]:
            raise DemoError(f"left mounted: {', '.join(left)}")
        with suppress(FileNotFoundError):
            if left := os.listdir(self._run_folder / "runc"):
                raise DemoError(f"left containers: {', '.join(left)}")

    def _coldstart(self, *arguments: str, absent_is_fine: bool = False) -> str:
        return self._execute([_COLDSTART, *arguments], 600, fine=(0, 66) if absent_is_fine else (0,))

    def _execute(self, command: Sequence[str], timeout_seconds: float, fine: Sequence[int] = (0,)) -> str:
        quiet = 66 in fine
        # a session of its own: Ctrl-C comes to this process alone, which then ends the step in order
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=self._environment,
            cwd=_CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            start_new_session=True,
            text=True,
        )
        try:
            output, complaint = child.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"no end after {timeout_seconds:g} s: {' '.join(command)}") from error
        finally:
            _end(child)
        if child.returncode not in fine:
            what = f"failed (status {child.returncode}): {' '.join(command)}"
            raise DemoError(f"{what}\n{complaint}".rstrip() if complaint else what)
        return str(output)


def _end(child: subprocess.Popen[str]) -> None:
    """TERM lets a step undo what it began; KILL ends one that does not."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextmanager
def _only_demo() -> Iterator[None]:
    _DEMO.mkdir(exist_ok=True)
    descriptor = os.open(_DEMO / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DemoError("another demo of this checkout is running") from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _run_folder() -> Path:
    """Below .demo/, unless the path of a socket there would pass the kernel's 108 bytes."""
    folder = _DEMO / "run"
    if len(os.fsencode(folder)) <= 60:
        return folder
    status = _DEMO.stat()
    return Path(f"/run/coldstart-demo-{status.st_dev:x}-{status.st_ino:x}")


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise DemoError("no free port on 127.0.0.1")


def _letters(lines: Sequence[str]) -> list[str]:
    return ["".join(line.split()) for line in lines]


def _die_with_parent(number: signal.Signals) -> None:
    """Be told when `make` is killed; without that a killed demo would go on in the background."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
