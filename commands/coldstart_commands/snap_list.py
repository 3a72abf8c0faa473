"""coldstart snap list: snapshots and their variants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import NegativeAnswer, NotFoundError, UsageError
from coldstart_commands.shell import Shell, coldstart_command
from coldstart_commands.snap_stored import StoreOption, list_stored

if TYPE_CHECKING:
    from coldstart_snapshot.kept.inventory import DamagedVariant, StoredVariant

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this snapshot.")]
HostFactsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--host-facts",
        metavar="FILE",
        help="Say which variant the host of this file would take: its `coldstart doctor --json`, or its"
        " /proc/cpuinfo; may be repeated, or a folder of such files.",
    ),
]
_COMMAND_WIDTH = 60


@coldstart_command()
def command(
    shell: Shell,
    name: NameArgument = None,
    host_facts: HostFactsOption = None,
    store: StoreOption = None,
) -> None:
    """List snapshots and their variants, with size, time and command; with --store, their versions there.

    With --host-facts, list what the hosts of a fleet would restore instead. Exit 3 says that some host
    has no variant, and what to build for it is listed.
    """
    if store is not None:
        if host_facts:
            raise UsageError("--host-facts and --store exclude each other", hint="leave one out")
        list_stored(shell, store, name)
        return
    from coldstart_snapshot.capturing.recovery import told_by
    from coldstart_snapshot.kept.inventory import DamagedVariant, list_variants

    interrupted = dict(told_by(shell.config.run_folder))
    if name in interrupted:
        shell.printer.warning(interrupted[name])
    elif name is None:
        for sentence in interrupted.values():
            shell.printer.warning(sentence)
    variants = list_variants(shell.config.state_folder, name)
    for variant in variants:
        if isinstance(variant, DamagedVariant):
            shell.printer.warning(variant.problem)
    if host_facts:
        _show_fleet(shell, name, host_facts, variants)
        return
    shell.printer.table(
        ("NAME", "VARIANT", "KIND", "SIZE", "CREATED", "COMMAND"),
        [_row(variant) for variant in variants],
        right=(3,),
    )
    told = [
        {"name": one, "outcome": sentence}
        for one, sentence in interrupted.items()
        if name is None or name == one
    ]
    document = {"snapshots": [_document(variant) for variant in variants], "interrupted": told}
    shell.printer.document("snap.list", 1, document)


def _show_fleet(
    shell: Shell, name: str | None, files: list[Path], variants: Sequence[StoredVariant | DamagedVariant]
) -> None:
    from coldstart_snapshot.kept.inventory import StoredVariant
    from coldstart_snapshot.restoring.fleet import answers_for, read_hosts

    hosts = read_hosts(files)
    answers = answers_for(hosts, [entry for entry in variants if isinstance(entry, StoredVariant)])
    if not answers:
        raise NotFoundError("there are no snapshots", hint="coldstart snap create")
    shell.printer.table(
        ("HOST", "CPU", "SNAPSHOT", "VARIANT", "WHY"),
        [
            (
                answer.host.name,
                answer.host.cpu.level,
                answer.snapshot,
                answer.variant or "none",
                answer.reason,
            )
            for answer in answers
        ],
    )
    lacking = [answer for answer in answers if answer.variant is None]
    unsure = ", ".join(dict.fromkeys(answer.host.name for answer in lacking if answer.unsure))
    lacking = [answer for answer in lacking if not answer.unsure]
    for command in dict.fromkeys(answer.build for answer in lacking if answer.build):
        names = ", ".join(dict.fromkeys(answer.host.name for answer in lacking if answer.build == command))
        shell.printer.answer(f"to build for {names}: {command}")
    shell.printer.document("snap.list.fleet", 1, {"hosts": [answer.document() for answer in answers]})
    if lacking:
        names = ", ".join(dict.fromkeys(answer.host.name for answer in lacking))
        what = f"snapshot {name}" if name is not None else "every snapshot"
        raise NegativeAnswer(f"hosts without a variant of {what}: {names}", hint=lacking[0].build)
    if unsure:
        raise NegativeAnswer(
            f"cannot tell from /proc/cpuinfo whether a variant fits: {unsure}",
            hint="give what `coldstart doctor --json` writes on that host",
        )


def _row(variant: StoredVariant | DamagedVariant) -> tuple[str, ...]:
    from coldstart_snapshot.kept.inventory import DamagedVariant

    if isinstance(variant, DamagedVariant):
        verdict = "of a newer version" if variant.newer else "damaged"
        return (variant.name, variant.variant, verdict, "", "", "")
    manifest = variant.manifest
    command = " ".join(manifest.command.split())
    short = command if len(command) <= _COMMAND_WIDTH else f"{command[: _COMMAND_WIDTH - 3]}..."
    size = f"{manifest.size_bytes / 1e6:.1f} MB"
    return (manifest.name, manifest.variant, manifest.kind, size, manifest.created, short)


def _document(variant: StoredVariant | DamagedVariant) -> dict[str, Any]:
    from coldstart_snapshot.kept.inventory import DamagedVariant

    if isinstance(variant, DamagedVariant):
        return {
            "name": variant.name,
            "variant": variant.variant,
            "folder": str(variant.folder),
            "problem": variant.problem,
        }
    manifest = variant.manifest
    return {
        "name": manifest.name,
        "variant": manifest.variant,
        "folder": str(variant.folder),
        "problem": None,
        "kind": manifest.kind,
        "created": manifest.created,
        "size_bytes": manifest.size_bytes,
        "processes": len(manifest.tree),
        "gpu": manifest.gpu is not None,
        "image": manifest.root.image if manifest.root else None,
        "command": manifest.command,
        "cpu_level": manifest.cpu.level,
    }
