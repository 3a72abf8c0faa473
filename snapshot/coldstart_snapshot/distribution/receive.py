"""Fetching a variant from a store: trusted, small files first, verified whole, published by one rename."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, DataError, NotFoundError, PermissionNeededError
from coldstart_cli.files import atomic_write, exclusive_lock, make_directory
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_snapshot.cpu.variants import choose_variant
from coldstart_snapshot.criu.program import find_criu
from coldstart_snapshot.criu.zero_pages import punch_zero_pages
from coldstart_snapshot.distribution.distribute import (
    BroughtFiles,
    FileFetch,
    SnapshotReference,
    SnapshotStore,
    StoredVersion,
    digest_text,
    identity_of,
    now,
)
from coldstart_snapshot.distribution.page_layout import is_pages
from coldstart_snapshot.distribution.trust import Trust, TrustRule, judge
from coldstart_snapshot.kept.inventory import (
    StoredVariant,
    load_variant,
    publish,
    snapshot_lock,
    snapshots_folder,
    variant_folder,
)
from coldstart_snapshot.kept.manifest import MANIFEST_NAME, Manifest, manifest_content, parse_manifest
from coldstart_snapshot.kept.origin import Origin, write_origin
from coldstart_snapshot.kept.staged import remove_staged
from coldstart_snapshot.kept.verify import VerifyPass, remember_verified, verify_files, verify_some
from coldstart_snapshot.restoring.restore import RestorePlan

_PART_SUFFIX = ".part"
# less of zeros saves nothing that anybody would notice
_WORTH_A_LOOK_BYTES = 16 << 20
_PUBLISH_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Offer:
    """A version in a store that may be used here, and why."""

    version: StoredVersion
    document: bytes
    manifest: Manifest
    trust: Trust
    reason: str = ""


def find_offer(
    reference: SnapshotReference,
    store: SnapshotStore,
    rule: TrustRule,
    *,
    host: CpuFacts | None = None,
) -> Offer:
    """The newest version of the variant that fits this host, among those that are trusted."""
    offers = trusted_offers(reference, store, rule)
    if reference.variant is not None or reference.digest is not None:
        return offers[-1]
    choice = choose_variant(
        [(offer.manifest.variant, offer.manifest.cpu) for offer in offers],
        host or read_cpu_facts(),
        required={offer.manifest.variant: offer.manifest.required_flags for offer in offers},
        caps={offer.manifest.variant: offer.manifest.caps for offer in offers},
        snapshot=reference.name,
    )
    found = next(offer for offer in offers if offer.manifest.variant == choice.name)
    return Offer(found.version, found.document, found.manifest, found.trust, choice.reason)


def trusted_offers(reference: SnapshotReference, store: SnapshotStore, rule: TrustRule) -> tuple[Offer, ...]:
    """The newest trusted version of each variant; when there is none, why the newest is refused."""
    newest: dict[str, Offer] = {}
    refusal: ColdstartError | None = None
    versions = store.require_versions(reference)
    if rule.pinned:
        versions = tuple(version for version in versions if version.digest in rule.pinned)
        if not versions:
            raise NotFoundError(
                f"no pinned version of the snapshot is in the store: {reference.name}: {store.url}"
            )
    for version in reversed(versions):
        if version.variant in newest:
            continue
        try:
            newest[version.variant] = _offer(version, store, rule)
        except PermissionNeededError as error:
            # one that nobody vouches for does not hide an older one that somebody does
            refusal = refusal or error
    if not newest:
        assert refusal is not None
        raise refusal
    return tuple(reversed(newest.values()))


def _offer(version: StoredVersion, store: SnapshotStore, rule: TrustRule) -> Offer:
    document = store.document(version)
    signature = store.signature(version) if rule.public_key is not None else None
    trust = judge(version.label, document, version.digest, signature, rule)
    manifest = parse_manifest(document, f"{store.url}: {version.label}")
    if (manifest.name, manifest.variant) != (version.name, version.variant):
        raise DataError(
            f"snapshot in the store is another one: {version.label} is {manifest.name}/{manifest.variant}",
            hint="copy the snapshot there again",
        )
    return Offer(version, document, manifest, trust)


class Incoming:
    """A variant on its way to this host. A folder that is not listed takes it until it is whole.

    `begin` brings what a launch can start with: manifest, bundle, the writable layer. `finish` brings the
    memory and publishes. What was brought before an interruption stays, and the next fetch goes on from it.
    """

    def __init__(
        self,
        offer: Offer,
        store: SnapshotStore,
        config: Config,
        on_bytes: Callable[[int], None] = lambda _: None,
        *,
        gpus: tuple[str, ...] = (),
        wait_seconds: float | None = None,
    ) -> None:
        """`gpus` are those that its GPU state will be put on, for who restores it.

        `wait_seconds` is how long to wait for another fetch of it, where that is not as configured.
        """
        self.offer = offer
        self.gpus = gpus
        self._wait_seconds = config.number("lock_wait_seconds") if wait_seconds is None else wait_seconds
        self._store = store
        self._config = config
        self._on_bytes = on_bytes
        self._stack = ExitStack()
        self._fetch: FileFetch | None = None
        self._upper: int | None = None
        self.replaced = False
        name, variant = offer.manifest.name, offer.manifest.variant
        parent = snapshots_folder(config.state_folder) / name
        self.folder = parent / f".{variant}.{offer.version.digest.hex()[:16]}{_PART_SUFFIX}"
        self.destination = variant_folder(config.state_folder, name, variant)

    def __enter__(self) -> Self:
        path = fetch_lock(self._config, self.offer.manifest.name)
        self._stack.enter_context(exclusive_lock(path, wait_seconds=self._wait_seconds))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of lock, store and descriptors; what was brought stays."""
        self._stack.close()

    @property
    def report(self) -> BroughtFiles:
        return self._fetch.report if self._fetch is not None else BroughtFiles()

    @property
    def is_here(self) -> bool:
        """Whether this host has just this version already."""
        with suppress(ColdstartError):
            return identity_of(manifest_content(self.destination)) == self.offer.version.digest
        return False

    @property
    def upper_archive(self) -> Path | None:
        """The writable layer's archive, readable also when its folder has been renamed."""
        return None if self._upper is None else Path(f"/proc/self/fd/{self._upper}")

    def begin(self) -> None:
        """Everything but the memory."""
        manifest = self.offer.manifest
        make_directory(snapshots_folder(self._config.state_folder), mode=0o700)
        make_directory(self.folder.parent, mode=0o700)
        make_directory(self.folder, mode=0o700)
        _require_private(self.folder)
        self._fetch, files = self._stack.enter_context(
            self._store.fetching(self.offer.version, self.folder, self._on_bytes)
        )
        for file in manifest.files:
            mapped = files.file(file.path)
            if mapped is None or mapped.size_bytes != file.size_bytes:
                raise DataError(
                    f"snapshot is damaged in the store: {self.offer.version.label}: its map does not fit "
                    f"its manifest: {file.path}",
                    hint="copy the snapshot there again",
                )
        small = [file for file in manifest.files if not is_pages(file.path)]
        self._fetch.bring([file.path for file in small])
        with self._refusing():
            verify_some(self.folder, manifest, {file.path for file in small})
        with suppress(FileNotFoundError):
            self._upper = os.open(self.folder / "upper.tar", os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._upper)

    def finish(self) -> StoredVariant:
        """The memory, in criu's order; verified, then in its place."""
        assert self._fetch is not None, "begin comes first"
        manifest, config = self.offer.manifest, self._config
        pages = [file.path for file in manifest.files if is_pages(file.path)]
        self._fetch.bring(sorted(pages))
        if manifest.pages is not None and manifest.pages.zero_bytes >= _WORTH_A_LOOK_BYTES:
            punch_zero_pages(self.folder / "images")  # a store keeps no holes
        with self._refusing():
            verify_files(self.folder, manifest)
        trust = self.offer.trust
        identity = digest_text(self.offer.version.digest)
        atomic_write(self.folder / MANIFEST_NAME, self.offer.document, mode=0o600)
        write_origin(self.folder, Origin(self._store.url, identity, trust.kind, trust.key, now()))
        wait_seconds = max(config.number("lock_wait_seconds"), _PUBLISH_WAIT_SECONDS)
        with snapshot_lock(config.run_folder, manifest.name, wait_seconds=wait_seconds):
            self.replaced = publish(self.folder, self.destination)
            remember_verified(self.destination, manifest, config.run_folder)
            remove_staged(config.run_folder, manifest.name, manifest.variant)  # of an earlier capture
        if self.replaced:
            shutil.rmtree(self.folder, ignore_errors=True)  # the older one, exchanged
        return StoredVariant(self.destination, manifest)

    def _refusing(self) -> _Refusing:
        return _Refusing(self.folder, self.offer.version.label, self._store.url)


class _Refusing:
    """What does not match its manifest was not worth keeping: the next fetch begins anew."""

    def __init__(self, folder: Path, label: str, url: str) -> None:
        self._folder = folder
        self._label = label
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DataError):
            shutil.rmtree(self._folder, ignore_errors=True)
            raise DataError(
                f"fetched snapshot does not fit its manifest: {self._label} of {self._url}: {error.message}",
                hint="copy the snapshot there again",
            ) from error


def is_newer_here(offer: Offer, config: Config) -> bool:
    """Whether this host has a later capture of the variant: the store's must not take its place unasked."""
    with suppress(ColdstartError):
        local = load_variant(config.state_folder, offer.version.name, offer.version.variant)
        return local.manifest.created > offer.version.captured
    return False


def early_plan(incoming: Incoming, config: Config) -> RestorePlan:
    """What will be restored, as far as it is known before the memory is here; nothing is verified by it."""
    manifest = incoming.offer.manifest
    return RestorePlan(
        manifest.name,
        manifest.variant,
        incoming.folder,
        manifest,
        find_criu(config.text("programs.criu")),
        incoming.offer.reason,
        VerifyPass(0.0, 0),
    )


def is_part(name: str) -> bool:
    """Whether a folder beside variants is of a fetch that has not ended."""
    return name.startswith(".") and name.endswith(_PART_SUFFIX)


def fetch_lock(config: Config, name: str) -> Path:
    """Held while a snapshot is fetched; restores and captures of it go on meanwhile."""
    return config.run_folder / "locks" / f"snapshot-fetch-{name}.lock"


def fetch_snapshot(
    offer: Offer, store: SnapshotStore, config: Config, on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[StoredVariant, Incoming]:
    """Fetch a version whole, unless this host has it."""
    with Incoming(offer, store, config, on_bytes) as incoming:
        if incoming.is_here:
            return StoredVariant(incoming.destination, offer.manifest), incoming
        incoming.begin()
        return incoming.finish(), incoming


def _require_private(folder: Path) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise DataError(f"folder of a fetch is not ours alone: {folder}", hint=f"rm -r {folder}")
