"""coldstart snap gc: remove old versions from a store, and what interruptions left on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.image_texts import size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.distribution.distribute import StoredVersion

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="Collect this store, not this host.")
]
KeepOption = Annotated[
    int, typer.Option("--keep", metavar="N", min=1, help="Versions of each variant that a store keeps.")
]
GraceOption = Annotated[
    float, typer.Option("--grace-days", metavar="DAYS", min=0, max=36500, help="How long the unused is kept.")
]


@coldstart_command("lock_wait_seconds")
def command(
    shell: Shell,
    store: StoreOption = None,
    keep: KeepOption = 3,
    grace_days: GraceOption = 7.0,
    dry_run: DryRunOption = False,
) -> None:
    """Remove what captures and fetches that were interrupted left here; with --store, old versions there.

    A host has one version of each variant, a store the newest N; a version with a lease stays. Data that no
    version needs is condemned first, and removed by a run after the grace time, as by `image gc`. On a host,
    images that its snapshots need are leased anew in stores that it shares: run it from a timer.
    """
    if store is None:
        _collect_host(shell, grace_days, dry_run)
    else:
        _collect_store(shell, store, keep, grace_days, dry_run)


def _collect_host(shell: Shell, grace_days: float, dry_run: bool) -> None:
    from coldstart_snapshot.distribution.retention import collect_host, hold_images

    found = collect_host(shell.config, grace_seconds=grace_days * 86400, dry_run=dry_run)
    held = hold_images(shell.config, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    for leftover in found:
        shell.printer.answer(f"{verb} {leftover.path}: {size(leftover.size_bytes)}, of a {leftover.kind}")
    if not found:
        shell.printer.answer("nothing is left of interrupted captures and fetches")
    for image in held:
        if image.problem is not None:
            shell.printer.warning(f"image is not leased: {image.image}: {image.problem}")
    shell.printer.document(
        "snap.gc",
        1,
        {
            "store": None,
            "dry_run": dry_run,
            "grace_days": grace_days,
            "removed": [
                {"path": str(leftover.path), "bytes": leftover.size_bytes, "kind": leftover.kind}
                for leftover in found
            ],
            "leased_images": [
                {"image": image.image, "store": image.store, "problem": image.problem} for image in held
            ],
        },
    )


def _collect_store(shell: Shell, url: str, keep: int, grace_days: float, dry_run: bool) -> None:
    from coldstart_snapshot.distribution.distribute import SnapshotStore
    from coldstart_snapshot.distribution.retention import collect_store

    found = collect_store(
        SnapshotStore.open(url, shell.config, tell=shell.printer.warning),
        shell.config,
        keep=keep,
        grace_seconds=grace_days * 86400,
        dry_run=dry_run,
        tell=shell.printer.status,
    )
    verb = "would drop" if dry_run else "dropped"
    for version in found.dropped:
        shell.printer.answer(f"{verb} {version.ref}: {size(version.size_bytes)}")
    removed, condemned = (
        sum(one.size_bytes for one in objects) for objects in (found.removed, found.condemned)
    )
    shell.printer.answer(f"kept: {len(found.kept)} versions")
    shell.printer.answer(f"{'would remove' if dry_run else 'removed'}: {size(removed)}")
    if found.condemned:
        shell.printer.answer(f"unused, to be removed after the grace time: {size(condemned)}")
    shell.printer.document(
        "snap.gc",
        1,
        {
            "store": url,
            "dry_run": dry_run,
            "grace_days": grace_days,
            "keep": keep,
            "kept": [_version(version) for version in found.kept],
            "dropped": [_version(version) for version in found.dropped],
            "removed": [{"key": one.key, "bytes": one.size_bytes} for one in found.removed],
            "condemned": [{"key": one.key, "bytes": one.size_bytes} for one in found.condemned],
        },
    )


def _version(version: StoredVersion) -> dict[str, str | int]:
    from coldstart_snapshot.distribution.distribute import digest_text

    return {
        "name": version.name,
        "variant": version.variant,
        "generation": version.generation,
        "digest": digest_text(version.digest),
        "size_bytes": version.size_bytes,
    }
