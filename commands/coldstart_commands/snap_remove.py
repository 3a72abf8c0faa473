"""coldstart snap remove: delete a snapshot or one of its variants."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="Only this variant; else all of them.")
]


@coldstart_command("lock_wait_seconds")
def command(
    shell: Shell, name: NameArgument, variant: VariantOption = None, dry_run: DryRunOption = False
) -> None:
    """Delete a snapshot, or one of its variants, from this host."""
    from coldstart_snapshot.kept.inventory import remove_snapshot, select_variants

    config = shell.config
    if dry_run:
        removed = select_variants(config.state_folder, name, variant)
    else:
        removed = remove_snapshot(
            config.state_folder,
            config.run_folder,
            name,
            variant,
            wait_seconds=config.number("lock_wait_seconds"),
        )
    for one in removed:
        shell.printer.answer(f"{'would remove' if dry_run else 'removed'} {name}/{one}")
    shell.printer.document("snap.remove", 1, {"name": name, "variants": list(removed), "dry_run": dry_run})
