"""coldstart image status: live mounts of this host, and what crashed servers left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import NegativeAnswer, UsageError
from coldstart_cli.notify import notify
from coldstart_commands import image_metrics, image_traces
from coldstart_commands.image_mount import describe
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.mounts.records import MountRecord
    from coldstart_fs.mounts.server_records import ServerRecord


@coldstart_command()
def command(
    shell: Shell,
    prometheus: Annotated[
        Path | None,
        typer.Option("--prometheus", metavar="FILE", help="Also write a textfile for the node exporter."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Stay, and answer GET /metrics as Prometheus asks it."
        ),
    ] = None,
) -> None:
    """List the images mounted on this host, with what their servers have read since they started.

    A mount that nobody serves is listed as dead, and the exit status is 3: `image unmount --stale` cleans
    up. It is 3 too for one whose server is stopped, as by SIGSTOP: who reads there waits. One whose keeper
    died or is stopped is served, but unprotected: `image mount --replace` gives it another.
    """
    from coldstart_commands.image_tiers import HEADINGS, tier_rows
    from coldstart_fs.mounts.records import all_records
    from coldstart_fs.mounts.server_records import read_counters

    printer, run_folder = shell.printer, shell.config.run_folder
    if listen is not None:
        _answer_scrapes(shell, listen, prometheus)
        return
    mounts, rows, traced = [], [], []
    tiers: list[list[str]] = []
    records = [record for _, record in all_records(run_folder)]
    for record in records:
        counters, server = read_counters(record.server_folder), record.server()
        serving, state = record.server_lives(), _state(server)
        mounts.append(
            {
                **describe(record),
                "serving": serving,
                "stopped": server is not None and server.is_stopped(),
                "protected": server is not None and server.is_protected(),
                "failure": None if server is None else server.failure,
                "sharing": [] if server is None else sorted(_others(record, records)),
                "counters": counters,
            }
        )
        rows.append(
            [
                str(record.mountpoint),
                record.name,
                record.image[:19],
                state,
                str(0 if server is None else server.server.pid),
                str(0 if server is None else server.restarts),
                *_served(counters),
            ]
        )
        traced += [
            f"{record.mountpoint}: {line}"
            for line in (image_traces.replay_line(counters), _fetch_line(counters))
            if line is not None
        ]
        tiers += tier_rows(str(record.mountpoint), counters)
        for trouble in _troubles(record, state, counters):
            printer.warning(trouble)
    if rows:
        headings = ["MOUNTPOINT", "IMAGE", "DIGEST", "STATE", "PID", "RESTARTS"]
        headings += ["FROM CACHE", "FETCHED", "FAILED"]
        printer.table(headings, rows, right=[4, 5, 6, 7, 8])
        for line in traced:
            printer.answer(line)
        if tiers:
            printer.table(list(HEADINGS), tiers, right=[3, 4, 6, 7])
    else:
        printer.answer("no image is mounted")
    if prometheus is not None:
        from coldstart_cli.prometheus import write_textfile
        from coldstart_fs.mounts.metrics import mount_metrics

        write_textfile(prometheus, mount_metrics(run_folder))
    printer.document("image.status", 1, {"mounts": mounts})
    dead = [mount["mountpoint"] for mount in mounts if not mount["serving"]]
    if dead:
        raise NegativeAnswer(f"image server died: {dead[0]}", hint="coldstart image unmount --stale")
    stopped = [mount["mountpoint"] for mount in mounts if mount["stopped"]]
    if stopped:
        hint = (
            "`kill -CONT` of its pid lets it go on, `coldstart image mount --replace` gives the mount another"
        )
        raise NegativeAnswer(f"image server is stopped, and reads wait: {stopped[0]}", hint=hint)


def _fetch_line(counters: dict[str, Any]) -> str | None:
    """What became of fetching everything; None for a mount that fetches on demand."""
    fetch = counters.get("fetch") or {}
    brought, missing = fetch.get("brought_bytes", 0), fetch.get("missing_bytes", 0)
    why = f": {fetch['reason']}" if fetch.get("reason") else ""
    if fetch.get("state") == "fetching":
        return f"fetching everything, {brought} of {missing} bytes{why}"
    if fetch.get("state") == "whole" and brought:
        return f"everything is fetched{why}"
    return f"not everything is fetched{why}" if fetch.get("state") in {"refused", "failed"} else None


def _troubles(record: MountRecord, state: str, counters: dict[str, Any]) -> Iterator[str]:
    from coldstart_commands.image_tiers import tier_troubles
    from coldstart_fs.mounts.server_records import log_path

    if state == "unprotected":
        server = record.server()
        how = "is stopped" if server is not None and server.keeper.is_stopped() else "died"
        yield (
            f"keeper of {record.mountpoint} {how}: the death of its server would end the mount; "
            "`coldstart image mount --replace` gives it another"
        )
    if failed := counters.get("failed_requests"):
        yield f"{failed} requests failed at {record.mountpoint}: see {log_path(record.server_folder)}"
    if failure := counters.get("cache_failure"):
        yield f"cache of {record.mountpoint} cannot keep chunks: {failure}"
    yield from tier_troubles(str(record.mountpoint), counters)


def _answer_scrapes(shell: Shell, listen: str, prometheus: Path | None) -> None:
    if prometheus is not None:
        raise UsageError("options exclude each other: --prometheus and --listen")

    def ready(where: str) -> None:
        shell.printer.note(f"answering http://{where}/metrics")
        notify("READY=1", f"STATUS=metrics at {where}")

    image_metrics.serve_metrics(image_metrics.parse_listen(listen), shell.config.run_folder, ready)


def _state(server: ServerRecord | None) -> str:
    if server is None or not server.lives():
        return "dead"
    if server.is_stopped():
        return "stopped"
    return "serving" if server.is_protected() else "unprotected"


def _others(record: MountRecord, records: list[MountRecord]) -> list[str]:
    """Mount points that the same server serves."""
    return [
        str(other.mountpoint)
        for other in records
        if other.server_folder == record.server_folder and other is not record
    ]


def _served(counters: dict[str, Any]) -> list[str]:
    return [str(counters.get(key, 0)) for key in ("cache_chunks", "store_chunks", "failed_requests")]
