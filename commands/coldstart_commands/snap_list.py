"""coldstart snap list: snapshots and their variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.inventory import DamagedVariant, StoredVariant

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this snapshot.")]
_COMMAND_WIDTH = 60


@coldstart_command()
def command(shell: Shell, name: NameArgument = None) -> None:
    """List snapshots and their variants, with size, time and command."""
    from coldstart_snapshot.inventory import DamagedVariant, list_variants

    variants = list_variants(shell.config.state_folder, name)
    for variant in variants:
        if isinstance(variant, DamagedVariant):
            shell.printer.warning(variant.problem)
    shell.printer.table(
        ("NAME", "VARIANT", "KIND", "SIZE", "CREATED", "COMMAND"),
        [_row(variant) for variant in variants],
        right=(3,),
    )
    shell.printer.document("snap.list", 1, {"snapshots": [_document(variant) for variant in variants]})


def _row(variant: StoredVariant | DamagedVariant) -> tuple[str, ...]:
    from coldstart_snapshot.inventory import DamagedVariant

    if isinstance(variant, DamagedVariant):
        return (variant.name, variant.variant, "damaged", "", "", "")
    manifest = variant.manifest
    command = " ".join(manifest.command.split())
    short = command if len(command) <= _COMMAND_WIDTH else f"{command[: _COMMAND_WIDTH - 3]}..."
    size = f"{manifest.size_bytes / 1e6:.1f} MB"
    return (manifest.name, manifest.variant, manifest.kind, size, manifest.created, short)


def _document(variant: StoredVariant | DamagedVariant) -> dict[str, Any]:
    from coldstart_snapshot.inventory import DamagedVariant

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
