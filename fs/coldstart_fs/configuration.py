"""An image's runtime configuration as values: what a container of it runs, and as whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import DataError


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


def parse_configuration(document: Mapping[str, Any], image: str) -> RuntimeConfiguration:
    """Check the types of a configuration: an index may come from anybody."""

    def text(key: str) -> str | None:
        value = document.get(key)
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise DataError(f"configuration of image {image} is damaged: `{key}` is not a text")
        return value or None

    def texts(key: str) -> tuple[str, ...]:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and "\0" not in item for item in value
        ):
            raise DataError(f"configuration of image {image} is damaged: `{key}` is not a list of texts")
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
