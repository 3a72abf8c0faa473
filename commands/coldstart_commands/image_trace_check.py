"""coldstart image trace check: whether a trace fits an image, for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands import image_texts, image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, TraceArgument, WorkloadOption
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.traces.fit import Fit

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.", show_default=False),
]
LeastOption = Annotated[
    float,
    typer.Option(
        "--least", metavar="PERCENT", min=0, max=100, help="How much of the traced bytes must be there."
    ),
]
TopOption = Annotated[
    int, typer.Option("--top", metavar="N", min=0, help="How many of the files that are gone are listed.")
]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    name: NameArgument,
    trace: TraceArgument,
    least: LeastOption = 90.0,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    top: TopOption = 5,
) -> None:
    """Compare a trace with an image by path: how much of what it says a start reads is there.

    The exit status is 3 when it is less than `--least`: the trace is stale, record it again.
    """
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.stores.images import open_index
    from coldstart_fs.traces.fit import fit_trace

    printer, desk = shell.printer, image_traces.desk(shell)
    found = desk.find(trace, workload).trace
    store = desk.store()
    image = desk.image(name, store)
    with open_index(store, image.digest, desk.cache) as index:
        _, fit = fit_trace(found, index, image.digest)
    fits = fit.coverage * 100 >= least
    for label, value in _rows(fit, top):
        printer.answer(f"{label:<16}{value}".rstrip())
    if fits and not fit.same_image:
        printer.note(
            f"trace is of another image: `coldstart image trace merge TRACE --image {name} -o FILE` "
            "makes it one of this image"
        )
    printer.document(
        "image.trace.check",
        1,
        {
            "image": digest_text(image.digest),
            "trace_image": digest_text(found.image),
            "same_image": fit.same_image,
            "fits": fits,
            "coverage": round(fit.coverage, 6),
            "least": least / 100,
            "size_bytes": fit.size_bytes,
            "fitting_bytes": fit.fitting_bytes,
            "files": fit.files,
            "fitting_files": fit.fitting_files,
            "lookups": fit.lookups,
            "fitting_lookups": fit.fitting_lookups,
            "gone": [image_texts.texts(path=path) | {"size_bytes": size} for path, size in fit.gone],
        },
    )
    if not fits:
        raise NegativeAnswer(
            f"trace does not fit {image.name}: {fit.coverage:.1%} of its bytes are there, not {least:g}%",
            hint=f"record it again: coldstart image mount {name} MOUNTPOINT --workload {found.workload}",
        )


def _rows(fit: Fit, top: int) -> list[tuple[str, str]]:
    size = image_texts.size
    rows = [
        ("image", "the one that was traced" if fit.same_image else "another than the one that was traced"),
        ("bytes", f"{size(fit.fitting_bytes)} of {size(fit.size_bytes)}: {fit.coverage:.1%}"),
        ("files", f"{fit.fitting_files:,} of {fit.files:,}"),
        ("lookups", f"{fit.fitting_lookups:,} of {fit.lookups:,} have the same answer"),
    ]
    for number, (path, size_bytes) in enumerate(fit.gone[:top]):
        rows.append(("gone" if number == 0 else "", f"{size(size_bytes):>9}  {image_texts.path(path)}"))
    if len(fit.gone) > top > 0:
        rows.append(("", f"and {image_texts.count(len(fit.gone) - top, 'file')} more"))
    return rows
