"""coldstart image status: live mounts of this host, and what crashed servers left."""

from __future__ import annotations

from typing import Any

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.image_mount import describe
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command()
def command(shell: Shell) -> None:
    """List the images mounted on this host, with what their servers have read since they started.

    A mount whose server died is listed as dead, and the exit status is 3: `image unmount --stale` cleans
    up.
    """
    from coldstart_fs.records import all_records, read_counters

    printer, run_folder = shell.printer, shell.config.run_folder
    mounts, rows = [], []
    for folder, record in all_records(run_folder):
        counters, serving = read_counters(folder), record.server_lives()
        mounts.append({**describe(record), "serving": serving, "counters": counters})
        rows.append(
            [
                str(record.mountpoint),
                record.name,
                record.image[:19],
                "serving" if serving else "dead",
                str(record.server_pid),
                *_served(counters),
            ]
        )
        if failed := counters.get("failed_requests"):
            printer.warning(f"{failed} requests failed at {record.mountpoint}: see {folder / 'log'}")
        if failure := counters.get("cache_failure"):
            printer.warning(f"cache of {record.mountpoint} cannot keep chunks: {failure}")
    if rows:
        headings = ["MOUNTPOINT", "IMAGE", "DIGEST", "STATE", "PID", "FROM CACHE", "FROM STORE", "FAILED"]
        printer.table(headings, rows, right=[4, 5, 6, 7])
    else:
        printer.answer("no image is mounted")
    printer.document("image.status", 1, {"mounts": mounts})
    dead = [mount["mountpoint"] for mount in mounts if not mount["serving"]]
    if dead:
        raise NegativeAnswer(f"image server died: {dead[0]}", hint="coldstart image unmount --stale")


def _served(counters: dict[str, Any]) -> list[str]:
    return [str(counters.get(key, 0)) for key in ("cache_chunks", "store_chunks", "failed_requests")]
