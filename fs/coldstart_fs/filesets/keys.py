"""Where a store of file sets keeps things, beside packs and locators, which are those of images."""

from __future__ import annotations

OWNED = ("documents/", "maps/", "locators/", "signatures/")
"""Prefixes of objects that belong to one set, and go with it."""


def document_key(identity: bytes) -> str:
    """The document whose digest is the set's identity."""
    return f"documents/{identity.hex()}.toml"


def map_key(identity: bytes) -> str:
    return f"maps/{identity.hex()}.map"


def signature_key(identity: bytes) -> str:
    return f"signatures/{identity.hex()}.minisig"


def versions_key(name: str) -> str:
    """The list of a name's versions, for servers that cannot list."""
    return f"versions/{name}.json"
