"""SOCI as a peer: a containerd whose snapshotter fetches an image's layers lazily.

Run in namespaces of its own, with a folder bound over /var/lib, where SOCI keeps its things whatever it is
told; every mount and process ends with them. The SOCI index is on this host before: version 0.4 asks
registries for it over TLS only, and the bench's has none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installed import CHECKOUT
from roots import TIMEOUT_SECONDS, drop_caches, peer_program, run

_PROGRAMS = ("soci", "soci-snapshotter-grpc")
_NAMESPACE = "bench"
_APART = 'mount --bind "$0" /var/lib && exec "$@"'


def soci_programs() -> tuple[str, str] | None:
    """The command and its snapshotter: those of `.bench/bin`, or of PATH."""
    soci, snapshotter = map(peer_program, _PROGRAMS)
    return (soci, snapshotter) if soci and snapshotter else None


def first_start(reference: str, folder: Path, workload: str) -> float:
    """Seconds from a pull by a containerd that has nothing until the workload is done."""
    place = folder / "soci"
    library = place / "lib"
    library.mkdir(parents=True)
    # whatever happens, its processes end with the first of them
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    inside = [*apart, "sh", "-c", _APART, str(library), sys.executable, __file__]
    try:
        done = subprocess.run(
            [*inside, reference, str(place), workload],
            stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
        return float(done.stdout)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _main(reference: str, place: Path, workload: str) -> None:
    sys.path.insert(0, str(CHECKOUT / "tests"))
    programs = soci_programs()
    assert programs is not None
    soci, snapshotter = programs
    digest = _index(soci, reference, place / "i")
    with _snapshotting(snapshotter, place / "c") as (socket, log):
        drop_caches()
        started = time.monotonic()
        options = ["-a", socket, "-n", _NAMESPACE]
        pull = ["image", "rpull", "--plain-http", "--soci-index-digest", digest, reference]
        run([soci, *options, *pull])
        container = ["run", "--rm", "--snapshotter", "soci", reference, "bench"]
        run(["ctr", *options, *container, "/usr/bin/python3", "-B", "-c", workload])
        seconds = time.monotonic() - started
        if "as local snapshot" in log.read_text():
            raise SystemExit(f"bench: SOCI fetched a layer whole: {log.read_text()[-2000:]}")
        print(seconds)


def _index(soci: str, reference: str, place: Path) -> str:
    """The digest of the image's SOCI index, which is left where the snapshotter looks first."""
    from fs.conformance.references import Containerd

    with Containerd.running(place):
        options = ["-a", str(place / "s"), "-n", _NAMESPACE]
        run(["ctr", *options, "content", "fetch", "--plain-http", reference])
        run([soci, *options, "create", reference])
        listed = subprocess.run(
            [soci, *options, "index", "list", "--quiet"],
            stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    return listed.stdout.split()[0]


@contextmanager
def _snapshotting(program: str, place: Path) -> Iterator[tuple[str, Path]]:
    """The socket of an empty containerd with a snapshotter of its own, and that one's log."""
    from coldstart_cli.process import kill_group, start
    from conftest import wait_until
    from fs.conformance.references import Containerd

    socket, log = place / "soci.s", place / "soci.log"
    with Containerd.running(place, "overlayfs", proxy=("soci", socket)):
        (place / "soci.toml").touch()
        with log.open("wb") as stream:
            process = start([program, "--address", socket, "--config", place / "soci.toml"], log=stream)
        try:
            wait_until(socket.exists, "the SOCI snapshotter listens")
            yield str(place / "s"), log
        finally:
            kill_group(process)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
