"""Copying variants of this host into a store: verified, cut into chunks, named last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import DataError, NotFoundError
from coldstart_snapshot.distribution.distribute import (
    Compression,
    FileToSend,
    SentFiles,
    SnapshotReference,
    SnapshotStore,
    StoredVersion,
    identity_of,
    now,
)
from coldstart_snapshot.distribution.page_layout import PageLayout, transfer_order
from coldstart_snapshot.distribution.trust import sign
from coldstart_snapshot.kept.inventory import StoredVariant, load_variant, select_variants, snapshot_lock
from coldstart_snapshot.kept.manifest import manifest_content, parse_manifest
from coldstart_snapshot.kept.verify import verify_files


@dataclass(frozen=True)
class SentVersion:
    """One variant that was copied, or would be; `known`: this very capture was in the store before."""

    version: StoredVersion
    known: bool
    signed: bool
    files: SentFiles


def send_snapshot(
    reference: SnapshotReference,
    store: SnapshotStore,
    config: Config,
    *,
    key: Path | None = None,
    compression: Compression | None = None,
    dry_run: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> tuple[SentVersion, ...]:
    """Copy one variant or all of them; run again after an interruption, only what is missing is sent."""
    wait_seconds = config.number("lock_wait_seconds")
    with snapshot_lock(config.run_folder, reference.name, wait_seconds=wait_seconds, shared=True):
        chosen = _chosen(reference, config)
        there = {one.digest for one in store.versions(reference.name)} if store.exists() else set()
        if dry_run:
            return tuple(
                SentVersion(
                    version, version.digest in there, key is not None, SentFiles(stored.manifest.size_bytes)
                )
                for stored, _, version in chosen
            )
        sent = []
        with store.writing(wait_seconds) as scratch:
            for stored, document, version in chosen:
                verify_files(stored.folder, stored.manifest)
                signature = sign(version.label, document, key, config) if key is not None else None
                files = store.publish(
                    version,
                    document,
                    signature,
                    _files(stored),
                    scratch=scratch,
                    compression=compression,
                    on_bytes=on_bytes,
                )
                sent.append(SentVersion(version, version.digest in there, signature is not None, files))
        return tuple(sent)


def size_to_send(reference: SnapshotReference, config: Config) -> int:
    """How many bytes will be read of this host's copy."""
    return sum(stored.manifest.size_bytes for stored, _, _ in _chosen(reference, config))


def _chosen(reference: SnapshotReference, config: Config) -> list[tuple[StoredVariant, bytes, StoredVersion]]:
    found = []
    for variant in select_variants(config.state_folder, reference.name, reference.variant):
        stored = load_variant(config.state_folder, reference.name, variant)
        document = manifest_content(stored.folder)
        # what is signed and named is what is judged here, not what the file was a moment ago
        manifest = parse_manifest(document, stored.folder)
        if manifest != stored.manifest:
            raise DataError(f"manifest changed while it was read: {stored.folder}")
        digest = identity_of(document)
        if reference.digest in {None, digest}:
            image = manifest.root.image if manifest.root is not None else None
            version = StoredVersion(
                reference.name, variant, digest, manifest.created, now(), manifest.size_bytes, image
            )
            found.append((stored, document, version))
    if not found:
        raise NotFoundError(
            f"snapshot of this host has another digest: {reference.name}",
            hint=f"coldstart snap show {reference.name}",
        )
    return found


def _files(stored: StoredVariant) -> list[FileToSend]:
    layout = PageLayout(stored.folder)
    return [
        FileToSend(file.path, stored.folder / file.path, file.size_bytes, layout.sizes(file))
        for file in sorted(stored.manifest.files, key=transfer_order)
    ]
