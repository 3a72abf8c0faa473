"""coldstart image trace list: the traces of this host and of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_commands import image_texts, image_traces
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.format.trace import Trace
    from coldstart_fs.traces.inventory import ListedTrace

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Only the traces of this image.", show_default=False)
]


@coldstart_command("store", "cache_dir")
def command(shell: Shell, name: NameArgument = None) -> None:
    """List traces: those recorded on this host, and those published in the store beside their images."""
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.traces.inventory import list_traces

    printer = shell.printer
    traces, problems = list_traces(image_traces.desk(shell), name)
    for problem in problems:
        printer.warning(problem)
    for listed in traces:
        if listed.problem is not None:
            printer.warning(listed.problem)
    if traces:
        printer.table(
            ["IMAGE", "DIGEST", "WORKLOAD", "PLACE", "RUNS", "READS", "FILES", "LOOKUPS", "TIME"],
            [_row(listed) for listed in traces],
            right=[4, 5, 6, 7, 8],
        )
    else:
        printer.answer("no trace was recorded or published")
    documents = [
        {
            "name": listed.name,
            "image": digest_text(listed.image),
            "workload": listed.workload,
            "place": listed.place,
            "problem": listed.problem,
            "trace": None if listed.trace is None else image_traces.describe(listed.trace),
        }
        for listed in traces
    ]
    document: dict[str, Any] = {"traces": documents, "problems": list(problems)}
    printer.document("image.trace.list", 1, document)


def _row(listed: ListedTrace) -> list[str]:
    from coldstart_fs.format.names import digest_text

    start = [listed.name or "-", digest_text(listed.image)[:19], listed.workload, listed.place]
    return start + (["damaged", "", "", "", ""] if listed.trace is None else _numbers(listed.trace))


def _numbers(trace: Trace) -> list[str]:
    return [
        image_traces.runs(trace),
        image_texts.size(trace.size_bytes),
        f"{len({read.path for read in trace.reads}):,}",
        f"{len(trace.lookups):,}",
        f"{trace.seconds:.1f} s",
    ]
