"""What a store is about to lose: objects found unused, and since when. Writers do not build on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_fs.format.names import pack_key
from coldstart_fs.stores.store import Store, check_document

KEY = "condemned.json"
_SCHEMA = "coldstart.condemned"
_HINT = f"remove {KEY} from the store: what is unused is then condemned anew"


@dataclass(frozen=True)
class Condemned:
    """Keys of objects and since when (seconds since 1970) no image was found to need them."""

    since: Mapping[str, float] = field(default_factory=dict)

    def has_pack(self, pack: bytes) -> bool:
        return pack_key(pack) in self.since


def load_condemned(store: Store) -> Condemned:
    """The list of a store, empty where nothing was ever condemned; a damaged one is refused."""
    place = f"{store.url}/{KEY}"
    try:
        content = store.get(KEY)
    except NotFoundError:
        return Condemned()
    try:
        document = json.loads(content)
        check_document(document, _SCHEMA, place)
        return Condemned({str(key): float(value) for key, value in document["objects"].items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"damaged: {place}: {error}", hint=_HINT) from error
    except DataError as error:
        error.hint = error.hint or _HINT
        raise


def save_condemned(store: Store, condemned: Condemned) -> None:
    document = {"schema": _SCHEMA, "version": 1, "objects": dict(sorted(condemned.since.items()))}
    store.put_bytes(KEY, json.dumps(document).encode() + b"\n")
