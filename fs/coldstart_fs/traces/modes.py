"""How far a replay goes."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Into the kernel's page cache, into the local chunk cache only, or nowhere."""

    PAGES = "pages"
    CACHE = "cache"
    OFF = "off"
