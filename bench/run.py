"""Timings of coldstart beside a peer in the same run; see bench/README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from indexing import index_sizes, indexing_rows
from installed import CHECKOUT, COLDSTART, PYTHON, own_environment
from planning import planning_rows
from replay import replay_rows
from snapshots import all_snapshot_rows
from stand import image_server
from starts import start_rows
from table import Row, show
from torch_image import IMPORT_TORCH, torch_layout

LAYOUT = CHECKOUT / ".demo" / "image"
TORCH_LAYOUT = CHECKOUT / ".bench" / "torch-image"
IMPORT = "import numpy, cv2"


class Bench:
    def __init__(self, folder: Path, runs: int) -> None:
        self.folder = folder
        self.runs = runs
        self.mountpoint = folder / "mnt"
        self.mountpoint.mkdir()
        self.environment = own_environment(folder, folder / "run")

    def coldstart(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            [COLDSTART, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"bench: coldstart {' '.join(arguments)} failed: {done.stderr}")
        return done.stdout

    def timed(self, command: list[str]) -> float:
        started = time.monotonic()
        subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=600,
            check=True,
        )
        return time.monotonic() - started

    def repeat(self, measure: Callable[[], float]) -> list[float]:
        return [measure() for _ in range(self.runs)]

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        self.coldstart("image", "mount", "ocr", str(self.mountpoint), "--detach", "--dev", "--suid")
        try:
            yield self.mountpoint
        finally:
            self.coldstart("image", "unmount", str(self.mountpoint))

    def on_mount(self, measure: Callable[[Path], float], *, empty_cache: bool = False) -> list[float]:
        """One measurement a mount: the kernel keeps nothing of the one before."""

        def once() -> float:
            if empty_cache:
                shutil.rmtree(self.folder / "cache", ignore_errors=True)
            with self.mounted() as root:
                return measure(root)

        return self.repeat(once)

    # --- rows ---

    def help(self) -> Row:
        return Row(
            "help",
            self.repeat(lambda: self.timed([COLDSTART, "--help"])),
            self.repeat(lambda: self.timed([PYTHON, "-c", "pass"])),
            "<= 8",
        )

    def index_open(self) -> Row:
        tree = self.folder / "many"
        for number in range(200):
            (tree / f"{number:03}").mkdir(parents=True)
            for entry in range(1000):
                os.mknod(tree / f"{number:03}" / f"entry-{entry:04}", 0o100644)
        report = json.loads(self.coldstart("image", "index", f"dir:{tree}", "--name", "many", "--json"))
        shutil.rmtree(tree)
        path = (
            self.folder / "state" / "store" / "images" / f"{report['digest'].removeprefix('blake3:')}.index"
        )
        code = (
            "import sys, time, pathlib; from coldstart_fs.format.index import Index; a = time.perf_counter();"
            "Index.open(pathlib.Path(sys.argv[1])); print(time.perf_counter() - a)"
        )

        def once() -> float:
            done = subprocess.run(
                [PYTHON, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=True
            )
            return float(done.stdout)

        return Row("index open, 200,000 entries", self.repeat(once), [], "<= 5 ms")

    def mount(self) -> list[Row]:
        def once() -> float:
            started = time.monotonic()
            with self.mounted() as root:
                os.stat(root / "usr")
                return time.monotonic() - started

        plain = self.repeat(once)
        with image_server(self.environment):
            forked, inside = self.repeat(once), self.mounts_inside()
        return [
            Row("mount to first stat", plain, [], "<= 0.6 s"),
            Row("mount to first stat, image serve", forked, plain),
            Row("the same without the command's start", inside, plain),
        ]

    def mounts_inside(self) -> list[float]:
        """Mounts of a process that has started long ago, as a launcher of containers is."""
        code = """
import json, os, sys, time
from pathlib import Path
from coldstart_fs.mounts.mount import MountRequest, mount_detached, unmount
folder, point = Path(sys.argv[1]), Path(sys.argv[2])
request = MountRequest("ocr", point, str(folder / "state/store"), folder / "cache", folder / "run")
taken = []
for _ in range(int(sys.argv[3])):
    started = time.monotonic()
    mount_detached(request)
    os.stat(point / "usr")
    taken.append(time.monotonic() - started)
    unmount(point, run_folder=folder / "run")
print(json.dumps(taken))
"""
        done = subprocess.run(
            [PYTHON, "-c", code, str(self.folder), str(self.mountpoint), str(self.runs)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        taken: list[float] = json.loads(done.stdout)
        return taken

    def find(self, native: Path) -> list[Row]:
        again: list[float] = []

        def first(root: Path) -> float:
            taken = self.timed(["find", str(root), "-ls"])
            again.append(self.timed(["find", str(root), "-ls"]))
            return taken

        ours = self.on_mount(first)
        peer = self.repeat(lambda: self.timed(["find", str(native), "-ls"]))
        return [Row("find, first", ours, peer), Row("find, again", again, peer)]

    def read(self, native: Path) -> list[Row]:
        large = [
            path.relative_to(native) for path in native.rglob("*") if path.is_file() and not path.is_symlink()
        ]
        large = sorted(path for path in large if (native / path).stat().st_size > 1 << 20)
        hot: list[float] = []

        def all_of(root: Path) -> float:
            return self.timed(["cat", *(str(root / path) for path in large)])

        def warm_then_hot(root: Path) -> float:
            taken = all_of(root)
            hot.append(all_of(root))
            return taken

        peer = self.repeat(lambda: all_of(native))
        cold = self.on_mount(all_of, empty_cache=True)
        warm = self.on_mount(warm_then_hot)
        size = sum((native / path).stat().st_size for path in large) / 1e6
        label = f"read {size:.0f} MB"
        return [
            Row(f"{label}, cold", cold, peer),
            Row(f"{label}, warm", warm, peer),
            Row(f"{label}, hot", hot, peer),
        ]

    def imports(self, native: Path) -> Row:
        def start(root: Path) -> float:
            return self.timed(["chroot", str(root), "/usr/bin/python3", "-B", "-c", IMPORT])

        return Row("import, warm", self.on_mount(start), self.repeat(lambda: start(native)), "<= 1.3")

    def launch(self) -> list[Row]:
        spec = self.folder / "spec.toml"
        spec.write_text((CHECKOUT / "examples" / "ocr" / "spec.toml").read_text())

        def once(*options: str) -> float:
            document = json.loads(self.coldstart("launch", str(spec), *options, "--detach", "--json"))
            self.coldstart("launch", str(spec), "--stop")
            return float(document["total_seconds"])

        once("--cold", "--snapshot-when-ready")
        cold, restored = [], []
        for _ in range(self.runs):
            restored.append(once("--no-fallback"))
            cold.append(once("--cold"))
        return [Row("launch, restored / cold", restored, cold, "<= 0.33")]


def health_rows(folder: Path, runs: int) -> list[Row]:
    """`health quick` on eight GPUs of the tests' driver, beside a bare read of all they say."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from stand_ins.gpu_driver import GpuDriver

    place = folder / "health"
    place.mkdir()
    bench = Bench(place, runs)
    driver = GpuDriver(place)
    # the machine's own figures must not decide the exit status
    limits = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}
    bench.environment |= driver.environment | limits
    probe = [PYTHON, "-P", "-m", "coldstart_host.gpu_probe", "30"]
    quick = bench.repeat(lambda: bench.timed([COLDSTART, "health", "quick"]))
    return [Row("health quick, 8 GPUs", quick, bench.repeat(lambda: bench.timed(probe)), "<= 2 s more")]


def serving_rows(layout: Path, folder: Path, runs: int) -> list[Row]:
    bench = Bench(folder, runs)
    bench.coldstart("image", "index", f"oci:{layout}", "--name", "ocr")
    subprocess.run(
        ["umoci", "unpack", "--image", f"{layout}:latest", folder / "native"],
        check=True,
        timeout=600,
        capture_output=True,
    )
    native = folder / "native" / "rootfs"
    rows = [bench.help(), bench.index_open(), *bench.mount(), *bench.find(native), *bench.read(native)]
    return [*rows, bench.imports(native), *bench.launch()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parts = ["all", "health", "indexing", "serving", "starts", "snapshots", "replay", "plan"]
    parser.add_argument("--part", choices=parts, default="all")
    parser.add_argument("--torch", action="store_true", help="first starts of the image with torch, too")
    parser.add_argument("--image", type=Path, default=LAYOUT, help="OCI layout with the tag `latest`")
    arguments = parser.parse_args()
    layout: Path = arguments.image
    if layout == LAYOUT and arguments.part not in {"health", "replay", "plan"}:
        build = CHECKOUT / "examples" / "ocr" / "build-image.sh"
        subprocess.run([build, LAYOUT], check=True, timeout=1800)
    runs = max(1, arguments.runs)
    with tempfile.TemporaryDirectory(prefix="coldstart-bench-", dir="/var/tmp") as name:
        rows: list[Row] = []
        if arguments.part in {"all", "health"}:
            rows += health_rows(Path(name), runs)
        if arguments.part in {"all", "indexing"}:
            rows += indexing_rows(layout, Path(name), runs)
            print(index_sizes(layout, Path(name)))
        if arguments.part in {"all", "serving"}:
            rows += serving_rows(layout, Path(name), runs)
        if arguments.part in {"all", "starts"}:
            place = Path(name) / "starts"
            place.mkdir()
            rows += start_rows(layout, place, runs)
            if arguments.torch:
                place = Path(name) / "torch"
                place.mkdir()
                rows += start_rows(torch_layout(layout, TORCH_LAYOUT), place, runs, IMPORT_TORCH)
        if arguments.part in {"all", "snapshots"}:
            place = Path(name) / "snapshots"
            place.mkdir()
            rows += all_snapshot_rows(layout, place, runs)
        if arguments.part in {"all", "replay"}:
            rows += replay_rows(COLDSTART, Path(name), runs)
        if arguments.part in {"all", "plan"}:
            place = Path(name) / "plan"
            place.mkdir()
            rows += planning_rows(place, runs)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
