"""coldstart snap verify: check sizes and digests of a snapshot's files."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_commands.shell import Shell, coldstart_command
from coldstart_commands.snap_stored import StoreOption, verify_stored

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="Only this variant; else all of them.")
]


@coldstart_command()
def command(
    shell: Shell, name: NameArgument, variant: VariantOption = None, store: StoreOption = None
) -> None:
    """Read every file of a snapshot and compare it with the manifest; a difference is exit 65.

    So is a file or folder that somebody else owns or may write to, or a file with a second name.

    In a store, manifests, maps and the sizes of packs are compared, and no contents are read: they are
    compared when they are fetched.
    """
    if store is not None:
        verify_stored(shell, store, name, variant)
        return
    from coldstart_cli.errors import DataError
    from coldstart_snapshot.kept.inventory import DamagedVariant, list_variants, load_variant
    from coldstart_snapshot.kept.verify import VerifyResult, check_stored

    folder = shell.config.state_folder
    variants = list_variants(folder, name) if variant is None else (load_variant(folder, name, variant),)
    documents = []
    damaged = []
    newer = None
    for found in variants:
        if isinstance(found, DamagedVariant):
            label, result = found.variant, VerifyResult(0, 0, (found.problem,))
            newer = found if found.newer else newer
        else:
            label, result = found.manifest.variant, check_stored(found.folder, found.manifest, folder)
        for problem in result.problems:
            shell.printer.warning(f"{name}/{label}: {problem}")
        unreadable = isinstance(found, DamagedVariant) and found.newer
        if result.problems and not unreadable:
            damaged.append(label)
        verdict = "of a newer version" if unreadable else "damaged" if result.problems else "sound"
        shell.printer.answer(
            f"{name}/{label}: {verdict}, {result.files} files, {result.size_bytes / 1e6:.1f} MB"
        )
        documents.append(
            {
                "variant": label,
                "sound": not result.problems,
                "files": result.files,
                "size_bytes": result.size_bytes,
                "problems": list(result.problems),
            }
        )
    shell.printer.document(
        "snap.verify", 1, {"name": name, "sound": not damaged and newer is None, "variants": documents}
    )
    if damaged:
        raise DataError(
            f"snapshot is damaged: {name}: {', '.join(damaged)}",
            hint=f"coldstart snap remove {name} --variant {damaged[0]}, then capture again",
        )
    if newer is not None:
        raise DataError(newer.problem, hint=newer.hint)
