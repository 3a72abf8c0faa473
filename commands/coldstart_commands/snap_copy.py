"""coldstart snap copy: bring a snapshot into a store, or from one to this host."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.image_texts import size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore

ReferenceArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="NAME, NAME/VARIANT, or either with @blake3:DIGEST.")
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="URL", help="Copy to this store: a folder or a URL.")
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="Fetch from this store to this host.")
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Take it without a digest or a signature: you know where it comes from."),
]
SignOption = Annotated[
    Path | None,
    typer.Option("--sign", metavar="KEYFILE", help="Sign the copy with this secret key of minisign."),
]
CompressionOption = Annotated[
    str, typer.Option("--compression", metavar="none|zstd[:LEVEL]", help="How new chunks are stored.")
]
AllOption = Annotated[
    bool, typer.Option("--all-variants", help="Fetch every variant, not the one that fits this host.")
]


@coldstart_command("lock_wait_seconds")
def command(
    shell: Shell,
    name: ReferenceArgument,
    to: ToOption = None,
    origin: FromOption = None,
    trust: TrustOption = False,
    sign: SignOption = None,
    compression: CompressionOption = "zstd",
    all_variants: AllOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Copy a snapshot to a store, or fetch from one the variant that fits this host.

    A store keeps the versions of a variant, a host the last one. Equal pieces are sent once, zeros never.
    What is fetched is code: it needs a digest in NAME, a signature of the configured key, or --trust.
    An interrupted copy is not listed anywhere; run again, it goes on where it was.
    """
    from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore

    reference = SnapshotReference.parse(name)
    if (to is None) == (origin is None):
        raise UsageError(
            "name either the store to copy to or the one to fetch from", hint="--to URL, or --from URL"
        )
    if to is not None:
        if trust or all_variants:
            raise UsageError("an option of --from: --trust or --all-variants", hint="leave it out")
        store = SnapshotStore.open(to, shell.config, create=True, tell=shell.printer.warning)
        _send(shell, reference, store, sign, compression, dry_run)
        return
    if sign is not None:
        raise UsageError("an option of --to: --sign", hint="a copy is signed when it is sent")
    assert origin is not None
    store = SnapshotStore.open(origin, shell.config, tell=shell.printer.warning)
    _fetch(shell, reference, store, trust, all_variants, dry_run)


def _send(
    shell: Shell,
    reference: SnapshotReference,
    store: SnapshotStore,
    key: Path | None,
    compression: str,
    dry_run: bool,
) -> None:
    from coldstart_fs.indexing.progress import Progress
    from coldstart_snapshot.distribution.distribute import Compression, digest_text
    from coldstart_snapshot.distribution.send import send_snapshot, size_to_send

    started = time.monotonic()
    progress = Progress(f"copying {reference.name}")
    progress.expect(size_to_send(reference, shell.config))
    with shell.printer.watching(progress.describe):
        sent = send_snapshot(
            reference,
            store,
            shell.config,
            key=key,
            compression=Compression.parse(compression),
            dry_run=dry_run,
            on_bytes=progress.advance,
        )
    for one in sent:
        digest = digest_text(one.version.digest)
        if dry_run:
            verb = "is there already" if one.known else f"would copy {size(one.files.size_bytes)}"
            shell.printer.answer(f"{one.version.label}@{digest}: {verb}")
            continue
        found = one.files
        shell.printer.answer(
            f"copied {one.version.label}@{digest}: {size(found.size_bytes)}, {size(found.hole_bytes)} zeros, "
            f"{size(found.held_bytes)} held, {size(found.new_bytes)} new, {size(found.sent_bytes)} sent"
        )
    shell.printer.document(
        "snap.copy",
        1,
        {
            "direction": "to",
            "store": store.url,
            "dry_run": dry_run,
            "seconds": round(time.monotonic() - started, 3),
            "snapshots": [
                {
                    "name": one.version.name,
                    "variant": one.version.variant,
                    "digest": digest_text(one.version.digest),
                    "generation": one.version.generation,
                    "known": one.known,
                    "signed": one.signed,
                    "size_bytes": one.files.size_bytes,
                    "zero_bytes": one.files.hole_bytes,
                    "held_bytes": one.files.held_bytes,
                    "new_bytes": one.files.new_bytes,
                    "sent_bytes": one.files.sent_bytes,
                }
                for one in sent
            ],
        },
    )


def _fetch(
    shell: Shell,
    reference: SnapshotReference,
    store: SnapshotStore,
    trust: bool,
    all_variants: bool,
    dry_run: bool,
) -> None:
    from coldstart_fs.indexing.progress import Progress
    from coldstart_snapshot.distribution.distribute import digest_text
    from coldstart_snapshot.distribution.receive import (
        fetch_snapshot,
        find_offer,
        is_newer_here,
        trusted_offers,
    )
    from coldstart_snapshot.distribution.trust import TrustRule

    started = time.monotonic()
    rule = TrustRule.of(shell.config, pinned=[reference.digest] if reference.digest else [], given=trust)
    chosen = trusted_offers(reference, store, rule) if all_variants else (find_offer(reference, store, rule),)
    documents = []
    for offer in chosen:
        progress = Progress(f"fetching {offer.version.label}")
        progress.expect(offer.manifest.size_bytes)
        digest = digest_text(offer.version.digest)
        document = {
            "name": offer.version.name,
            "variant": offer.version.variant,
            "digest": digest,
            "trust": offer.trust.kind,
            "size_bytes": offer.manifest.size_bytes,
        }
        if reference.digest is None and is_newer_here(offer, shell.config):
            shell.printer.warning(
                f"not fetched: this host has a newer {offer.version.label}; pin {digest} to have it"
            )
            document["skipped"] = True
        elif dry_run:
            shell.printer.answer(f"would fetch {offer.version.label}@{digest} ({offer.trust.kind})")
        else:
            with shell.printer.watching(progress.describe):
                stored, incoming = fetch_snapshot(offer, store, shell.config, progress.advance)
            report = incoming.report
            document |= {
                "folder": str(stored.folder),
                "replaced": incoming.replaced,
                "stored_bytes": report.stored_bytes,
                "fetched_bytes": report.fetched_bytes,
                "kept_bytes": report.kept_bytes,
                "zero_bytes": report.hole_bytes,
            }
            shell.printer.answer(
                f"fetched {offer.version.label}@{digest} ({offer.trust.kind}): "
                f"{size(offer.manifest.size_bytes)}, {size(report.stored_bytes)} over the wire"
            )
        documents.append(document)
    shell.printer.document(
        "snap.copy",
        1,
        {
            "direction": "from",
            "store": store.url,
            "dry_run": dry_run,
            "seconds": round(time.monotonic() - started, 3),
            "snapshots": documents,
        },
    )
