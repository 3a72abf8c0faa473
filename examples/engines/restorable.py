"""For authors of workers: wait to be captured, and go on in the source and in each copy.

Copy this file; it needs nothing but Python. A worker calls it once, when it is initialised and warmed up:

    import restorable

    engine = load()
    engine.pause()                      # no request under way, GPU memory parked, connections closed
    where = restorable.wait()           # "source" after the capture, "copy" after a restore
    engine.resume()
    serve(engine)

It keeps to the files of NVIDIA's Dynamo Snapshot in the folder SNAPSHOT_CONTROL_DIR (or
DYN_SNAPSHOT_CONTROL_DIR), and does nothing where neither is set.
`coldstart snap create NAME --engine sentinel` and `[engine] kind = "sentinel"` speak it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

POLL_SECONDS = 0.05
_after: list[Callable[[], object]] = []


def after_restore(call: Callable[[], object]) -> None:
    """Call this in every copy before `wait` returns: connect anew, draw new identifiers, read files again."""
    _after.append(call)


def wait(framework: str | None = None) -> str:
    """Say that the worker may be captured, and return when it is to go on; `snapshot-complete` ends it."""
    folder = os.environ.get("SNAPSHOT_CONTROL_DIR") or os.environ.get("DYN_SNAPSHOT_CONTROL_DIR")
    if not folder:
        return "source"
    os.makedirs(folder, exist_ok=True)
    boot = _incarnation()
    ready = os.path.join(folder, "ready-for-snapshot")
    with open(ready, "w") as stream:
        stream.write("ready\n")
    while not os.path.exists(os.path.join(folder, "restore-complete")):
        if os.path.exists(os.path.join(folder, "snapshot-complete")):
            sys.exit(0)
        time.sleep(POLL_SECONDS)
    with suppress(FileNotFoundError):  # in a folder of the host the source has removed it already
        os.unlink(ready)
    with open(os.path.join(folder, "restore-complete")) as stream:
        told = stream.read().strip()  # coldstart says which; whoever else wrote it does not
    where = "source" if told != "copy" and _incarnation() == boot else "copy"
    if where == "copy":
        _reseed()
        for call in _after:
            call()
    if framework is not None:
        with open(os.path.join(folder, f"{framework}-restore-ready"), "w") as stream:
            stream.write("ready\n")
    return where


def _incarnation() -> tuple[str, float]:
    """Differs in each copy: coldstart names a container's host after its id, and time goes on meanwhile."""
    # the mount namespace of a restored container is a new one, and so is the inode of its root's /proc entry
    return os.uname().nodename, float(os.stat("/proc/self/ns/mnt").st_ino)


def _reseed() -> None:
    """Copies would draw the same numbers: new seeds for Python, and numpy and torch if they are loaded."""
    random.seed(os.urandom(32))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
