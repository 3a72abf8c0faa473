"""Removing what no image of a store needs: mark, wait, sweep. What may be in use is in use.

An image is in use while a name stands for it, a lease holds it, or this host uses it; and for a grace time
after it was written, since names and leases come last. A pack is in use while an image in use has a chunk in
it. What is not is first condemned, in a list that writers heed, and removed by a run after the grace time if
it is still not in use: so a writer that began before the list was written is through by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from coldstart_cli.errors import ColdstartError, DataError, UsageError
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import locator_key, pack_key
from coldstart_fs.stores.condemned import Condemned, load_condemned, save_condemned
from coldstart_fs.stores.leases import Lease, lease_key, list_leases
from coldstart_fs.stores.references import list_names, read_ref
from coldstart_fs.stores.store import Store, StoredObject

DEFAULT_GRACE_SECONDS = 7 * 86400.0
# an indexing into a bucket takes no lock; it must be through before what it may have built upon goes
SHORTEST_BUCKET_GRACE_SECONDS = 3600.0
OF_IMAGES = ("images/", "locators/", "traces/")
"""Prefixes of objects that belong to one image, and go with it."""


@dataclass
class Collection:
    """What a run found and did, in objects and bytes; `condemned` waits for a later run."""

    images_in_use: int = 0
    packs_in_use: int = 0
    bytes_in_use: int = 0
    condemned: list[StoredObject] = field(default_factory=list)
    removed: list[StoredObject] = field(default_factory=list)
    ended_leases: int = 0


def collect(
    store: Store,
    *,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    in_use: Iterable[bytes] = (),
    owned: tuple[str, ...] = OF_IMAGES,
    without_names: Iterable[str] = (),
    dry_run: bool = False,
    wait_seconds: float = 0.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Collection:
    """Condemn what is not in use, and remove what was condemned long enough ago.

    `in_use` are images that this host uses; `without_names` count as removed already. Other things than
    images are collected alike: `owned` are the prefixes of what belongs to one of them. A name or a locator
    that cannot be read ends the run before anything changes: what it stands for is not known.
    """
    if grace_seconds < 0:
        raise UsageError(f"a grace time is not negative: {grace_seconds:g}")
    is_bucket = store.local_path("") is None
    if is_bucket and grace_seconds < SHORTEST_BUCKET_GRACE_SECONDS:
        raise UsageError(
            f"grace time is too short for a store without a lock: {grace_seconds:g} s",
            hint=f"at least {SHORTEST_BUCKET_GRACE_SECONDS:g} s",
        )
    run = _Run(store, grace_seconds, frozenset(in_use), owned, frozenset(without_names), tell)
    if dry_run:
        with TemporaryDirectory(prefix="coldstart-gc-") as scratch:
            return run.look(Path(scratch))
    with store.writing(wait_seconds=wait_seconds) as scratch:
        return run.work(Path(scratch))


class _Run:
    def __init__(
        self,
        store: Store,
        grace_seconds: float,
        in_use: frozenset[bytes],
        owned: tuple[str, ...],
        without_names: frozenset[str],
        tell: Callable[[str], None],
    ) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._in_use = in_use
        self._owned = owned
        self._without_names = without_names
        self._tell = tell
        self._now = time.time()
        self._report = Collection()
        self._ended: list[Lease] = []

    def look(self, scratch: Path) -> Collection:
        """What `work` would do."""
        condemned = load_condemned(self._store)
        unused = self._unused(scratch)
        self._report.removed = [one for one in unused if self._is_due(one, condemned)]
        self._report.condemned = [one for one in unused if not self._is_due(one, condemned)]
        return self._report

    def work(self, scratch: Path) -> Collection:
        before = load_condemned(self._store)
        unused = self._unused(scratch)
        since = {one.key: min(before.since.get(one.key, self._now), self._now) for one in unused}
        # written before anything goes: who reads it now builds on none of it
        save_condemned(self._store, Condemned(since))
        for ended in self._ended:
            self._store.delete(lease_key(ended.image, ended.holder))
        due = [one for one in unused if self._is_due(one, before)]
        if due:
            # names and leases that came in the meantime
            still_unused = {one.key: one for one in self._unused(scratch)}
            # images first: a reader never meets one whose packs are gone
            for one in sorted(due, key=lambda one: one.key.startswith("packs/")):
                if still_unused.get(one.key) == one:
                    self._remove(one)
                    del since[one.key]
            save_condemned(self._store, Condemned(since))
        self._report.condemned = [one for one in unused if one.key in since]
        return self._report

    def _remove(self, one: StoredObject) -> None:
        self._store.delete(one.key)
        self._report.removed.append(one)
        self._tell(f"removed {one.key} ({one.size_bytes} bytes)")

    def _is_due(self, one: StoredObject, before: Condemned) -> bool:
        since = before.since.get(one.key, self._now)
        return since <= self._now - self._grace_seconds

    def _unused(self, scratch: Path) -> list[StoredObject]:
        objects = [one for prefix in (*self._owned, "packs/") for one in self._store.inventory(prefix)]
        young = {
            key for one in objects if self._is_young(one) and (key := self._image_of(one.key)) is not None
        }
        used = self._images_in_use() | young
        held = {one.key for one in objects if one.key.startswith("locators/")}
        packs: set[str] = set()
        for image in used:
            if locator_key(image) in held:
                packs |= self._packs_of(image, scratch)
        unused = []
        self._report.bytes_in_use = self._report.packs_in_use = 0
        for one in objects:
            image_of = self._image_of(one.key)
            is_used = image_of in used if image_of is not None else one.key in packs
            if is_used or self._is_young(one):
                self._report.bytes_in_use += one.size_bytes
                self._report.packs_in_use += one.key.startswith("packs/")
            elif image_of is not None or _is_pack(one.key):
                unused.append(one)
        self._report.images_in_use = len(used)
        return unused

    def _is_young(self, one: StoredObject) -> bool:
        return one.modified_seconds > self._now - self._grace_seconds

    def _images_in_use(self) -> set[bytes]:
        used = set(self._in_use)
        for name in list_names(self._store):
            if name in self._without_names:
                continue
            try:
                used.add(read_ref(self._store, name).digest)
            except DataError as error:
                error.add("nothing is removed while it is not known which image that is")
                raise
        now = datetime.now(UTC)
        leases = list_leases(self._store)
        used |= {lease.image for lease in leases if lease.holds(now)}
        self._ended = [lease for lease in leases if not lease.holds(now)]
        self._report.ended_leases = len(self._ended)
        return used

    def _packs_of(self, image: bytes, scratch: Path) -> set[str]:
        key = locator_key(image)
        path = self._store.local_path(key)
        try:
            if path is None:
                path = scratch / "locator"
                path.write_bytes(self._store.get(key))
            with Locator.open(path) as locator:
                return {pack_key(pack) for pack in locator.packs}
        except ColdstartError as error:
            error.add("nothing is removed while it is not known which packs that image needs")
            raise

    def _image_of(self, key: str) -> bytes | None:
        """The image that an object belongs to; None for packs, and for what is none of ours."""
        for prefix in self._owned:
            if key.startswith(prefix):
                text = key.removeprefix(prefix).partition("/")[0].partition(".")[0]
                try:
                    image = bytes.fromhex(text)
                except ValueError:
                    return None
                return image if len(image) == 32 else None
        return None


def _is_pack(key: str) -> bool:
    try:
        return pack_key(bytes.fromhex(key.rpartition("/")[2].removesuffix(".pack"))) == key
    except ValueError:
        return False
