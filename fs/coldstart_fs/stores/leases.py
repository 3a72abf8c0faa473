"""Leases: who uses an image of a shared store from elsewhere, until when. Small objects beside the image."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from coldstart_cli.errors import DataError, UsageError
from coldstart_fs.format.names import digest_text
from coldstart_fs.stores.store import Store, check_document

LEASE_DAYS = 30.0
_SCHEMA = "coldstart.lease"
_PREFIX = "leases/"
_HOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Lease:
    """`holder` uses `image`; `until` is None where the lease cannot be read, which counts as for ever."""

    image: bytes
    holder: str
    until: datetime | None

    def holds(self, now: datetime) -> bool:
        return self.until is None or self.until > now


def lease_key(image: bytes, holder: str) -> str:
    """Where a lease is kept; a holder's name is a file's."""
    if not _HOLDER.fullmatch(holder):
        raise UsageError(
            f"not the name of a holder: {holder}",
            hint="1-128 letters, digits, `_`, `.`, `-`, beginning with a letter or digit",
        )
    return f"{_PREFIX}{image.hex()}/{holder}.json"


def lease(store: Store, image: bytes, holder: str, *, days: float = LEASE_DAYS) -> Lease:
    """Hold an image, or hold it for longer."""
    until = datetime.now(UTC) + timedelta(days=days)
    document = {
        "schema": _SCHEMA,
        "version": 1,
        "image": digest_text(image),
        "holder": holder,
        "until": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    store.put_bytes(lease_key(image, holder), json.dumps(document).encode() + b"\n")
    return Lease(image, holder, until)


def release(store: Store, image: bytes, holder: str) -> None:
    """Let go of an image; one that was not held is fine."""
    store.delete(lease_key(image, holder))


def list_leases(store: Store) -> list[Lease]:
    """Every lease of the store, ended ones too."""
    found = []
    for key in store.list(_PREFIX):
        folder, _, name = key.removeprefix(_PREFIX).partition("/")
        try:
            image = bytes.fromhex(folder)
        except ValueError:
            continue  # no lease of ours: it says of no image that it is used
        found.append(Lease(image, name.removesuffix(".json"), _until(store, key)))
    return found


def _until(store: Store, key: str) -> datetime | None:
    try:
        document = json.loads(store.get(key))
        check_document(document, _SCHEMA, f"{store.url}/{key}")
        until = datetime.fromisoformat(document["until"])
    except (DataError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return until if until.tzinfo is not None else None
