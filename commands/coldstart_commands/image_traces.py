"""What the commands of `image trace` have in common: where traces are, and how one is described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_commands import image_texts
from coldstart_commands.shell import Shell

if TYPE_CHECKING:
    from coldstart_fs.format.trace import Trace
    from coldstart_fs.traces.find import TraceDesk

DEFAULT_WORKLOAD = "default"
TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace's file, or the name of an image: its trace on this host and in the store.",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    str,
    typer.Option("--workload", metavar="WORKLOAD", help="Which use of the image, as `image mount` named it."),
]


def desk(shell: Shell) -> TraceDesk:
    """Where traces of this host and of the configured store are."""
    from coldstart_fs.traces.find import TraceDesk

    config = shell.config
    return TraceDesk(config.state_folder, config.store, config.cache_folder, shell.printer.warning)


def describe(trace: Trace) -> dict[str, Any]:
    """A trace in numbers, for JSON documents."""
    from coldstart_fs.format.names import digest_text

    return {
        "image": digest_text(trace.image),
        "workload": trace.workload,
        "runs": trace.runs,
        "partial_runs": trace.partial_runs,
        "size_bytes": trace.size_bytes,
        "files": len({read.path for read in trace.reads}),
        "ranges": len(trace.reads),
        "lookups": len(trace.lookups),
        "seconds": trace.seconds,
    }


def runs(trace: Trace) -> str:
    """How many recordings, for people: `3`, or `3 + 20 partial`."""
    return f"{trace.runs} + {trace.partial_runs} partial" if trace.partial_runs else str(trace.runs)


def short(trace: Trace) -> str:
    """A trace in one line: size, files and lookups."""
    files = image_texts.count(len({read.path for read in trace.reads}), "file")
    return (
        f"{image_texts.size(trace.size_bytes)} of {files}, {image_texts.count(len(trace.lookups), 'lookup')}"
    )


def replay_line(counters: dict[str, Any]) -> str | None:
    """What a mount's replay did, from its counters; None when there was none."""
    trace = counters.get("trace") or {}
    replay, coverage = trace.get("replay"), trace.get("coverage") or {}
    if trace.get("problem"):
        return f"trace is not replayed: {trace['problem']}"
    if replay is None:
        return None
    size = image_texts.size
    place = "page cache" if replay["mode"] == "pages" else "local cache"
    brought = replay["pushed_bytes"] if replay["mode"] == "pages" else coverage.get("prefetched_bytes", 0)
    parts = [f"{size(brought)} of {size(replay['planned_bytes'])} into the {place}"]
    if coverage.get("missed_bytes") is not None:
        parts.append(f"{size(coverage['missed_bytes'])} missed")
    if coverage.get("used_bytes") is not None:
        parts.append(f"{size(coverage['used_bytes'])} used, {size(coverage['in_vain_bytes'])} in vain")
    state = "" if replay["state"] == "done" else f" ({replay['state']})"
    return f"trace `{trace['workload']}` replayed{state}: {', '.join(parts)}"
