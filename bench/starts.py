"""A container's first start from a remote image, from the command until its server is ready, beside peers.

The image lies behind a link (`link.py`); nothing of it is on the host: caches are empty, the kernel's too.
The native folder is the limit: the same tree on the local disk, page cache dropped.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers
from installed import COLDSTART
from link import LAN, WAN, LinkKind
from roots import IMPORT, SERVER, TIMEOUT_SECONDS, command_in, drop_caches, run, run_in
from soci import soci_programs
from stand import (
    LAID_OUT,
    ZSTD,
    Stand,
    coldstart,
    lay_out,
    mount_command,
    native,
    prepare,
    record_trace,
    stand,
)
from table import Row
from touched import touched_bytes

_MOST_RUNS = 3
# no link at all is the third
LINKS: dict[str, LinkKind | None] = {"loopback": None, "1 ms, 1 Gbit/s": LAN, "50 ms, 200 Mbit/s": WAN}
_CROWDS = (1, 4, 16)
_GOALS = {
    "coldstart": "<= 1.6",
    "coldstart, zstd": "<= 1.6",
    "coldstart, trace": "<= 1.25",
    "coldstart, zstd, laid out by a trace": "<= 1.25",
}
# measured once: half a minute each
_SLOW = ("containerd", "ratarmount", "SOCI")


def start_rows(layout: Path, folder: Path, runs: int, workload: str = SERVER) -> list[Row]:
    """A row for each program and link, beside the native folder; then warm starts, and many at once."""
    prepare(layout, folder, with_tar=peers.ratarmount_program() is not None)
    runs = min(runs, _MOST_RUNS)
    rows = []
    for name, kind in LINKS.items():
        with stand(layout, folder, kind, workload) as made:
            record_trace(made, made.workload)
            if not (folder / "www" / LAID_OUT).exists():
                lay_out(made, layout)
            rows += _first_starts(made, name, kind, runs)
            if kind is LAN:
                if workload == SERVER:
                    rows += _small_starts(made, name, runs)
                rows += _warm_starts(made, runs)
                rows += _fetched(made)
                rows += [crowd_row(made, name, count) for count in _CROWDS]
    if soci_programs() is None:
        print("SOCI: not installed, not measured")
    return rows


def _first_starts(made: Stand, name: str, kind: LinkKind | None, runs: int) -> list[Row]:
    programs: dict[str, Callable[[Stand], float]] = {
        "coldstart": lambda made: coldstart(made, made.workload),
        "coldstart, trace": lambda made: coldstart(made, made.workload, traced=True),
        "coldstart, zstd": lambda made: coldstart(made, made.workload, store=ZSTD),
        "coldstart, zstd, laid out by a trace": lambda made: coldstart(made, made.workload, store=LAID_OUT),
    }
    if kind is WAN:
        programs["coldstart --fetch all, zstd"] = lambda made: coldstart(
            made, made.workload, "--fetch", "all", store=ZSTD
        )
    if (made.folder / "www" / "image.squashfs").exists() and shutil.which("squashfuse"):
        programs["squashfs fetched, squashfuse"] = peers.squashfuse
    if peers.ratarmount_program() and kind is LAN:
        programs["ratarmount, remote, index known"] = peers.ratarmount
    if shutil.which("containerd") and kind is LAN:
        programs["containerd pull + run"] = peers.containerd
        if soci_programs():
            programs["SOCI pull + run"] = peers.soci
    figures: dict[str, list[float]] = {program: [] for program in programs}
    limit: list[float] = []
    for number in range(runs):  # in turns: what disturbs the host disturbs all
        limit.append(native(made, made.workload))
        for program, measure in programs.items():
            if number == 0 or not program.startswith(_SLOW):
                figures[program].append(measure(made))
    without, with_trace = "<= 1.6", "<= 1.25"
    goals = (
        dict(zip(programs, (without, with_trace, without, with_trace), strict=False)) if kind is LAN else {}
    )
    return [
        Row(f"{program}, {name}", taken, limit, goals.get(program, "")) for program, taken in figures.items()
    ]


def _small_starts(made: Stand, name: str, runs: int) -> list[Row]:
    record_trace(made, IMPORT)
    limit, bare, traced = [], [], []
    for _ in range(runs):
        limit.append(native(made, IMPORT))
        bare.append(coldstart(made, IMPORT))
        traced.append(coldstart(made, IMPORT, traced=True))
    return [Row(f"import, {name}", bare, limit), Row(f"import, trace, {name}", traced, limit)]


def _warm_starts(made: Stand, runs: int) -> list[Row]:
    """The local cache has all that a start reads; the page cache nothing."""
    limit, warm, untraced = [], [], []
    record_trace(made, made.workload)
    coldstart(made, made.workload)
    for _ in range(runs):
        limit.append(native(made, made.workload))
        warm.append(coldstart(made, made.workload, warm=True, traced=True))
        untraced.append(coldstart(made, made.workload, warm=True))
    return [
        Row("warm start, cache on disk", warm, limit, "<= 1.3"),
        Row("warm start without a trace", untraced, limit, "<= 1.3"),
    ]


def _fetched(made: Stand) -> list[Row]:
    """Bytes that a first start fetches, beside those of the pages that it touches (shown as seconds)."""
    touched, local = (
        touched_bytes(made.native, made.folder, made.workload, read_ahead_kib=kib) for kib in (0, 128)
    )
    if touched is None or local is None:
        print("bytes of touched pages: not measured, no mke2fs or loop devices")
        return []
    print(
        f"touched: {touched / 1e6:.1f} MB; "
        f"a local disk with 128 KiB of read-ahead reads {local / 1e6:.1f} MB for it"
    )
    record_trace(made, made.workload)
    starts: dict[str, Callable[[], float]] = {
        "without trace": lambda: coldstart(made, made.workload),
        "with trace": lambda: coldstart(made, made.workload, traced=True),
        "zstd, without trace": lambda: coldstart(made, made.workload, store=ZSTD),
        "zstd, laid out by a trace": lambda: coldstart(made, made.workload, store=LAID_OUT),
    }
    found = []
    for what, start in starts.items():
        requests, before = made.sent()
        start()
        after_requests, after = made.sent()
        fetched = after - before
        print(
            f"fetched, {what}: {fetched / 1e6:.1f} MB in {after_requests - requests} requests, "
            f"touched {touched / 1e6:.1f} MB: {fetched / touched:.2f}"
        )
        found.append(Row(f"gigabytes fetched / touched, {what}", [fetched / 1e9], [touched / 1e9], "<= 1.25"))
    return found


def crowd_row(made: Stand, name: str, count: int) -> Row:
    """So many containers of the image at once on an empty host: until the last one is ready."""
    environment = made.environment("crowd")
    shutil.rmtree(made.folder / "crowd", ignore_errors=True)
    roots = [made.folder / f"crowd-{number}" for number in range(count)]
    for root in roots:
        root.mkdir(exist_ok=True)
    requests, before = made.sent()
    drop_caches()
    started = time.monotonic()

    def begin(root: Path) -> None:
        run(mount_command(made, root), environment)
        run_in(root, made.workload)

    with ThreadPoolExecutor(count) as pool:
        try:
            list(pool.map(begin, roots))
            ours = time.monotonic() - started
            after_requests, after = made.sent()
        finally:
            for root in roots:
                unmount = [COLDSTART, "image", "unmount", str(root), "--quiet"]
                subprocess.run(
                    unmount, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
                )
                root.rmdir()
        drop_caches()
        started = time.monotonic()
        commands = [command_in(made.native, made.workload)] * count
        list(pool.map(run, commands))
        peer = time.monotonic() - started
    print(
        f"{count} at once: {(after - before) / 1e6:.1f} MB fetched in {after_requests - requests} requests, "
        f"{ours / count:.2f} s each"
    )
    return Row(f"{count} at once, {name}", [ours], [peer])
