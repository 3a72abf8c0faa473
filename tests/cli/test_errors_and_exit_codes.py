"""Every exit code can happen, is documented once, and comes with a message that helps."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from coldstart_cli import app, errors
from coldstart_cli.errors import (
    EXIT_CODE_MEANINGS,
    ColdstartError,
    ExitCode,
    PermissionNeededError,
    Terminated,
    near_matches_hint,
)
from conftest import Coldstart


def _families(base: type[ColdstartError] = ColdstartError) -> Iterator[type[ColdstartError]]:
    yield base
    for child in base.__subclasses__():
        yield from _families(child)


def test_every_code_has_one_meaning_and_no_meaning_is_without_a_code() -> None:
    assert set(EXIT_CODE_MEANINGS) == set(ExitCode)
    assert len(set(EXIT_CODE_MEANINGS.values())) == len(ExitCode)


def test_every_code_between_1_and_128_but_the_bug_has_an_error_class() -> None:
    named = {value.exit_code for value in vars(errors).values() if _is_error(value)}
    assert named == {code for code in ExitCode if 0 < code < 128} - {ExitCode.SOFTWARE}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ColdstartError)


def test_systemd_knows_the_sysexits_by_the_same_numbers() -> None:
    for code in ExitCode:
        if 64 <= code <= 78:
            assert code == getattr(os, f"EX_{code.name}")


@pytest.mark.parametrize("family", sorted(set(_families()), key=lambda kind: kind.__name__))
def test_an_error_ends_the_command_with_its_code_its_message_and_its_hint(
    family: type[ColdstartError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ColdstartError.__new__(family)
    ColdstartError.__init__(error, "image does not exist: x", hint="coldstart image ls")
    _dispatching(monkeypatch, error)
    assert app.run(["image"]) == family.exit_code
    assert capsys.readouterr().err == (
        "coldstart: error: image does not exist: x\nhint: coldstart image ls\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (Terminated(), ExitCode.TERMINATED),
        (ZeroDivisionError("oh"), ExitCode.SOFTWARE),
    ],
)
def test_interrupts_and_bugs_have_codes_of_their_own(
    error: BaseException, code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _dispatching(monkeypatch, error)
    assert app.run(["image"]) == code
    said = capsys.readouterr().err
    assert ("Traceback" in said) is (code is ExitCode.SOFTWARE)
    assert ("please report it" in said) is (code is ExitCode.SOFTWARE)


def test_debug_shows_the_traceback_of_an_expected_error_and_keeps_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _dispatching(monkeypatch, errors.DataError("damaged"))
    assert app.run(["image", "--debug"]) == ExitCode.DATAERR
    assert "Traceback" in capsys.readouterr().err


def _dispatching(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(app, "_dispatch", fail)
    monkeypatch.setattr(app, "install_signal_handlers", lambda: None)


# --- the installed command ---


def test_bare_commands_and_groups_print_help_and_succeed(coldstart: Coldstart) -> None:
    for arguments in ((), ("image",), ("--help",), ("-h",), ("image", "--help")):
        result = coldstart(*arguments)
        assert result.status == 0
        assert result.stdout.startswith("Usage: coldstart")
        assert result.stderr == ""


def test_the_version_is_printed_alone(coldstart: Coldstart) -> None:
    for option in ("--version", "-V"):
        result = coldstart(option)
        assert result.status == 0
        assert result.stdout.startswith("coldstart ")
        assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("imgae",), "no such command: imgae", "did you mean `image`?"),
        (("image", "mnt"), "no such command: mnt", "did you mean `mount` or `unmount`?"),
        (("frobnicate",), "no such command: frobnicate", "see `coldstart --help`"),
        (("doctor", "--jsn"), "no such option: --jsn", ""),
        (("doctor", "extra"), "got unexpected extra argument", "see `coldstart doctor --help`"),
        (("doctor", "--color", "pink"), "invalid value for '--color'", "see `coldstart doctor --help`"),
        (("health", "quick", "--expect-gpus", "-1"), "invalid value for '--expect-gpus'", ""),
        (("health", "deep", "--lock-wait", "-1"), "invalid value for '--lock-wait'", ""),
        (("doctor", "--config"), "option '--config' requires an argument", "see `coldstart doctor --help`"),
    ],
)
def test_bad_arguments_are_status_2_with_the_way_out(
    coldstart: Coldstart, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    result = coldstart(*arguments)
    assert result.status == ExitCode.USAGE
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.lower().startswith(f"coldstart: error: {message}")
    assert hint in "\n".join(rest)


def test_a_wrong_configuration_is_status_78(coldstart: Coldstart) -> None:
    result = coldstart("doctor", environment={"COLDSTART_STROE": "x"})
    assert result.status == ExitCode.CONFIG
    assert "hint: did you mean `COLDSTART_STORE`" in result.stderr


def test_an_error_under_json_leaves_stdout_empty_or_one_document(coldstart: Coldstart) -> None:
    result = coldstart("doctor", "--json", environment={"COLDSTART_PROGRAMS_CRIU": "/nonexistent/criu"})
    assert result.status == ExitCode.VERDICT
    assert json.loads(result.stdout)["ok"] is False
    assert "coldstart: error:" in result.stderr


def test_a_reader_that_goes_away_is_no_error(coldstart: Coldstart) -> None:
    command = f"{coldstart.program} doctor | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=coldstart.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert b"Broken" not in done.stderr
    assert b"Traceback" not in done.stderr


def test_near_matches_are_offered_only_when_something_is_near() -> None:
    assert near_matches_hint("pyhton", ["python", "perl"]) == "did you mean `python`?"
    assert near_matches_hint("xyz", ["python"]) is None
    assert near_matches_hint("xyz", [], otherwise="coldstart image ls") == "coldstart image ls"


def test_a_traceback_shows_names_without_letting_them_speak(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (ColdstartError("not there: \x1b[31mx"), RuntimeError("not there: \x1b[31mx")):
        _dispatching(monkeypatch, error)
        app.run(["image", "--debug"])
        said = capsys.readouterr().err
        assert "Traceback" in said
        assert "not there: \\x1b[31mx" in said
        assert "\x1b" not in said


@pytest.mark.parametrize(
    ("hint", "of_root"),
    [
        ("run as root", None),
        ("run as root, or choose another folder", "choose another folder"),
        ("run as root with CAP_SYS_PTRACE", "run as root with CAP_SYS_PTRACE"),
        ("skopeo login", "skopeo login"),
        (None, None),
    ],
)
def test_root_is_not_told_to_run_as_root(
    hint: str | None, of_root: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert PermissionNeededError("refused", hint=hint).hint == of_root
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert PermissionNeededError("refused", hint=hint).hint == hint
