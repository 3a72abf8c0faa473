"""Configuration with provenance: flag > COLDSTART_* > --config > user > /etc/coldstart > default."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli import paths
from coldstart_cli.errors import ConfigError, UsageError, near_matches_hint
from coldstart_cli.own_folders import require_own_folder
from coldstart_cli.settings import SETTINGS, Scalar, Setting

__all__ = ["SETTINGS", "Config", "Scalar", "Setting", "Value", "environment_reference", "load"]

_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True)
class Value:
    value: Scalar
    source: str


_BY_KEY = {setting.key: setting for setting in SETTINGS}


class Config:
    """Settings with where each came from. Loading has checked them; only a default can still be missing."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)
        self._own_folders: dict[str, Path] = {}

    def value(self, key: str) -> Value:
        if key not in self._values:
            self._values[key] = Value(_BY_KEY[key].default(), "default")
        return self._values[key]

    def text(self, key: str) -> str:
        value = self.value(key).value
        assert isinstance(value, str)
        return value

    def optional_text(self, key: str) -> str | None:
        value = self.value(key).value
        return None if value is None else str(value)

    def number(self, key: str) -> float:
        value = self.value(key).value
        assert isinstance(value, int | float)
        return float(value)

    def optional_integer(self, key: str) -> int | None:
        value = self.value(key).value
        assert value is None or isinstance(value, int)
        return value

    def replaced(self, values: Mapping[str, Scalar], source: str) -> Config:
        """The same with other values for some keys; keys that this release does not have are passed over."""
        given = {key: Value(value, source) for key, value in values.items() if key in _BY_KEY}
        return Config({**self._values, **given})

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.value(key).value
        assert isinstance(value, tuple)
        return value

    def switch(self, key: str) -> bool:
        value = self.value(key).value
        assert isinstance(value, bool)
        return value

    @property
    def state_folder(self) -> Path:
        return self._own_folder("state_dir")

    @property
    def cache_folder(self) -> Path:
        return self._own_folder("cache_dir")

    @property
    def run_folder(self) -> Path:
        """With symlinks followed, such as /var/run: the mount table has no other names."""
        return Path(os.path.realpath(self._own_folder("run_dir")))

    def _own_folder(self, key: str) -> Path:
        """Looked at once, before anything there is used; see `require_own_folder`."""
        if key not in self._own_folders:
            self._own_folders[key] = require_own_folder(Path(self.text(key)), key)
        return self._own_folders[key]

    @property
    def pool_supply_table(self) -> Path:
        """The table as configured, else `pool/supply.csv` below the state folder."""
        configured = self.optional_text("pool.supply_table")
        return Path(configured) if configured else self.state_folder / "pool" / "supply.csv"

    @property
    def store(self) -> str:
        """The store as configured, else the `store` folder below the state folder."""
        return self.optional_text("store") or str(self.state_folder / "store")

    @property
    def named_store(self) -> str:
        """The same, to be named and not to be used: nobody looks at its folder."""
        return self.optional_text("store") or str(Path(self.text("state_dir")) / "store")

    def environment(self) -> dict[str, str]:
        """Variables that give another `coldstart` the settings of this one, defaults left out."""
        values = {setting: value for setting, value in self.items() if value.source != "default"}
        return {
            setting.variable: str(value.value).lower() if setting.kind is bool else str(value.value)
            for setting, value in values.items()
            if value.value is not None
        }

    def items(self) -> list[tuple[Setting, Value]]:
        return [(setting, self.value(setting.key)) for setting in SETTINGS]


def load(flags: Mapping[str, Scalar] | None = None, config_file: Path | None = None) -> Config:
    """Merge all sources, the weakest first; refuse unknown keys and wrong types by file and key."""
    values: dict[str, Value] = {}
    for path, required in _files(config_file):
        values.update(_read_file(path, required=required))
    for setting in SETTINGS:
        if text := os.environ.get(setting.variable):
            values[setting.key] = Value(_parse(setting, text), f"environment {setting.variable}")
    known = {setting.variable for setting in SETTINGS} | _OTHER_VARIABLES.keys()
    for variable in os.environ:
        if variable.startswith("COLDSTART_") and variable not in known:
            raise ConfigError(
                f"unknown environment variable: {variable}", hint=near_matches_hint(variable, known)
            )
    for key, flag in (flags or {}).items():
        if flag is not None:
            values[key] = Value(_check_flag(_BY_KEY[key], flag), "command line")
    return Config(values)


_OTHER_VARIABLES: dict[str, str] = {
    "COLDSTART_CONFIG": "configuration file, as `--config`",
    "COLDSTART_DEBUG": "1: show tracebacks of expected errors, as `--debug`",
}


def environment_reference() -> list[tuple[str, str]]:
    """Every environment variable that is read, with its meaning."""
    return [(setting.variable, setting.meaning) for setting in SETTINGS] + list(_OTHER_VARIABLES.items())


def _files(config_file: Path | None) -> list[tuple[Path, bool]]:
    system = paths.system_config_folder()
    files: list[tuple[Path, bool]] = [(system / "config.toml", False)]
    # a folder that may not be searched has no fragments, and its config.toml tells why
    with suppress(PermissionError):
        files += [(path, False) for path in sorted((system / "conf.d").glob("*.toml"))]
    if user := paths.user_config_file():
        files.append((user, False))
    explicit = config_file or (Path(given) if (given := os.environ.get("COLDSTART_CONFIG")) else None)
    if explicit:
        files.append((explicit, True))
    return files


def _read_file(path: Path, *, required: bool) -> dict[str, Value]:
    try:
        with path.open("rb") as stream:  # a pipe or /dev/null will do
            content = stream.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise ConfigError(f"configuration file is larger than {_LARGEST_BYTES} bytes: {path}")
        document = tomllib.loads(content.decode("utf-8"))
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"configuration file does not exist: {path}") from error
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file is not valid TOML: {path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read configuration file: {path}: {error.strerror}") from error
    return {key: Value(_check(path, key, value), str(path)) for key, value in _flatten(document).items()}


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        key = prefix + name
        flat.update(_flatten(value, key + ".") if isinstance(value, dict) else {key: value})
    return flat


def _check(path: Path, key: str, value: object) -> Scalar:
    setting = _BY_KEY.get(key)
    if setting is None:
        raise ConfigError(f"unknown key in {path}: {key}", hint=near_matches_hint(key, _BY_KEY))
    if setting.kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf  # TOML's integers have no end here
    if setting.kind is tuple and isinstance(value, list) and all(isinstance(text, str) for text in value):
        value = tuple(value)
    # a bool is an int to isinstance; nan and inf would turn a deadline into none
    if type(value) is not setting.kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"wrong type in {path}: {key} must be {_KIND_NAMES[setting.kind]}")
    assert isinstance(value, str | int | float | tuple)
    if demand := _unmet(setting, value):
        raise ConfigError(f"wrong value in {path}: {key} must be {demand}: {value}")
    return value


def _check_flag(setting: Setting, value: Scalar) -> Scalar:
    if setting.folder and value:  # a person means the folder below the current one
        value = os.path.abspath(str(value))
    if demand := _unmet(setting, value):
        shown = " ".join(map(repr, value)) if isinstance(value, tuple) else value
        raise UsageError(f"wrong value on the command line: {setting.key} must be {demand}: {shown}")
    return value


def _unmet(setting: Setting, value: Scalar) -> str | None:
    """What the value should be and is not."""
    if setting.folder and not os.path.isabs(str(value)):
        return "an absolute path"
    if value == "" or (isinstance(value, tuple) and "" in value):
        return "something, not empty"
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return "a number, not negative"
    return None


def _parse(setting: Setting, text: str) -> Scalar:
    value: Scalar = None
    with suppress(ValueError):
        if setting.kind is str:
            value = text
        elif setting.kind is tuple:
            value = tuple(text.split())
        elif setting.kind is bool:
            value = {"1": True, "true": True, "0": False, "false": False}.get(text.lower())
        elif setting.kind is int:
            value = int(text)
        else:
            value = number if math.isfinite(number := float(text)) else None
    if value is None:
        raise ConfigError(
            f"wrong value in {setting.variable}: {text}", hint=f"it must be {_KIND_NAMES[setting.kind]}"
        )
    if demand := _unmet(setting, value):
        raise ConfigError(f"wrong value in {setting.variable}: {text}", hint=f"it must be {demand}")
    return value


_KIND_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
}
