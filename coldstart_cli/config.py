"""Configuration with provenance: flag > COLDSTART_* > --config > user > /etc/coldstart > default."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli import paths
from coldstart_cli.errors import ConfigError, UsageError, near_matches_hint

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Setting:
    """One configurable value. Its TOML key may be dotted; `default` is computed when it is needed."""

    key: str
    kind: type[str | int | float | bool]
    meaning: str
    default: Callable[[], Scalar]
    since: str = "0.1.0"
    folder: bool = False

    @property
    def variable(self) -> str:
        return "COLDSTART_" + self.key.upper().replace(".", "_")


@dataclass(frozen=True)
class Value:
    value: Scalar
    source: str


def _text(value: str) -> Callable[[], Scalar]:
    return lambda: value


def _number(value: float) -> Callable[[], Scalar]:
    return lambda: value


def _switch(value: bool) -> Callable[[], Scalar]:
    return lambda: value


def _nothing() -> Scalar:
    return None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "state_dir",
        str,
        "folder for snapshots, the default store and quarantine",
        lambda: str(paths.default_state_folder()),
        folder=True,
    ),
    Setting(
        "cache_dir",
        str,
        "folder for chunks that can be fetched again",
        lambda: str(paths.default_cache_folder()),
        folder=True,
    ),
    Setting(
        "run_dir",
        str,
        "folder for locks, sockets and mount records",
        lambda: str(paths.default_run_folder()),
        folder=True,
    ),
    Setting(
        "store",
        str,
        "image store: a folder or a URL (file, http, https, s3, gs, az); default `store` in the state folder",
        _nothing,
    ),
    Setting(
        "lock_wait_seconds", float, "how long to wait for a lock that another process holds", _number(0.0)
    ),
    Setting("programs.criu", str, "criu program, name or path", _text("criu")),
    Setting("programs.runc", str, "runc program, name or path", _text("runc")),
    Setting("programs.skopeo", str, "skopeo program, name or path", _text("skopeo")),
    Setting(
        "programs.cuda_checkpoint", str, "cuda-checkpoint program, name or path", _text("cuda-checkpoint")
    ),
    Setting("programs.dcgmi", str, "DCGM's dcgmi program, name or path", _text("dcgmi")),
    Setting("programs.journalctl", str, "systemd's journalctl program, name or path", _text("journalctl")),
    Setting(
        "health.kernel_log",
        str,
        "kernel log: a device like /dev/kmsg, `journal`, or `none` to judge without it",
        _text("/dev/kmsg"),
    ),
    Setting("health.expect_gpus", int, "GPUs this host should have; unset: what the last boot had", _nothing),
    Setting(
        "health.inventory",
        str,
        "file with the GPUs this host should have, as `inventory.json` in the state folder; unset: none",
        _nothing,
    ),
    Setting(
        "health.warn_percent", float, "CPU, memory or disk use that makes a host degraded", _number(80.0)
    ),
    Setting(
        "health.fail_percent",
        float,
        "CPU, memory or disk use that takes a host out; above 100: none does",
        _number(90.0),
    ),
    Setting(
        "health.auto_release",
        bool,
        "whether a GPU leaves the quarantine without a person, once its cause is shown to be gone",
        _switch(True),
    ),
    Setting(
        "health.clean_runs",
        int,
        "clean runs in a row that release a GPU which a person should look at; at least 1",
        _number(3),
    ),
    Setting(
        "health.clean_interval_seconds", float, "least time between two clean runs that count", _number(60.0)
    ),
    Setting(
        "health.repair_limit",
        int,
        "resets, or reboots, within the window after which a GPU is to be replaced; 0: no limit",
        _number(2),
    ),
    Setting("health.repair_window_days", float, "how long a reset or a reboot counts", _number(30.0)),
    Setting("snapshot.create_timeout_seconds", float, "deadline of one criu dump", _number(600.0)),
    Setting("snapshot.restore_timeout_seconds", float, "deadline of one criu restore", _number(600.0)),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


class Config:
    """Settings with where each came from. Loading has checked them; only a default can still be missing."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

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

    @property
    def state_folder(self) -> Path:
        return Path(self.text("state_dir"))

    @property
    def cache_folder(self) -> Path:
        return Path(self.text("cache_dir"))

    @property
    def run_folder(self) -> Path:
        return Path(self.text("run_dir"))

    @property
    def store(self) -> str:
        """The store as configured, else the `store` folder below the state folder."""
        return self.optional_text("store") or str(self.state_folder / "store")

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
        document = tomllib.loads(path.read_text("utf-8"))
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
    # a bool is an int to isinstance; nan and inf would turn a deadline into none
    if type(value) is not setting.kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"wrong type in {path}: {key} must be {_KIND_NAMES[setting.kind]}")
    assert isinstance(value, str | int | float)
    if demand := _unmet(setting, value):
        raise ConfigError(f"wrong value in {path}: {key} must be {demand}: {value}")
    return value


def _check_flag(setting: Setting, value: Scalar) -> Scalar:
    if setting.folder and value:  # a person means the folder below the current one
        value = os.path.abspath(str(value))
    if demand := _unmet(setting, value):
        raise UsageError(f"wrong value on the command line: {setting.key} must be {demand}: {value}")
    return value


def _unmet(setting: Setting, value: Scalar) -> str | None:
    """What the value should be and is not."""
    if setting.folder and not os.path.isabs(str(value)):
        return "an absolute path"
    if value == "":
        return "something, not empty"
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return "a number, not negative"
    return None


def _parse(setting: Setting, text: str) -> Scalar:
    value: Scalar = None
    with suppress(ValueError):
        if setting.kind is str:
            value = text
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
}
