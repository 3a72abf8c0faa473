"""Reading a `coldstart.plan` document, TOML or JSON by its ending: what `simulate` and refills start from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, NotFoundError, PermissionNeededError
from coldstart_cli.regular import read_regular
from coldstart_cli.version import __version__

SCHEMA = "coldstart.plan"
NEWEST_VERSION = 1
_LARGEST_BYTES = 64 << 20


def read_plan(path: Path) -> dict[str, Any]:
    """The document of a plan file; one that is no plan, or a newer one, is refused by name."""
    try:
        content = read_regular(path, _LARGEST_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"plan does not exist: {path}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read plan: {path}", hint="run as root") from error
    except OSError as error:
        raise DataError(f"cannot read plan: {path}: {error.strerror or error}") from error
    try:
        text = content.decode("utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"plan is not valid {path.suffix.lstrip('.').upper()}: {path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DataError(f"not a {SCHEMA} document: {path}", hint="coldstart pool plan --output FILE")
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DataError(f"plan is malformed: {path}: version is not a number from 1 up")
    if version > NEWEST_VERSION:
        raise DataError(
            f"plan has version {version}, coldstart {__version__} reads up to {NEWEST_VERSION}: {path}",
            hint="install a newer coldstart",
        )
    offers = document.get("offers", [])
    if not isinstance(offers, list) or not all(isinstance(offer, dict) for offer in offers):
        raise DataError(f"plan is malformed: {path}: offers is not a list of tables")
    return document
