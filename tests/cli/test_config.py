"""Where a value comes from, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coldstart_cli.config import SETTINGS, Value, environment_reference, load
from coldstart_cli.errors import ConfigError, UsageError


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's configuration folder, empty; the user's is below HOME."""
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of a user who is not root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path = tmp_path / "home" / "coldstart" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def _fill(path: Path, value: str) -> Path:
    path.write_text(f'[programs]\ncriu = "{value}"\n')
    return path


def test_the_strongest_source_wins_and_is_named(
    system: Path, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explicit = tmp_path / "explicit.toml"
    steps = [
        (lambda: None, Value("criu", "default")),
        (lambda: _fill(system / "config.toml", "b"), Value("b", str(system / "config.toml"))),
        (lambda: _fill(system / "conf.d" / "10.toml", "c"), Value("c", str(system / "conf.d" / "10.toml"))),
        (lambda: _fill(system / "conf.d" / "20.toml", "d"), Value("d", str(system / "conf.d" / "20.toml"))),
        (lambda: _fill(user, "e"), Value("e", str(user))),
    ]
    for change, expected in steps:
        change()
        assert load().value("programs.criu") == expected
    _fill(explicit, "f")
    assert load(config_file=explicit).value("programs.criu") == Value("f", str(explicit))
    monkeypatch.setenv("COLDSTART_CONFIG", str(explicit))
    assert load().value("programs.criu") == Value("f", str(explicit))
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", "g")
    assert load().value("programs.criu") == Value("g", "environment COLDSTART_PROGRAMS_CRIU")
    assert load({"programs.criu": "h"}).value("programs.criu") == Value("h", "command line")
    assert load({"programs.criu": None}).value("programs.criu").value == "g"


def test_the_option_names_another_file_than_the_variable(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_CONFIG", str(tmp_path / "absent.toml"))
    chosen = _fill(tmp_path / "chosen.toml", "x")
    assert load(config_file=chosen).text("programs.criu") == "x"


def test_files_merge_key_by_key(system: Path) -> None:
    (system / "config.toml").write_text('store = "/a"\n[programs]\ncriu = "/b"\n')
    (system / "conf.d" / "x.toml").write_text('[programs]\nrunc = "/c"\n')
    config = load()
    assert (config.store, config.text("programs.criu"), config.text("programs.runc")) == ("/a", "/b", "/c")


def test_only_toml_files_of_conf_d_are_read(system: Path) -> None:
    (system / "conf.d" / "x.toml.bak").write_text("damaged [")
    load()


def test_root_has_no_user_file(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    path = tmp_path / "home" / "coldstart" / "config.toml"
    path.parent.mkdir(parents=True)
    _fill(path, "x")
    assert load().text("programs.criu") == "criu"


# --- refusals ---


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("stroe = '/a'", "unknown key in {file}: stroe", "did you mean `store`?"),
        ("[programs]\ncrui = 'x'", "unknown key in {file}: programs.crui", "did you mean `programs.criu`"),
        ("[store]\nurl = 'x'", "unknown key in {file}: store.url", None),
        ("store = 3", "wrong type in {file}: store must be a text", None),
        ("health.expect_gpus = 1.5", "wrong type in {file}: health.expect_gpus must be a whole number", None),
        (
            "health.expect_gpus = true",
            "wrong type in {file}: health.expect_gpus must be a whole number",
            None,
        ),
        ("lock_wait_seconds = 'x'", "wrong type in {file}: lock_wait_seconds must be a number", None),
        ("lock_wait_seconds = true", "wrong type in {file}: lock_wait_seconds must be a number", None),
        (f"lock_wait_seconds = {10**400}", "wrong type in {file}: lock_wait_seconds must be a number", None),
        ("lock_wait_seconds = nan", "wrong type in {file}: lock_wait_seconds must be a number", None),
        ("lock_wait_seconds = -1", "wrong value in {file}: lock_wait_seconds must be a number, not", None),
        ("health.expect_gpus = -1", "wrong value in {file}: health.expect_gpus must be a number, not", None),
        ("state_dir = ''", "wrong value in {file}: state_dir must be an absolute path", None),
        ("cache_dir = 'c'", "wrong value in {file}: cache_dir must be an absolute path: c", None),
        ("run_dir = './c'", "wrong value in {file}: run_dir must be an absolute path: ./c", None),
        ("programs = 'x'", "unknown key in {file}: programs", None),
        ("store = ", "configuration file is not valid TOML: {file}", None),
    ],
)
def test_a_mistake_in_a_file_names_file_and_key(
    system: Path, text: str, message: str, hint: str | None
) -> None:
    file = system / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load()
    assert caught.value.message.startswith(message.format(file=file))
    if hint:
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("COLDSTART_LOCK_WAIT_SECONDS", "soon", "wrong value in COLDSTART_LOCK_WAIT_SECONDS: soon"),
        ("COLDSTART_LOCK_WAIT_SECONDS", "nan", "wrong value in COLDSTART_LOCK_WAIT_SECONDS: nan"),
        ("COLDSTART_HEALTH_WARN_PERCENT", "inf", "wrong value in COLDSTART_HEALTH_WARN_PERCENT: inf"),
        ("COLDSTART_HEALTH_EXPECT_GPUS", "1.5", "wrong value in COLDSTART_HEALTH_EXPECT_GPUS: 1.5"),
        ("COLDSTART_LOCK_WAIT_SECONDS", "-1", "wrong value in COLDSTART_LOCK_WAIT_SECONDS: -1"),
        ("COLDSTART_STATE_DIR", "here", "wrong value in COLDSTART_STATE_DIR: here"),
        ("COLDSTART_RUN_DIR", " ", "wrong value in COLDSTART_RUN_DIR:  "),
        ("COLDSTART_STROE", "x", "unknown environment variable: COLDSTART_STROE"),
        ("COLDSTART_CONFIG", "/nonexistent/c.toml", "configuration file does not exist: /nonexistent/c.toml"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    system: Path, variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load()
    assert caught.value.message == message


def test_a_folder_on_the_command_line_may_be_relative_but_not_empty(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({"cache_dir": "c/../d"}).cache_folder == tmp_path / "d"
    with pytest.raises(UsageError, match="cache_dir must be an absolute path"):
        load({"cache_dir": ""})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_number_on_the_command_line_is_checked_too(system: Path, value: float) -> None:
    with pytest.raises(UsageError, match="lock_wait_seconds must be a number, not negative"):
        load({"lock_wait_seconds": value})


def test_a_default_is_computed_only_when_it_is_needed(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(Path, "home", unknown)
    for name in ("COLDSTART_CACHE_DIR", "XDG_CACHE_HOME", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    config = load()
    assert config.text("programs.criu") == "criu"
    with pytest.raises(ConfigError) as caught:
        config.cache_folder  # noqa: B018 - reading it is the test
    assert caught.value.hint == "set HOME or COLDSTART_CACHE_DIR to a folder"


def test_an_empty_variable_is_an_unset_one(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDSTART_STORE", "")
    monkeypatch.setenv("COLDSTART_LOCK_WAIT_SECONDS", "")
    assert load().value("store").source == "default"


def test_a_file_that_is_not_text_or_not_a_file_is_refused(system: Path, tmp_path: Path) -> None:
    (system / "config.toml").write_bytes(b"store = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load()
    (system / "config.toml").unlink()
    with pytest.raises(ConfigError, match="cannot read configuration file"):
        load(config_file=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_folder_that_a_user_may_not_read_is_an_error_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # its mode is 0700
        monkeypatch.setenv("CONFIGURATION_DIRECTORY", folder)
        script = "from coldstart_cli import config\nconfig.load()"
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, user=65534, capture_output=True, text=True, timeout=60, check=False)
        assert f"ConfigError: cannot read configuration file: {folder}/config.toml" in done.stderr


# --- values ---


def test_numbers_keep_their_types(system: Path) -> None:
    (system / "config.toml").write_text("lock_wait_seconds = 3\n[health]\nexpect_gpus = 8\n")
    config = load()
    assert isinstance(config.value("lock_wait_seconds").value, float)
    assert config.optional_integer("health.expect_gpus") == 8


def test_the_store_is_below_the_state_folder_unless_it_is_configured(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_STATE_DIR", "/var/x")
    assert load().store == "/var/x/store"
    assert load({"store": "file:///y"}).store == "file:///y"


def test_every_setting_has_a_variable_a_meaning_and_a_default_of_its_type(system: Path) -> None:
    variables = [variable for variable, _ in environment_reference()]
    assert len(set(variables)) == len(variables)
    config = load()
    for setting in SETTINGS:
        assert setting.meaning
        assert setting.variable in variables
        value = config.value(setting.key).value
        assert value is None or isinstance(value, setting.kind)
