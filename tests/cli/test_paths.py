"""Folders of root, of a user, and of a systemd unit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_cli import paths
from coldstart_cli.errors import ConfigError

FOLDERS = {
    paths.default_state_folder: ("STATE_DIRECTORY", "/var/lib/coldstart", "XDG_STATE_HOME", ".local/state"),
    paths.default_cache_folder: ("CACHE_DIRECTORY", "/var/cache/coldstart", "XDG_CACHE_HOME", ".cache"),
    paths.default_run_folder: ("RUNTIME_DIRECTORY", "/run/coldstart", "XDG_RUNTIME_DIR", ".local/run"),
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for unit, _, xdg, _ in FOLDERS.values():
        monkeypatch.delenv(unit, raising=False)
        monkeypatch.delenv(xdg, raising=False)
    monkeypatch.delenv("CONFIGURATION_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("folder", FOLDERS)
def test_root_has_the_systems_folders(folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    _, system, xdg, _ = FOLDERS[folder]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv(xdg, "/ignored")
    assert folder() == Path(system)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_user_has_folders_by_xdg(folder: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, _, xdg, default = FOLDERS[folder]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert folder() == tmp_path / default / "coldstart"
    monkeypatch.setenv(xdg, "/chosen")
    assert folder() == Path("/chosen/coldstart")
    monkeypatch.setenv(xdg, "relative")
    assert folder() == tmp_path / default / "coldstart"


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_unit_has_the_first_of_the_folders_systemd_made(
    folder: object, uid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv(FOLDERS[folder][0], "/given/first:/given/second")
    assert folder() == Path("/given/first")


def test_configuration_comes_from_etc_the_unit_and_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert paths.system_config_folder() == Path("/etc/coldstart")
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", "/given:/other")
    assert paths.system_config_folder() == Path("/given")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.user_config_file() is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert paths.user_config_file() == tmp_path / ".config/coldstart/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert paths.user_config_file() == tmp_path / ".config/coldstart/config.toml"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_user_without_a_home_folder_is_told_what_to_set(
    folder: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(ConfigError) as caught:
        folder()
    assert caught.value.hint.startswith("set HOME or COLDSTART_")
    assert paths.user_config_file() is None
    monkeypatch.setattr(Path, "home", lambda: Path("relative"))
    with pytest.raises(ConfigError, match="no home folder"):
        folder()
    monkeypatch.setenv(FOLDERS[folder][2], "/chosen")
    assert folder() == Path("/chosen/coldstart")
