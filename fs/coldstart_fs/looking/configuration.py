"""An image's runtime configuration as values: what a container of it runs, and as whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import DataError

_INDEX_AGAIN = "index the image again"


@dataclass(frozen=True)
class RuntimeConfiguration:
    """What the image says; None and empty where it says nothing."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    user: str | None = None
    working_directory: str | None = None
    architecture: str | None = None
    os: str | None = None

    @property
    def platform(self) -> str | None:
        known = [part for part in (self.os, self.architecture) if part]
        return "/".join(known) or None

    @property
    def variables(self) -> dict[str, str]:
        """The environment by name; the last of two equal names wins, as in a container."""
        pairs = (entry.partition("=") for entry in self.environment)
        return {name: value for name, separator, value in pairs if name and separator}


def flaw_of_text(value: object) -> str | None:
    """Why a value cannot be a text of a configuration."""
    if not isinstance(value, str):
        return "is not a text"
    if "\0" in value:
        return "holds a zero byte, which no program can be given"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "holds half a character"
    return None


def flaw_of_texts(value: object) -> str | None:
    """Why a value cannot be a list of such texts."""
    if not isinstance(value, list):
        return "is not a list of texts"
    return next((f"{flaw}: item {at}" for at, item in enumerate(value) if (flaw := flaw_of_text(item))), None)


def parse_configuration(document: Mapping[str, Any], image: str) -> RuntimeConfiguration:
    """Check the types of a configuration: an index may come from anybody."""

    def check(key: str, flaw: str | None) -> None:
        if flaw is not None:
            raise DataError(f"configuration of image {image} is damaged: `{key}` {flaw}", hint=_INDEX_AGAIN)

    def text(key: str) -> str | None:
        value = document.get(key)
        if value is not None:
            check(key, flaw_of_text(value))
        return value or None

    def texts(key: str) -> tuple[str, ...]:
        value = document.get(key, [])
        check(key, flaw_of_texts(value))
        return tuple(value)

    return RuntimeConfiguration(
        texts("entrypoint"),
        texts("command"),
        texts("environment"),
        text("user"),
        text("working_directory"),
        text("architecture"),
        text("os"),
    )
