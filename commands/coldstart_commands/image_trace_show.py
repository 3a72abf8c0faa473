"""coldstart image trace show: what a start reads, when, and of what."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands import image_texts, image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, TraceArgument, WorkloadOption
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.format.trace import Trace
    from coldstart_fs.traces.summary import Summary

TopOption = Annotated[
    int, typer.Option("--top", metavar="N", min=0, help="How many of the biggest files are listed.")
]
_BAR = 40


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell, trace: TraceArgument, workload: WorkloadOption = DEFAULT_WORKLOAD, top: TopOption = 10
) -> None:
    """Show a trace: its totals, its timeline, and the files of which most is read."""
    from coldstart_fs.traces.summary import summarize

    printer = shell.printer
    found = image_traces.desk(shell).find(trace, workload)
    summary = summarize(found.trace, listed=top)
    rows = [
        *_totals(found.trace, found.places, summary),
        *_timeline(summary),
        *_biggest(summary),
    ]
    for label, value in rows:
        printer.answer(f"{label:<16}{value}".rstrip())
    if printer.json_output:
        document = image_traces.describe(found.trace) | {
            "places": list(found.places),
            "lookups": summary.lookups,
            "step_seconds": summary.step_seconds,
            "steps": [asdict(step) for step in summary.steps],
            "biggest": [
                image_texts.texts(path=file.path) | {k: v for k, v in asdict(file).items() if k != "path"}
                for file in summary.biggest
            ],
        }
        printer.document("image.trace.show", 1, document)


def _totals(trace: Trace, places: tuple[str, ...], summary: Summary) -> list[tuple[str, str]]:
    from coldstart_fs.format.names import digest_text

    count = image_texts.count
    ranges = f"{count(summary.ranges, 'range')} of {count(summary.files, 'file')}"
    lookups = ", ".join(f"{number:,} {kind}" for kind, number in summary.lookups.items())
    return [
        ("image", digest_text(trace.image)),
        ("workload", trace.workload),
        *(("from" if number == 0 else "", place) for number, place in enumerate(places)),
        ("recordings", image_traces.runs(trace)),
        ("reads", f"{image_texts.size(summary.size_bytes)} in {ranges}"),
        ("lookups", lookups),
        ("time", f"{summary.seconds:.2f} s from the first request to the last new one"),
    ]


def _timeline(summary: Summary) -> list[tuple[str, str]]:
    most = max((step.size_bytes for step in summary.steps), default=0)
    rows = []
    for number, step in enumerate(summary.steps):
        bar = "#" * round(step.size_bytes / most * _BAR) if most else ""
        numbers = (
            f"{step.seconds:>7.2f} s  {image_texts.size(step.size_bytes):>9}  {step.lookups:>6,} lookups"
        )
        rows.append(("timeline" if number == 0 else "", f"{numbers}  {bar}".rstrip()))
    return rows


def _biggest(summary: Summary) -> list[tuple[str, str]]:
    return [
        (
            "biggest files" if number == 0 else "",
            f"{image_texts.size(file.size_bytes):>9}  {file.seconds:>7.2f} s  {image_texts.path(file.path)}",
        )
        for number, file in enumerate(summary.biggest)
    ]
