"""coldstart image gc: remove from a store what no image needs any more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.config import Config
from coldstart_cli.errors import DataError, UsageError
from coldstart_commands.image_texts import size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coldstart_fs.stores.store import StoredObject


@coldstart_command("store", "lock_wait_seconds")
def command(
    shell: Shell,
    grace_days: Annotated[
        float,
        typer.Option(
            "--grace-days", metavar="DAYS", min=0, max=36500, help="How long the unused is kept, twice."
        ),
    ] = 7.0,
    dry_run: DryRunOption = False,
) -> None:
    """Remove images without a name, and packs that no image needs.

    In use is what has a name or a lease, what a mount or a snapshot of this host uses, what snapshots in this
    store and in `snapshot.store` need, and what was written within the grace time. All else is condemned
    first, and removed by a run that finds it unused again after the grace time: run it from a timer. Whatever
    cannot be read ends the run with nothing removed.
    """
    from coldstart_fs.stores.collect import collect
    from coldstart_fs.stores.store_url import open_store

    printer, config = shell.printer, shell.config
    report = collect(
        open_store(config.store, tell=printer.warning),
        grace_seconds=grace_days * 86400,
        in_use=images_in_use(config, printer.warning),
        dry_run=dry_run,
        wait_seconds=config.number("lock_wait_seconds"),
        tell=printer.status,
    )
    verb = "would remove" if dry_run else "removed"
    printer.answer(f"in use: {report.images_in_use} images, {size(report.bytes_in_use)}")
    printer.answer(f"{verb}: {_sum(report.removed)}")
    if report.condemned:
        printer.answer(f"unused, to be removed after the grace time: {_sum(report.condemned)}")
    document = {
        "store": config.store,
        "dry_run": dry_run,
        "grace_days": grace_days,
        "images_in_use": report.images_in_use,
        "packs_in_use": report.packs_in_use,
        "bytes_in_use": report.bytes_in_use,
        "ended_leases": report.ended_leases,
        "removed": [{"key": one.key, "bytes": one.size_bytes} for one in report.removed],
        "condemned": [{"key": one.key, "bytes": one.size_bytes} for one in report.condemned],
    }
    printer.document("image.gc", 1, document)


def images_in_use(config: Config, warn: Callable[[str], None] = lambda _: None) -> set[bytes]:
    """Images that mounts, snapshots of this host and those in stores need, whatever store they came from."""
    from coldstart_fs.format.names import parse_digest
    from coldstart_fs.mounts.records import all_records
    from coldstart_snapshot.distribution.distribute import images_needed
    from coldstart_snapshot.kept.inventory import StoredVariant, list_variants

    texts = [record.image for _, record in all_records(config.run_folder)]
    for variant in list_variants(config.state_folder):
        if not isinstance(variant, StoredVariant):
            raise DataError(
                f"{variant.problem}: nothing is removed while it is not known which image that needs",
                hint=variant.hint,
            )
        root = variant.manifest.root
        if root is not None and root.image is not None:
            texts.append(root.image)
    for url in dict.fromkeys((config.store, config.optional_text("snapshot.store"))):
        if url is not None and not url.startswith(("http://", "https://")):
            texts += images_needed(url, config)
        elif url is not None:
            warn(f"images that snapshots need are not looked up in a store that cannot be listed: {url}")
    found = set()
    for text in texts:
        with suppress(UsageError):  # a root that is no image
            found.add(parse_digest(text.rpartition("@")[2]))
    return found


def _sum(objects: Iterable[StoredObject]) -> str:
    listed = list(objects)
    packs = sum(one.key.startswith("packs/") for one in listed)
    images = sum(one.key.startswith("images/") for one in listed)
    return f"{images} images, {packs} packs, {size(sum(one.size_bytes for one in listed))}"
