"""Other programs that start a container from a remote image, and how long each takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roots import TIMEOUT_SECONDS, drop_caches, peer_program, run, run_in
from soci import first_start
from stand import Stand


def containerd(made: Stand) -> float:
    """A containerd of its own, with nothing in it, pulls and runs."""
    from fs.conformance.references import Containerd

    place = made.folder / "c"
    reference = f"{made.registry}/bench:latest"
    try:
        with Containerd.running(place, "overlayfs"):
            drop_caches()
            ctr = ["ctr", "-a", str(place / "s"), "-n", "bench"]
            started = time.monotonic()
            run([*ctr, "images", "pull", "--plain-http", reference])
            run([*ctr, "run", "--rm", reference, "bench", "/usr/bin/python3", "-B", "-c", made.workload])
            return time.monotonic() - started
    finally:
        shutil.rmtree(place, ignore_errors=True)


def soci(made: Stand) -> float:
    return first_start(f"{made.registry}/bench:latest", made.folder, made.workload)


def squashfuse(made: Stand) -> float:
    """The whole image fetched by curl, then served by squashfuse."""
    place, image = made.folder / "squash", made.folder / "fetched.squashfs"
    place.mkdir(exist_ok=True)
    drop_caches()
    started = time.monotonic()
    run(["curl", "-sf", "-o", str(image), f"{made.http}/image.squashfs"])
    run(["squashfuse", "-o", "allow_other", str(image), str(place)])
    try:
        run_in(place, made.workload)
        return time.monotonic() - started
    finally:
        run(["umount", str(place)])
        image.unlink()


def ratarmount_program() -> str | None:
    """`.bench/bin/ratarmount` (a venv of its own, with fsspec, aiohttp and requests), or that of PATH."""
    return peer_program("ratarmount")


def ratarmount(made: Stand) -> float:
    """The tar read over HTTP; its index was made before, as ours was."""
    program = ratarmount_program()
    assert program is not None
    place, index = made.folder / "ratar", made.folder / "ratar.index"
    place.mkdir(exist_ok=True)
    if not index.exists():
        with _ratarmount(
            [program, "--index-file", str(index), str(made.folder / "www" / "image.tar")], place
        ):
            pass
    drop_caches()
    started = time.monotonic()
    with _ratarmount([program, "--index-file", str(index), f"{made.http}/image.tar"], place):
        run_in(place, made.workload)
        return time.monotonic() - started


@contextmanager
def _ratarmount(command: list[str], place: Path) -> Iterator[None]:
    options = ["-f", "-o", "allow_other", "--no-verify-mtime"]
    process = subprocess.Popen(
        [command[0], *options, *command[1:], str(place)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not os.path.ismount(place):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"bench: ratarmount does not mount: {' '.join(command)}")
            time.sleep(0.005)
        yield
    finally:
        subprocess.run(["fusermount3", "-u", str(place)], capture_output=True, timeout=60, check=False)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
