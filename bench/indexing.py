"""Indexing an image beside the programs that unpack it: umoci and containerd, in turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from installed import CHECKOUT, COLDSTART
from table import Row

_TIMEOUT_SECONDS = 600


def indexing_rows(layout: Path, folder: Path, runs: int) -> list[Row]:
    """Each program starts from nothing each time; folders are emptied between the measurements."""
    ours: list[float] = []
    ours_cpu: list[float] = []
    again: list[float] = []
    packed: list[float] = []
    umoci: list[float] = []
    umoci_cpu: list[float] = []
    containerd: list[float] = []
    archive = folder / "import.tar"
    with tarfile.open(archive, "w") as stream:
        stream.add(layout, arcname=".")
    for _ in range(runs):
        store = folder / "indexed"
        index = [COLDSTART, "image", "index", f"oci:{layout}", "--name", "x", "--store", str(store)]
        for figures, cpu, command in (
            (ours, ours_cpu, index),
            (again, None, index),
            (umoci, umoci_cpu, ["umoci", "unpack", "--image", f"{layout}:latest", str(folder / "unpacked")]),
        ):
            seconds, cpu_seconds = timed(command)
            figures.append(seconds)
            if cpu is not None:
                cpu.append(cpu_seconds)
        empty(store, folder / "unpacked")
        packed.append(timed([*index, "--compression", "zstd"])[0])
        empty(store)
        if shutil.which("containerd"):
            containerd.append(imported_and_unpacked(archive, folder / "c"))
    archive.unlink()
    return [
        Row("index / umoci unpack", ours, umoci, "<= 1"),
        Row("index / umoci unpack, CPU", ours_cpu, umoci_cpu, "<= 1"),
        Row("index / containerd import + unpack", ours, containerd, "<= 1"),
        Row("index again / umoci unpack", again, umoci),
        Row("index, zstd / umoci unpack", packed, umoci),
    ]


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock and of the processors."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed with status {process.returncode}")
    return taken, usage.ru_utime + usage.ru_stime


def imported_and_unpacked(archive: Path, folder: Path) -> float:
    """A containerd of its own takes the image from a file of this host into its overlayfs snapshotter."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from fs.conformance.references import Containerd

    try:
        with Containerd.running(folder, "overlayfs"):
            command = ["ctr", "-a", str(folder / "s"), "-n", "bench", "images", "import"]
            return timed([*command, "--snapshotter", "overlayfs", "--base-name", "x", str(archive)])[0]
    finally:
        empty(folder)


def empty(*folders: Path) -> None:
    """Remove what was made, and let the disk take it before the next measurement."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def index_sizes(layout: Path, folder: Path) -> str:
    """Index and locator bytes an entry, and beside the content."""
    store = folder / "sizes"
    done = subprocess.run(
        [COLDSTART, "image", "index", f"oci:{layout}", "--name", "x", "--store", store, "--json"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    report = json.loads(done.stdout)
    empty(store)
    return (
        f"index: {report['index_bytes'] / report['entries']:.0f} bytes an entry, "
        f"{100 * report['index_bytes'] / report['content_bytes']:.2f} % of the content "
        "(goal: <= 120 bytes or <= 0.2 %)"
    )
