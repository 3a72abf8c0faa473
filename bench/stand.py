"""One image in every form that the programs want, its servers behind a link, and our mounts of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from installed import CHECKOUT, COLDSTART, own_environment
from link import LinkKind, link
from roots import drop_caches, run, run_in

PLAIN, ZSTD, LAID_OUT = "store", "store-zstd", "store-laid-out"
"""Stores of the image: as it is, with zstd, and with zstd in the order of a start that was recorded."""


@dataclass
class Stand:
    """One image in every form that the programs want, served over HTTP and by a registry."""

    folder: Path
    native: Path
    http: str
    registry: str
    access_log: Path
    workload: str
    """What Python runs in the container: the start that is measured."""

    @property
    def run_folder(self) -> Path:
        """In memory, as /run is on hosts."""
        return Path("/dev/shm") / f"coldstart-{self.folder.parent.name}-{self.folder.name}"

    def environment(self, name: str) -> dict[str, str]:
        """A cache and a state that nothing was in before; the host's server is one for all."""
        return own_environment(self.folder / name, self.run_folder)

    def sent(self) -> tuple[int, int]:
        """Requests that the web server has answered so far, and bytes of bodies."""
        lines = self.access_log.read_text().splitlines() if self.access_log.exists() else []
        return len(lines), sum(int(line.split('"')[2].split()[1]) for line in lines)


@contextmanager
def stand(layout: Path, folder: Path, kind: LinkKind | None, workload: str) -> Iterator[Stand]:
    """Servers of this host, behind the link."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from fs.registry import running_registry
    from fs.servers import nginx

    with ExitStack() as stack:
        web = stack.enter_context(nginx(folder / "nginx", folder / "www"))
        registry = stack.enter_context(running_registry(folder / f"registry-{uuid4().hex[:6]}"))
        registry.push(f"oci:{layout}:latest", "bench:latest")
        addresses = [web.url.removeprefix("http://"), registry.address]
        if kind is not None:
            addresses = [stack.enter_context(link(address, kind)) for address in addresses]
        native = folder / "native" / "rootfs"
        made = Stand(folder, native, f"http://{addresses[0]}", addresses[1], web.access_log, workload)
        stack.callback(shutil.rmtree, made.run_folder, ignore_errors=True)
        stack.enter_context(image_server(made.environment("server")))
        yield made


@contextmanager
def image_server(environment: dict[str, str]) -> Iterator[None]:
    """`image serve`, as its unit keeps it on a host; containerd and SOCI have their daemons, too."""
    process = subprocess.Popen(
        [COLDSTART, "image", "serve", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():  # it says so once it listens
            raise SystemExit("bench: `image serve` does not start")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def prepare(layout: Path, folder: Path, *, with_tar: bool) -> None:
    """The image as stores, a squashfs, a tar and a folder."""
    www = folder / "www"
    www.mkdir()
    for store, compression in ((PLAIN, "none"), (ZSTD, "zstd")):
        run(_index_command(layout, www / store, compression))
    run(["umoci", "unpack", "--image", f"{layout}:latest", str(folder / "native")])
    root = str(folder / "native" / "rootfs")
    if shutil.which("mksquashfs"):
        squashfs = ["mksquashfs", root, str(www / "image.squashfs")]
        run([*squashfs, "-comp", "zstd", "-quiet", "-no-progress"])
    if with_tar:
        run(["tar", "-C", root, "-cf", str(www / "image.tar"), "."])
    run(["chmod", "-R", "a+rX", str(www)])


def lay_out(made: Stand, layout: Path) -> None:
    """The third store, whose trace comes with the image: of the start that was recorded last."""
    trace = next((made.folder / "traced" / "state" / "traces").rglob("*.trace"))
    store = made.folder / "www" / LAID_OUT
    shutil.rmtree(store, ignore_errors=True)
    run([*_index_command(layout, store, "zstd"), "--trace", str(trace)])
    run(["chmod", "-R", "a+rX", str(store)])


def _index_command(layout: Path, store: Path, compression: str) -> list[str]:
    index = [COLDSTART, "image", "index", f"oci:{layout}", "--name", "bench", "--store", str(store)]
    return [*index, "--compression", compression]


def native(made: Stand, code: str) -> float:
    """The limit: the tree on the disk of this host."""
    drop_caches()
    started = time.monotonic()
    run_in(made.native, code)
    return time.monotonic() - started


def coldstart(
    made: Stand, code: str, *options: str, traced: bool = False, warm: bool = False, store: str = PLAIN
) -> float:
    """An empty cache, unless `warm`, and a state that has at most the trace of an earlier start."""
    environment = made.environment("traced" if traced else f"bare-{store}")
    if not warm:
        shutil.rmtree(environment["COLDSTART_CACHE_DIR"], ignore_errors=True)
    if not traced:
        shutil.rmtree(environment["COLDSTART_STATE_DIR"], ignore_errors=True)
    drop_caches()
    started = time.monotonic()
    with _mounted(made, environment, *options, store=store) as root:
        run_in(root, code)
        return time.monotonic() - started


def record_trace(made: Stand, code: str) -> None:
    """One start whose reads are remembered; the cache has what it read."""
    environment = made.environment("traced")
    shutil.rmtree(made.folder / "traced", ignore_errors=True)
    with _mounted(made, environment) as root:
        run_in(root, code)


def mount_command(made: Stand, root: Path, *options: str, store: str = PLAIN) -> list[str]:
    mount = [COLDSTART, "image", "mount", "bench", str(root), "--store", f"{made.http}/{store}", "--detach"]
    return [*mount, "--dev", "--suid", *options]


@contextmanager
def _mounted(made: Stand, environment: dict[str, str], *options: str, store: str = PLAIN) -> Iterator[Path]:
    root = made.folder / "mnt"
    root.mkdir(exist_ok=True)
    run(mount_command(made, root, *options, store=store), environment)
    try:
        yield root
    finally:
        run([COLDSTART, "image", "unmount", str(root)], environment)
