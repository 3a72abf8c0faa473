"""How much of an image a mount fetches."""

from __future__ import annotations

from enum import StrEnum

from coldstart_cli.errors import ConfigError


class FetchMode(StrEnum):
    """On demand only, everything in the background, or that only when demand turns out to lose."""

    LAZY = "lazy"
    ALL = "all"
    AUTO = "auto"


def parse_fetch_mode(text: str, source: str) -> FetchMode:
    if text not in set(FetchMode):
        raise ConfigError(
            f"wrong value of image.fetch, {source}: {text}", hint=f"it must be one of {', '.join(FetchMode)}"
        )
    return FetchMode(text)
