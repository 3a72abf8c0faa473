"""Snapshots in a store: the one door from here to `coldstart_fs`, for stores, packs and locators.

They have a store of their own, `snapshots/` below the address, with its own lock, names and credentials.
Nothing of it passes through a cache of images or of a region: heaps hold secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coldstart_cli.config import Config
from coldstart_cli.errors import (
    ColdstartError,
    DataError,
    NotFoundError,
    UnavailableError,
    UsageError,
    near_matches_hint,
)
from coldstart_fs.filesets.check import problems_of
from coldstart_fs.filesets.fetch import BroughtFiles, FileFetch
from coldstart_fs.filesets.keys import OWNED, document_key, map_key, signature_key, versions_key
from coldstart_fs.filesets.publish import FileToSend, SentFiles, publish_files
from coldstart_fs.format.chunk import Compression, chunk_digest
from coldstart_fs.format.file_map import FileMap
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import digest_text, locator_key, parse_digest, ref_key
from coldstart_fs.mounts.leasing import hold_on_this_host
from coldstart_fs.stores.collect import collect
from coldstart_fs.stores.leases import list_leases
from coldstart_fs.stores.parallel import run_parallel
from coldstart_fs.stores.store import MARKER, SNAPSHOTS, Store, StoredObject, check_document
from coldstart_fs.stores.store_url import open_store
from coldstart_snapshot.kept.manifest import Manifest, check_name

__all__ = [
    "BroughtFiles",
    "Compression",
    "FileFetch",
    "FileToSend",
    "SentFiles",
    "SnapshotReference",
    "SnapshotStore",
    "StoredObject",
    "StoredVersion",
    "digest_text",
    "hold_image",
    "identity_of",
    "images_needed",
    "now",
    "parse_digest",
]
_REF_SCHEMA = "coldstart.ref"
_VERSIONS_SCHEMA = "coldstart.snapshot-versions"
_READERS = 8
_TRIES = 5


@dataclass(frozen=True)
class SnapshotReference:
    """NAME[/VARIANT][@blake3:DIGEST]: what commands and specifications name a snapshot by."""

    name: str
    variant: str | None = None
    digest: bytes | None = None

    @classmethod
    def parse(cls, text: str) -> SnapshotReference:
        path, separator, digest = text.partition("@")
        name, slash, variant = path.partition("/")
        return cls(
            check_name(name),
            check_name(variant) if slash else None,
            parse_digest(digest) if separator else None,
        )


@dataclass(frozen=True)
class StoredVersion:
    """One capture of a variant in a store; versions are told apart by when they were captured."""

    name: str
    variant: str
    digest: bytes
    captured: str
    published: str
    size_bytes: int
    root_image: str | None

    @property
    def generation(self) -> str:
        """Sorts by time of capture."""
        return f"{re.sub('[^0-9TZ]', '', self.captured)}-{self.digest.hex()[:8]}"

    @property
    def label(self) -> str:
        return f"{self.name}/{self.variant}"

    @property
    def ref(self) -> str:
        return f"{self.name}/{self.variant}/{self.generation}"

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "variant": self.variant,
            "image": digest_text(self.digest),
            "captured": self.captured,
            "created": self.published,
            "size_bytes": self.size_bytes,
            "root_image": self.root_image,
        }

    @classmethod
    def parse(cls, document: Any, place: str) -> StoredVersion:
        try:
            return cls(
                name=check_name(document["name"]),
                variant=check_name(document["variant"]),
                digest=parse_digest(document["image"]),
                captured=str(document["captured"]),
                published=str(document["created"]),
                size_bytes=int(document["size_bytes"]),
                root_image=document["root_image"],
            )
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise DataError(f"snapshot's name is damaged: {place}", hint="copy the snapshot again") from error


def identity_of(document: bytes) -> bytes:
    """A snapshot's identity: the digest of its manifest, which holds those of all its files."""
    return chunk_digest(document)


class SnapshotStore:
    """The snapshots at one address."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self.url = url

    @classmethod
    def open(
        cls, url: str, config: Config, *, create: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> SnapshotStore:
        """The snapshots below a folder or URL; with `create`, they may be the first there."""
        path = config.optional_text("snapshot.credentials")
        try:
            store = open_store(
                f"{url.rstrip('/') or '/'}/{SNAPSHOTS}",
                create=create,
                credentials=Path(path) if path else None,
                tell=tell,
            )
        except NotFoundError as error:
            raise _no_store(url) from error
        return cls(store, url)

    def hasty(self) -> SnapshotStore:
        """The same, for who can do without: asked once, and not for long."""
        return SnapshotStore(self._store.hasty(), self.url)

    def exists(self) -> bool:
        """Whether anything was ever copied there."""
        return self._store.exists(MARKER)

    def versions(self, name: str | None = None) -> tuple[StoredVersion, ...]:
        """Every version, by name, variant and time of capture; damage is an error: it may hide one."""
        try:
            keys = self._store.list(f"refs/{name}/" if name else "refs/")
        except UnavailableError:
            if name is None:
                raise
            return self._published_versions(name)
        if not keys:
            self._confirm()

        def read(key: str) -> StoredVersion:
            place = f"{self._store.url}/{key}"
            return StoredVersion.parse(_document(self._store.get(key), _REF_SCHEMA, place), place)

        found = run_parallel(read, keys, workers=_READERS)
        return tuple(sorted(found, key=lambda one: (one.name, one.variant, one.generation)))

    def require_versions(self, reference: SnapshotReference) -> tuple[StoredVersion, ...]:
        """The versions that a reference may mean; refused with what is near when there are none."""
        found = [
            one
            for one in self.versions(reference.name)
            if reference.variant in {None, one.variant} and reference.digest in {None, one.digest}
        ]
        if not found:
            raise self._not_there(reference)
        return tuple(found)

    def document(self, version: StoredVersion) -> bytes:
        """The manifest's bytes, proven to be those of this version."""
        try:
            content = self._store.get(document_key(version.digest))
        except NotFoundError as error:
            raise DataError(f"snapshot is damaged: {version.label}: {error.message}") from error
        if identity_of(content) != version.digest:
            raise DataError(
                f"manifest is damaged in the store: {self.url}: {version.label}: its digest is "
                f"{digest_text(identity_of(content))}, not {digest_text(version.digest)}",
                hint="copy the snapshot there again",
            )
        return content

    def signature(self, version: StoredVersion) -> bytes | None:
        try:
            return self._store.get(signature_key(version.digest))
        except NotFoundError:
            return None

    @contextmanager
    def writing(self, wait_seconds: float) -> Iterator[Path]:
        """A scratch folder, while nobody else writes where the store can tell."""
        with self._store.writing(wait_seconds=wait_seconds) as scratch:
            yield scratch

    def publish(
        self,
        version: StoredVersion,
        document: bytes,
        signature: bytes | None,
        files: Iterable[FileToSend],
        *,
        scratch: Path,
        compression: Compression | None,
        on_bytes: Callable[[int], None],
    ) -> SentFiles:
        """Files, manifest and signature, then the name: what is interrupted before that is not there."""
        sent = publish_files(
            self._store, scratch, version.digest, files, compression=compression, on_bytes=on_bytes
        )
        self._store.put_bytes(document_key(version.digest), document)
        if signature is not None:
            self._store.put_bytes(signature_key(version.digest), signature)
        content = json.dumps({"schema": _REF_SCHEMA, "version": 1, **version.document()}).encode() + b"\n"
        self._store.put_bytes(ref_key(version.ref), content)
        self._publish_versions(version.name)
        return sent

    @contextmanager
    def fetching(
        self, version: StoredVersion, folder: Path, on_bytes: Callable[[int], None]
    ) -> Iterator[tuple[FileFetch, FileMap]]:
        """The files of a version, to be brought into `folder`."""
        place = f"{self._store.url}/{map_key(version.digest)}"
        with ExitStack() as stack:
            try:
                files = FileMap.decode(self._store.get(map_key(version.digest)), place)
                place = f"{self._store.url}/{locator_key(version.digest)}"
                locator = stack.enter_context(Locator.of(self._store.get(locator_key(version.digest)), place))
            except (DataError, NotFoundError) as error:
                if error.hint == "install a newer coldstart":
                    raise
                raise DataError(
                    f"snapshot is damaged: {version.label}: {error.message}",
                    hint="copy the snapshot there again",
                ) from error
            yield FileFetch(self._store, files, locator, folder, on_bytes=on_bytes), files

    def collect(
        self,
        dropped: Collection[StoredVersion],
        *,
        grace_seconds: float,
        dry_run: bool,
        wait_seconds: float,
        tell: Callable[[str], None],
    ) -> tuple[list[StoredObject], list[StoredObject]]:
        """Drop names, then remove what nothing needs: objects removed now, and those a later run removes."""
        if not dry_run:
            with self._store.writing(wait_seconds=wait_seconds):
                for version in dropped:
                    self._store.delete(ref_key(version.ref))
                for name in sorted({version.name for version in dropped}):
                    self._publish_versions(name)
        found = collect(
            self._store,
            grace_seconds=grace_seconds,
            owned=OWNED,
            without_names=[version.ref for version in dropped],
            dry_run=dry_run,
            wait_seconds=wait_seconds,
            tell=tell,
        )
        return found.removed, found.condemned

    def leased(self) -> set[bytes]:
        """The versions that somebody holds a lease on."""
        now_ = datetime.now(UTC)
        return {lease.image for lease in list_leases(self._store) if lease.holds(now_)}

    def problems(self, version: StoredVersion, manifest: Manifest) -> tuple[str, ...]:
        """What the store lacks of a version; contents are not read."""
        files = [(file.path, file.size_bytes) for file in manifest.files]
        return tuple(problems_of(self._store, version.digest, files))

    def _publish_versions(self, name: str) -> None:
        """The list for those who cannot list; made anew until nobody else has published meanwhile."""
        for _ in range(_TRIES):
            versions = self.versions(name)
            document = {
                "schema": _VERSIONS_SCHEMA,
                "version": 1,
                "versions": [one.document() for one in versions],
            }
            if versions:
                self._store.put_bytes(versions_key(name), json.dumps(document).encode() + b"\n")
            else:
                self._store.delete(versions_key(name))
            if self._store.list(f"refs/{name}/") == sorted(ref_key(one.ref) for one in versions):
                return

    def _published_versions(self, name: str) -> tuple[StoredVersion, ...]:
        place = f"{self._store.url}/{versions_key(name)}"
        try:
            document = _document(self._store.get(versions_key(name)), _VERSIONS_SCHEMA, place)
        except NotFoundError:
            self._confirm()
            return ()
        versions = document.get("versions")
        if not isinstance(versions, list):
            raise DataError(f"list of versions is damaged: {place}")
        return tuple(StoredVersion.parse(one, place) for one in versions)

    def _confirm(self) -> None:
        try:
            self._store.confirm()
        except NotFoundError as error:
            raise _no_store(self.url) from error

    def _not_there(self, reference: SnapshotReference) -> NotFoundError:
        what = reference.name if reference.variant is None else f"{reference.name}/{reference.variant}"
        if reference.digest is not None:
            what += f"@{digest_text(reference.digest)}"
        hint = None
        try:
            names = {one.name for one in self.versions()}
            hint = near_matches_hint(
                reference.name, names, otherwise=f"it has {', '.join(sorted(names)) or 'none'}"
            )
        except ColdstartError:  # not every store tells what it has
            pass
        return NotFoundError(f"snapshot is not in the store: {what}: {self.url}", hint=hint)


def images_needed(url: str, config: Config) -> set[str]:
    """The images that snapshots at an address need; none where nothing was ever copied to."""
    try:
        store = SnapshotStore.open(url, config)
    except NotFoundError:
        return set()
    if not store.exists():
        return set()
    return {one.root_image for one in store.versions() if one.root_image is not None}


def hold_image(store: str, image: str, *, dry_run: bool) -> bool:
    """Lease an image for the snapshots of this host; false where nobody else has the store."""
    return hold_on_this_host(
        open_store(store), parse_digest(image.rpartition("@")[2]), "snapshots", dry_run=dry_run
    )


def _document(content: bytes, schema: str, place: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"damaged: {place} is not JSON") from error
    check_document(document, schema, place)
    assert isinstance(document, dict)
    return document


def _no_store(url: str) -> NotFoundError:
    return NotFoundError(
        f"there are no snapshots at this address: {url}",
        hint=f"`coldstart snap copy NAME --to {url}` copies one there",
    )


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
