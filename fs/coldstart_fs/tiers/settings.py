"""The tiers before a store, as an operator names them: where each is and how patient to be with it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_fs.stores.object_clients import Location


@dataclass(frozen=True)
class TierSettings:
    """`retries` are of one read at this tier: connections that break, and answers that the server failed."""

    url: str
    concurrency: int = 32
    connect_timeout_seconds: float = 2.0
    read_timeout_seconds: float = 10.0
    retries: int = 1

    def as_text(self) -> str:
        """As `parse_tiers` reads it."""
        default = TierSettings(self.url)
        given = {name: getattr(self, name) for name in _NUMBERS}
        changed = [f"{name}={value}" for name, value in given.items() if value != getattr(default, name)]
        return ",".join([self.url, *changed])


STORE_DEFAULTS = TierSettings(
    "", concurrency=32, connect_timeout_seconds=5.0, read_timeout_seconds=15.0, retries=3
)
"""Of the store, which comes last."""
_MOST = 3600
_HINT = "a tier is an HTTP cache: write http://HOST:PORT/PATH"


_NUMBERS: dict[str, type[int | float]] = {
    "concurrency": int,
    "connect_timeout_seconds": float,
    "read_timeout_seconds": float,
    "retries": int,
}


def parse_tiers(texts: Iterable[str]) -> tuple[TierSettings, ...]:
    """Tiers in the order in which they are asked, each `URL` or `URL,NAME=VALUE,...`; else `UsageError`."""
    tiers = tuple(_parse(text) for text in texts)
    urls = [tier.url for tier in tiers]
    for url in urls:
        if urls.count(url) > 1:
            raise UsageError(f"tier is named twice: {url}", hint="name each tier once")
    return tiers


def _parse(text: str) -> TierSettings:
    url, *settings = text.split(",")
    if not re.match("https?://", url, re.IGNORECASE):
        # less what might be a password
        shown = re.sub("//[^/]*@", "//", url).partition("?")[0]
        raise UsageError(f"not a tier's URL: {shown}", hint=_HINT)
    location = Location.parse(url, whose="tier")
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in _NUMBERS:
            hint = near_matches_hint(name, _NUMBERS, otherwise=f"settings are {', '.join(_NUMBERS)}")
            raise UsageError(f"unknown setting of tier {location.url}: {name}", hint=hint)
        values[name] = _number(location.url, name, value)
    return TierSettings(location.url, **values)


def _number(url: str, name: str, text: str) -> int | float:
    try:
        number = _NUMBERS[name](text)
    except ValueError:
        number = math.nan
    least = 0 if name == "retries" else 1 if name == "concurrency" else 0.001
    if not least <= number <= _MOST:
        kind = "a whole number" if _NUMBERS[name] is int else "a number"
        raise UsageError(
            f"wrong {name} of tier {url}: {text}", hint=f"it must be {kind} from {least} to {_MOST}"
        )
    return number
