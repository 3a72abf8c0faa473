"""coldstart image pull: everything of an image into the local cache."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.image_texts import count, size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Image name, NAME@blake3:DIGEST or blake3:DIGEST.")
]
LimitRateOption = Annotated[
    str | None,
    typer.Option(
        "--limit-rate",
        metavar="RATE",
        help="Bytes a second at most; k, M and G stand for powers of 1000.",
        show_default=False,
    ),
]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@coldstart_command("store", "tiers", "cache_dir")
def command(
    shell: Shell, name: NameArgument, limit_rate: LimitRateOption = None, dry_run: DryRunOption = False
) -> None:
    """Fetch an image whole, so that it can be mounted without its store.

    What the cache has is verified, and not fetched again. An interrupted pull, run again, goes on where it
    was.
    """
    from coldstart_fs.content.pull import pull_image
    from coldstart_fs.content.room import CacheLimits
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.indexing.progress import Progress
    from coldstart_fs.stores.store_url import open_store
    from coldstart_fs.tiers.packs import open_tiers
    from coldstart_fs.tiers.settings import parse_tiers

    printer, config = shell.printer, shell.config
    progress = Progress(f"opening {name}")
    store = open_store(config.store, tell=printer.warning)
    rate = None if limit_rate is None else bytes_per_second(limit_rate)
    with printer.watching(progress.describe):
        report = pull_image(
            name,
            store,
            config.cache_folder,
            tiers=open_tiers(store, parse_tiers(config.texts("tiers")), log=printer.warning),
            limits=CacheLimits(
                config.optional_integer("cache.quota_bytes"), config.optional_integer("cache.free_bytes")
            ),
            bytes_per_second=rate,
            progress=progress,
            dry_run=dry_run,
            tell=printer.warning,
        )
    digest = digest_text(report.digest)
    rows = [("image", f"{report.name}@{digest}")]
    if report.in_place:
        rows.append(("read in place", f"the store is a folder of this host: {store.url}"))
    else:
        rows += [
            (
                "to fetch" if dry_run else "fetched",
                f"{size(report.fetched_bytes)} of {size(report.needed_bytes)}",
            ),
            ("packs", _packs(report.packs, report.whole_packs, dry_run=dry_run)),
        ]
    rows.append(("time", f"{report.seconds:.1f} s"))
    for label, value in rows:
        printer.answer(f"{label:<16}{value}")
    if dry_run:
        printer.note("dry run: nothing was fetched")
    printer.document(
        "image.pull", 1, asdict(report) | {"digest": digest, "store": store.url, "dry_run": dry_run}
    )


def bytes_per_second(text: str) -> float:
    """A rate as people write it: 500k, 20M, 1.5G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)b?(?:/s)?", text.lower())
    if match is None or not (rate := float(match[1]) * _UNITS[match[2]]):
        raise UsageError(f"not a rate: {text}", hint="write bytes a second, such as 500k, 20M or 1G")
    return rate


def _packs(packs: int, whole_packs: int, *, dry_run: bool) -> str:
    return count(packs, "pack") if dry_run else f"{count(packs, 'pack')}, {whole_packs:,} of them whole"
