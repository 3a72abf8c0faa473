"""coldstart health collect: evidence for a ticket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command("health.expect_gpus")
def command(
    shell: Shell,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="New folder for the collection.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="An archive instead: .tar, .tar.gz or .tgz."),
    ] = None,
    active: Annotated[
        bool, typer.Option("--active", help="Put the GPUs to work for it, as `health quick --active` does.")
    ] = False,
    keep_serials: Annotated[
        bool, typer.Option("--keep-serials", help="Keep serial numbers, which a replacement needs.")
    ] = False,
) -> None:
    """Record what `health quick` judges, redacted, for a ticket; `health quick --replay` judges it elsewhere.

    Verdicts change nothing here: a sick host is collected with status 0. No state of this host is written.
    """
    from coldstart_health.collection import collect, is_archive, write_collection

    if (folder is None) is (output is None):
        raise UsageError("name one place: a folder, or an archive with --output FILE.tar")
    if output is not None and not is_archive(output):
        raise UsageError(f"not the name of an archive: {output}", hint="end it in .tar, .tar.gz or .tgz")
    target = folder or output
    assert target is not None
    collection = collect(shell.config, active=active, keep_serials=keep_serials)
    write_collection(collection.files, target, archive=output is not None)
    size, word = sum(map(len, collection.files.values())), collection.verdict.word
    shell.printer.answer(f"{target}: {len(collection.files)} files, {size} bytes, verdict {word}")
    shell.printer.answer(f"judge it anywhere: coldstart health quick --replay {target}")
    content = {
        "path": str(target),
        "files": {name: len(data) for name, data in collection.files.items()},
        "verdict": word,
        "serials_kept": keep_serials,
    }
    shell.printer.document("health.collect", 1, content)
