"""Where things stand: root's system folders, a user's XDG folders, or what systemd hands a unit."""

from __future__ import annotations

import os
from pathlib import Path


def _folder(systemd_variable: str, system: str, xdg_variable: str, xdg_default: str) -> Path:
    if given := os.environ.get(systemd_variable):
        return Path(given.split(":")[0])  # systemd joins several folders with colons; the first is ours
    if os.geteuid() == 0:
        return Path(system)
    base = os.environ.get(xdg_variable)
    # the XDG specification says that a relative value must be ignored
    root = Path(base) if base and os.path.isabs(base) else Path.home() / xdg_default
    return root / "coldstart"


def default_state_folder() -> Path:
    """Snapshots, indexes, quarantine: must survive a reboot."""
    return _folder("STATE_DIRECTORY", "/var/lib/coldstart", "XDG_STATE_HOME", ".local/state")


def default_cache_folder() -> Path:
    """Chunks that can be fetched again."""
    return _folder("CACHE_DIRECTORY", "/var/cache/coldstart", "XDG_CACHE_HOME", ".cache")


def default_run_folder() -> Path:
    """Locks, sockets, mount records: gone after a reboot."""
    return _folder("RUNTIME_DIRECTORY", "/run/coldstart", "XDG_RUNTIME_DIR", ".local/run")


def system_config_folder() -> Path:
    """`/etc/coldstart`, or what systemd hands over."""
    return Path(os.environ.get("CONFIGURATION_DIRECTORY", "/etc/coldstart").split(":")[0])


def user_config_file() -> Path | None:
    """The user's configuration file; root has none, its configuration is the system's."""
    if os.geteuid() == 0:
        return None
    base = os.environ.get("XDG_CONFIG_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".config"
    return root / "coldstart" / "config.toml"
