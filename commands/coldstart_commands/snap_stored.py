"""Snapshots in a store as `snap list` and `snap verify` show them, and how one came to this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import DataError
from coldstart_commands.image_texts import size
from coldstart_commands.shell import Shell

if TYPE_CHECKING:
    from coldstart_snapshot.kept.inventory import StoredVariant

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Look at the versions in this store, not at this host."),
]


def list_stored(shell: Shell, url: str, name: str | None) -> None:
    """The versions in a store, the oldest of each variant first."""
    from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore, digest_text

    store = SnapshotStore.open(url, shell.config, tell=shell.printer.warning)
    reference = SnapshotReference.parse(name) if name is not None else None
    versions = store.versions() if reference is None else store.require_versions(reference)
    shell.printer.table(
        ("NAME", "VARIANT", "SIZE", "CAPTURED", "COPIED", "DIGEST"),
        [
            (
                one.name,
                one.variant,
                size(one.size_bytes),
                one.captured,
                one.published,
                digest_text(one.digest),
            )
            for one in versions
        ],
        right=(2,),
    )
    documents = [
        {
            "name": one.name,
            "variant": one.variant,
            "generation": one.generation,
            "digest": digest_text(one.digest),
            "captured": one.captured,
            "copied": one.published,
            "size_bytes": one.size_bytes,
            "image": one.root_image,
        }
        for one in versions
    ]
    shell.printer.document("snap.list.stored", 1, {"store": url, "versions": documents})


def verify_stored(shell: Shell, url: str, name: str, variant: str | None) -> None:
    """Whether a store has all that the versions of a snapshot need."""
    from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore, digest_text
    from coldstart_snapshot.kept.manifest import parse_manifest

    store = SnapshotStore.open(url, shell.config, tell=shell.printer.warning)
    reference = SnapshotReference.parse(name if variant is None else f"{name}/{variant}")
    documents = []
    damaged = []
    for version in store.require_versions(reference):
        problems: tuple[str, ...]
        try:
            manifest = parse_manifest(store.document(version), f"{url}: {version.ref}")
            problems = store.problems(version, manifest)
        except DataError as error:
            problems = (error.message,)
        for problem in problems:
            shell.printer.warning(f"{version.ref}: {problem}")
        if problems:
            damaged.append(version.ref)
        shell.printer.answer(
            f"{version.ref}: {'damaged' if problems else 'complete'}, {size(version.size_bytes)}"
        )
        documents.append(
            {
                "variant": version.variant,
                "generation": version.generation,
                "digest": digest_text(version.digest),
                "complete": not problems,
                "problems": list(problems),
            }
        )
    shell.printer.document(
        "snap.verify.stored", 1, {"store": url, "name": name, "complete": not damaged, "versions": documents}
    )
    if damaged:
        raise DataError(
            f"snapshot is damaged in the store: {', '.join(damaged)}", hint="copy it there again from a host"
        )


def identity(stored: StoredVariant) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Digest and origin of a variant of this host, for people and as JSON values."""
    from coldstart_snapshot.distribution.distribute import digest_text, identity_of
    from coldstart_snapshot.kept.manifest import manifest_content
    from coldstart_snapshot.kept.origin import read_origin

    digest = digest_text(identity_of(manifest_content(stored.folder)))
    origin = read_origin(stored.folder)
    facts = [("digest", digest)]
    if origin is None:
        return [*facts, ("origin", "made on this host")], {"digest": digest, "origin": None}
    how = {"pinned": "its digest was given", "signed": f"signed with {origin.key}"}.get(
        origin.trust, "trusted on the command line"
    )
    text = f"fetched {origin.fetched} from {origin.store}, {how}"
    document = {
        "store": origin.store,
        "fetched": origin.fetched,
        "trust": origin.trust,
        "key": origin.key,
        "manifest": origin.manifest,
    }
    return [*facts, ("origin", text)], {"digest": digest, "origin": document}
