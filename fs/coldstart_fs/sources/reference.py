"""How sources name an image: `PATH[:TAG]`, familiar names of Docker, references of registries."""

from __future__ import annotations

import os
from collections.abc import Callable


def split_tag(rest: str, fits: Callable[[str], bool]) -> tuple[str, str | None]:
    """PATH and TAG of `PATH[:TAG]`: the path that fits, or exists, even when its name holds a colon."""
    ends = [position for position, letter in enumerate(rest) if letter == ":" and position]
    for good in (fits, os.path.lexists):
        for end in (len(rest), *ends):
            if good(rest[:end]):
                return rest[:end], rest[end + 1 :] or None
    end = ends[0] if ends else len(rest)
    return rest[:end], rest[end + 1 :] or None


def familiar_name(reference: str) -> str:
    """`docker.io/library/app` and `app:latest` are the same name."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        reference = reference.removeprefix(prefix)
    if "@" not in reference and ":" not in reference.rpartition("/")[2]:
        reference += ":latest"
    return reference
