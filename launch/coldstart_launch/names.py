"""What a replica may be called: its name becomes a folder, a container id and a cgroup."""

from __future__ import annotations

import re

from coldstart_cli.errors import UsageError

NAME_HINT = "1-63 letters, digits, `_`, `.`, `-`, beginning with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def is_replica_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_replica_name(name: str, option: str) -> str:
    """The name that an option gives, refused before anything is made for it."""
    if not is_replica_name(name):
        raise UsageError(f"{option} is not usable as a container id: {name[:80]!r}", hint=NAME_HINT)
    return name
