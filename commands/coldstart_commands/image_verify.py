"""coldstart image verify: look through the local cache and a store for damage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import ColdstartError, NegativeAnswer
from coldstart_commands.image_texts import count, size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_fs.content.scrub import CacheScrub
    from coldstart_fs.stores.scrub import StoreScrub


# damaged places of one file that are told one by one; `--json` has all
_TOLD = 3


class Part(StrEnum):
    CACHE = "cache"
    STORE = "store"


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Images, as NAME, NAME@blake3:DIGEST or blake3:DIGEST; default: all."
    ),
]
OnlyOption = Annotated[
    Part | None, typer.Option("--only", help="Look through this alone; default: both.", show_default=False)
]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell, names: NamesArgument = None, only: OnlyOption = None, dry_run: DryRunOption = False
) -> None:
    """Read everything that images have in the cache and in the store, and compare it with its digests.

    Damage in the cache is put aside and removed there, to be fetched again; where a mount has it open, the
    mount does that. A store is not changed: each damage is told with what helps. Exit status 3 when any was
    found.
    """
    from coldstart_fs.content.scrub import scrub_cache
    from coldstart_fs.indexing.progress import Progress
    from coldstart_fs.stores.references import resolve_image
    from coldstart_fs.stores.scrub import scrub_store
    from coldstart_fs.stores.store_url import open_store

    printer, config = shell.printer, shell.config
    progress = Progress("opening")
    cache: CacheScrub | None = None
    store: StoreScrub | None = None
    with printer.watching(progress.describe):
        if only is not Part.STORE:
            digests = None
            if names:
                source = open_store(config.store)
                digests = [
                    resolve_image(source, name, cache=config.cache_folder, tell=printer.warning).digest
                    for name in names
                ]
            cache = scrub_cache(config.cache_folder, images=digests, progress=progress, dry_run=dry_run)
        if only is not Part.CACHE:
            try:
                store = scrub_store(
                    open_store(config.store, tell=printer.warning), names or (), progress=progress
                )
            except ColdstartError:
                if cache is not None:  # what was found there, and may be removed by now, is not kept back
                    _tell_cache(printer, cache)
                raise
    if cache is not None:
        _tell_cache(printer, cache)
    if store is not None:
        _tell_store(printer, store)
    damaged = sum(len(part.damage) for part in (cache, store) if part is not None)
    printer.document(
        "image.verify",
        1,
        {
            "cache_folder": str(config.cache_folder),
            "store_url": config.store,
            "damaged": damaged,
            "cache": None if cache is None else asdict(cache),
            "store": None if store is None else asdict(store),
            "dry_run": dry_run,
        },
    )
    if damaged:
        raise NegativeAnswer(f"damage was found: {count(damaged, 'place')}")


def _tell_cache(printer: Printer, found: CacheScrub) -> None:
    printer.answer(f"cache           {size(found.verified_bytes)} in {count(found.packs, 'pack')} verified")
    if found.unknown_bytes:
        printer.answer(f"                {size(found.unknown_bytes)} of images that the cache does not know")
    for orphan in found.removed_orphans:
        printer.answer(f"orphan          {orphan}")
    for file, damages in groupby(found.damage, key=lambda damage: damage.file):
        told = list(damages)
        for damage in told[:_TOLD]:
            printer.answer(f"cache damage    {file}: {damage.what}: {_ACTIONS[damage.action]}")
        for action, more in Counter(damage.action for damage in told[_TOLD:]).items():
            printer.answer(f"                and {count(more, 'more place')} in it: {_ACTIONS[action]}")


def _tell_store(printer: Printer, found: StoreScrub) -> None:
    verified = f"{size(found.verified_bytes)} in {count(found.packs, 'pack')}"
    printer.answer(f"store           {verified} of {count(found.images, 'image')} verified")
    for damage in found.damage:
        needed = f" (needed by {', '.join(damage.images)})"
        printer.answer(f"store damage    {damage.key}: {damage.what}{needed}")
        if damage.hint:
            printer.answer(f"                {damage.hint}")


_ACTIONS = {
    "removed": "removed, to be fetched again",
    "in_use": "a mount has it open, and heals it when it reads it",
    "found": "nothing was changed",
}
