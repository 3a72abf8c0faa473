"""Where things stand: root's system folders, a user's XDG folders, or what systemd hands a unit."""

from __future__ import annotations

import os
from pathlib import Path

from coldstart_cli.errors import ConfigError


def _folder(key: str, systemd_variable: str, system: str, xdg_variable: str, xdg_default: str) -> Path:
    if given := os.environ.get(systemd_variable):
        return Path(given.split(":")[0])  # systemd joins several folders with colons; the first is ours
    if os.geteuid() == 0:
        return Path(system)
    base = os.environ.get(xdg_variable)
    # the XDG specification says that a relative value must be ignored
    if base and os.path.isabs(base):
        return Path(base) / "coldstart"
    home = _home()
    if home is None:
        raise ConfigError(
            f"no default for {key}: this user has no home folder",
            hint=f"set HOME or COLDSTART_{key.upper()} to a folder",
        )
    return home / xdg_default / "coldstart"


def _home() -> Path | None:
    """HOME, else what the user database says; None for a uid that it does not know."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home if home.is_absolute() else None


def default_state_folder() -> Path:
    """Snapshots, indexes, quarantine: must survive a reboot."""
    return _folder("state_dir", "STATE_DIRECTORY", "/var/lib/coldstart", "XDG_STATE_HOME", ".local/state")


def default_cache_folder() -> Path:
    """Chunks that can be fetched again."""
    return _folder("cache_dir", "CACHE_DIRECTORY", "/var/cache/coldstart", "XDG_CACHE_HOME", ".cache")


def default_run_folder() -> Path:
    """Locks, sockets, mount records: gone after a reboot."""
    return _folder("run_dir", "RUNTIME_DIRECTORY", "/run/coldstart", "XDG_RUNTIME_DIR", ".local/run")


def system_config_folder() -> Path:
    """`/etc/coldstart`, or what systemd hands over."""
    return Path(os.environ.get("CONFIGURATION_DIRECTORY", "/etc/coldstart").split(":")[0])


def user_config_file() -> Path | None:
    """The user's configuration file; root has none, and neither has a user without a home folder."""
    if os.geteuid() == 0:
        return None
    base = os.environ.get("XDG_CONFIG_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "coldstart" / "config.toml"
    home = _home()
    return home / ".config" / "coldstart" / "config.toml" if home else None
