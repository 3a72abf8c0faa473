"""Image names, digests as text, and the keys under which a store keeps things."""

from __future__ import annotations

import re

from coldstart_cli.errors import UsageError

DIGEST_BYTES = 32
_PREFIX = "blake3:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_HEX = re.compile(r"[0-9a-f]{64}")


def check_name(name: str) -> str:
    """The name itself, when it may name an image."""
    components = name.split("/")
    bad = len(name) > 255 or not _NAME.fullmatch(name) or any(part in {"", ".", ".."} for part in components)
    if bad or name.startswith(_PREFIX):
        raise UsageError(
            f"not an image name: {name}",
            hint="1-255 characters of A-Z a-z 0-9 . _ - / : beginning with a letter or digit, "
            "with no empty, `.` or `..` component",
        )
    return name


def digest_text(digest: bytes) -> str:
    return _PREFIX + digest.hex()


def parse_digest(text: str) -> bytes:
    """`blake3:` and 64 hex digits as 32 bytes."""
    if not text.startswith(_PREFIX) or not _HEX.fullmatch(text[len(_PREFIX) :]):
        raise UsageError(f"not a digest: {text}", hint="a digest is `blake3:` and 64 hex digits")
    return bytes.fromhex(text[len(_PREFIX) :])


def split_reference(reference: str) -> tuple[str | None, bytes | None]:
    """NAME, NAME@blake3:HEX or blake3:HEX as a name and a digest; at least one of them is there."""
    if reference.startswith(_PREFIX):
        return None, parse_digest(reference)
    name, separator, digest = reference.partition("@")
    return check_name(name), parse_digest(digest) if separator else None


def ref_key(name: str) -> str:
    return f"refs/{name}"


def index_key(digest: bytes) -> str:
    return f"images/{digest.hex()}.index"


def locator_key(digest: bytes) -> str:
    return f"locators/{digest.hex()}.locator"


def pack_key(digest: bytes) -> str:
    text = digest.hex()
    return f"packs/{text[:2]}/{text}.pack"


def changed_pack_hint(pack: bytes) -> str:
    """What helps against wrong bytes in a pack: it has its right length, so an indexing would reuse it."""
    return f"remove {pack_key(pack)} from the store and index the image again"
