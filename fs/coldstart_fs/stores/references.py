"""Names of images: small files of a store, written last, and what they stand for."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UsageError,
    near_matches_hint,
)
from coldstart_fs.format.names import digest_text, index_key, parse_digest, ref_key, split_reference
from coldstart_fs.stores.copies import Tell, from_cache, index_copy, ref_of
from coldstart_fs.stores.store import Store, check_document

_SCHEMA = "coldstart.ref"


@dataclass(frozen=True)
class ResolvedImage:
    """What a name stands for; `name` is the digest's text where only a digest was given."""

    name: str
    digest: bytes

    @property
    def pinned(self) -> str:
        text = digest_text(self.digest)
        return self.name if self.name == text else f"{self.name}@{text}"


@dataclass(frozen=True)
class Ref:
    """What one reference file says."""

    digest: bytes
    created: str


def list_names(store: Store) -> list[str]:
    """All image names of a store, sorted."""
    names = [key.removeprefix("refs/") for key in store.list("refs/")]
    if not names:
        store.confirm()
    return names


def resolve_image(
    store: Store, name: str, *, cache: Path | None = None, tell: Tell = lambda _: None
) -> ResolvedImage:
    """What NAME, NAME@blake3:HEX or blake3:HEX stands for in this store.

    With `cache`, a store that cannot be reached is no failure for an image that was opened before;
    `tell` hears of it.
    """
    wanted, pinned = split_reference(name)
    try:
        if wanted is None:
            assert pinned is not None
            if not store.exists(index_key(pinned)):
                raise _not_in_store(store, name)
            return ResolvedImage(name, pinned)
        content = ref_of(store, wanted, ref_key(wanted), cache, tell)
        try:
            digest = _parse(content, _place(store, wanted)).digest
        except DataError:
            store.confirm()  # what is no reference may come from what is no store
            raise
    except NotFoundError as error:
        raise _not_in_store(store, wanted or name) from error
    except (IoFailure, PermissionNeededError) as error:
        if pinned is None or cache is None or not index_copy(pinned, cache).exists():
            raise
        tell(from_cache("image", index_copy(pinned, cache), error))
        return ResolvedImage(wanted or name, pinned)
    if pinned is not None and pinned != digest:
        raise _other_image(store, wanted, digest, pinned)
    return ResolvedImage(wanted, digest)


def write_ref(store: Store, name: str, digest: bytes) -> None:
    """Let a name stand for an image: the last step of publishing it."""
    document = {
        "schema": _SCHEMA,
        "version": 1,
        "image": digest_text(digest),
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    store.put_bytes(ref_key(name), json.dumps(document).encode() + b"\n")


def check_can_name(store: Store, name: str) -> None:
    """Refuse a name that a folder store cannot have beside those it has: `app` and `app/x`."""
    place = store.local_path(ref_key(name))
    if place is None:
        return
    above = [parent for parent in place.parents if parent.is_file()]
    if place.is_dir() or above:
        raise CannotCreateError(
            f"names collide in the store: {name} and those below or above it: {above[0] if above else place}",
            hint="choose another name",
        )


def read_ref(store: Store, name: str) -> Ref:
    """The reference behind a name, as it stands in the store."""
    return _parse(store.get(ref_key(name)), _place(store, name))


def _place(store: Store, name: str) -> str:
    return f"{store.url}/{ref_key(name)}"


def _parse(content: bytes, place: str) -> Ref:
    try:
        document = json.loads(content)
        check_document(document, _SCHEMA, place)
        return Ref(parse_digest(document["image"]), str(document["created"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise DataError(f"image name is damaged: {place}", hint="index the image again") from error


def _other_image(store: Store, name: str, digest: bytes, pinned: bytes) -> DataError:
    hint = f"pin it as {name}@{digest_text(digest)}"
    with suppress(ColdstartError):
        if store.exists(index_key(pinned)):
            hint += f", or use {digest_text(pinned)} alone"
    return DataError(
        f"image name `{name}` stands for {digest_text(digest)}, not for {digest_text(pinned)}", hint=hint
    )


def _not_in_store(store: Store, name: str) -> NotFoundError:
    store.confirm()
    hint = None
    with suppress(UnavailableError, PermissionNeededError):  # not every store tells what it has
        listing = f"coldstart image ls --store {shlex.quote(store.url)}"
        hint = near_matches_hint(name, list_names(store), otherwise=listing)
    return NotFoundError(f"image is not in the store: {name}", hint=hint)
