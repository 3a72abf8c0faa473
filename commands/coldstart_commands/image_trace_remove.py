"""coldstart image trace remove: forget a trace of this host, or of the store."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_commands import image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, WorkloadOption
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Image name, NAME@blake3:DIGEST, or blake3:DIGEST of any image.",
        show_default=False,
    ),
]
PublishedOption = Annotated[
    bool, typer.Option("--published", help="The one in the store, instead of the one of this host.")
]


@coldstart_command("store", "cache_dir", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    published: PublishedOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Forget what is known of a workload: the next mount records it anew."""
    from coldstart_cli.errors import NotFoundError
    from coldstart_fs.format.names import split_reference
    from coldstart_fs.traces.names import check_workload, trace_key
    from coldstart_fs.traces.published import unpublish_trace

    desk = image_traces.desk(shell)
    wanted, pinned = split_reference(name)
    # the image itself may be gone from the store
    digest = pinned if wanted is None and pinned is not None else desk.image(name, desk.store()).digest
    if published:
        store, key = desk.store(), trace_key(digest, check_workload(workload))
        place, there = f"{store.url}/{key}", store.exists(key)
    else:
        path = desk.kept().path(digest, workload)
        place, there = str(path), path.exists()
    if not there:
        raise NotFoundError(
            f"there is no trace of image {name}, workload `{workload}`: {place}",
            hint="`coldstart image trace list` shows which there are",
        )
    if not dry_run and published:
        unpublish_trace(store, digest, workload, wait_seconds=shell.config.number("lock_wait_seconds"))
    elif not dry_run:
        desk.kept().remove(digest, workload)
    shell.printer.answer(f"{'would remove' if dry_run else 'removed'} {place}")
    shell.printer.document("image.trace.remove", 1, {"place": place, "workload": workload})
