"""Man pages: options, exit codes and settings from where the program has them, the rest from pages.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from coldstart_cli.config import SETTINGS, Setting, environment_reference
from coldstart_cli.errors import EXIT_CODE_MEANINGS
from coldstart_cli.tree import TREE, GroupEntry
from generators.command_tree import Command, Parameter
from generators.roff import bold, escape, heading, italic, literal, prose, section, terms

_HAND_WRITTEN = Path(__file__).resolve().parent.parent / "man" / "pages.toml"
_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", tuple: "list of texts"}
_ANY_HOME = "/home/anybody"
_SYSTEMD_VARIABLES = ("STATE_DIRECTORY", "CACHE_DIRECTORY", "RUNTIME_DIRECTORY")
_XDG_VARIABLES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")


def files(commands: Sequence[Command]) -> dict[str, str]:
    """Every page by path."""
    written = tomllib.loads(_HAND_WRITTEN.read_text(encoding="utf-8"))
    names = {" ".join(("coldstart", *command.words)) for command in commands}
    if strangers := written.keys() - names - {"coldstart", "coldstart.toml"}:
        raise SystemExit(f"{_HAND_WRITTEN}: no such command: {', '.join(sorted(strangers))}")
    pages = {
        "man/man1/coldstart.1": _main_page(commands, written["coldstart"]),
        "man/man5/coldstart.toml.5": _settings_page(written["coldstart.toml"]),
    }
    for command in commands:
        text = written.get(" ".join(("coldstart", *command.words)), {})
        pages[f"man/man1/{command.page}.1"] = _command_page(command, commands, text)
    return pages


def _main_page(commands: Sequence[Command], written: dict[str, Any]) -> str:
    blocks = [
        heading("coldstart", 1, "coldstart manual"),
        section("NAME", f"coldstart \\- {escape(written['meaning'])}"),
        section(
            "SYNOPSIS",
            f"{bold('coldstart')} {italic('GROUP')} {italic('VERB')} [{italic('OPTIONS')}]",
            f".br\n{bold('coldstart')} {bold('--version')} | {bold('--help')}",
        ),
        section("DESCRIPTION", prose(written["description"])),
        section("COMMANDS", *_command_list(commands)),
        section("OPTIONS", terms(_option_terms(_shared(commands)))),
        section("EXIT STATUS", terms((bold(str(int(c))), m) for c, m in EXIT_CODE_MEANINGS.items())),
        section("ENVIRONMENT", terms((bold(name), text) for name, text in environment_reference())),
        section("CREDENTIALS", prose(written["credentials"]), terms(_credential_terms(written))),
    ]
    pages = [f"{command.page}(1)" for command in commands]
    return _finish(blocks, written, ["coldstart.toml(5)", *pages])


def _command_list(commands: Sequence[Command]) -> Iterator[str]:
    for entry in TREE:
        words = (entry.name,)
        if isinstance(entry, GroupEntry):
            yield f'.SS "{escape(entry.name)}: {escape(entry.meaning)}"'
        else:
            yield f'.SS "{escape(entry.name)}"'
        yield terms(
            (bold(f"coldstart {' '.join(command.words)}"), f"{command.meaning}; see {command.page}(1)")
            for command in commands
            if command.words[: len(words)] == words
        )


def _credential_terms(written: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in written["credential_variables"]:
        yield ", ".join(bold(name) for name in entry["names"]), entry["text"]


def _shared(commands: Sequence[Command]) -> list[Parameter]:
    """The options that every command has, as the first one declares them."""
    common = set.intersection(*({option.strings for option in command.options} for command in commands))
    return [option for option in commands[0].options if option.strings in common]


def _command_page(command: Command, commands: Sequence[Command], written: dict[str, Any]) -> str:
    name = " ".join(("coldstart", *command.words))
    shared = {option.strings for option in _shared(commands)}
    own = [option for option in command.options if option.strings not in shared]
    blocks = [
        heading(command.page, 1, "coldstart manual"),
        section("NAME", f"{escape(command.page)} \\- {escape(command.meaning)}"),
        section("SYNOPSIS", _synopsis(name, command)),
        section("DESCRIPTION", prose("\n\n".join([command.description, written.get("description", "")]))),
    ]
    if command.arguments:
        arguments = ((italic(argument.metavar), _text(argument)) for argument in command.arguments)
        blocks.append(section("ARGUMENTS", terms(arguments)))
    options = [terms(_option_terms(own))] if own else []
    common = [option for option in command.options if option.strings in shared]
    blocks.append(
        section("OPTIONS", *options, '.SS "Options of every command"', terms(_option_terms(common)))
    )
    blocks.append(
        section("EXIT STATUS", prose(written.get("exit_status", "") + "\n\nAll codes: see coldstart(1)."))
    )
    siblings = [
        f"{other.page}(1)"
        for other in commands
        if other is not command and len(other.words) > 1 and other.words[0] == command.words[0]
    ]
    return _finish(blocks, written, ["coldstart(1)", "coldstart.toml(5)", *siblings])


def _synopsis(name: str, command: Command) -> str:
    parts = [bold(name)]
    parts += [
        f"{bold(option.strings[-1])} {italic(option.metavar)}"
        for option in command.options
        if option.required
    ]
    parts.append(f"[{italic('OPTIONS')}]")
    parts += [
        italic(argument.metavar) if argument.required else f"[{italic(argument.metavar)}]"
        for argument in command.arguments
    ]
    return " ".join(parts)


def _option_terms(options: Sequence[Parameter]) -> Iterator[tuple[str, str]]:
    for option in options:
        names = ", ".join(bold(text) for text in option.strings)
        names += "".join(f" / {bold(text)}" for text in option.opposites)
        yield names + (f" {italic(option.metavar)}" if option.metavar else ""), _text(option)


def _text(parameter: Parameter) -> str:
    notes = ["Required."] if parameter.required and not parameter.is_argument else []
    notes += ["May be left out."] if parameter.is_argument and not parameter.required else []
    notes += [f"Default: {parameter.default}."] if parameter.default else []
    return " ".join([parameter.text, *notes])


def _settings_page(written: dict[str, Any]) -> str:
    blocks = [
        heading("coldstart.toml", 5, "coldstart file formats"),
        section("NAME", f"coldstart.toml \\- {escape(written['meaning'])}"),
        section("DESCRIPTION", prose(written["description"])),
        section("SETTINGS", terms(_setting_terms())),
    ]
    return _finish(blocks, written, ["coldstart(1)"])


def _setting_terms() -> Iterator[tuple[str, str]]:
    for setting in SETTINGS:
        kind = italic(_KINDS[setting.kind])
        text = f"{setting.meaning}. {_default(setting)} Variable: `{setting.variable}`."
        yield f"{bold(setting.key)} ({kind})", text


def _default(setting: Setting) -> str:
    """The default in words that hold on every host: folders differ between root and users."""
    with _as_user(0):
        root = setting.default()
    with _as_user(1000):
        user = setting.default()
    if isinstance(user, str):
        user = user.replace(_ANY_HOME, "~")
    if root is None:
        return "Not set by default."
    if root == user:
        return f"Default: `{_toml(root)}`."
    return f"Default: `{_toml(root)}` for root, `{_toml(user)}` for users (see FILES)."


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


@contextmanager
def _as_user(number: int) -> Iterator[None]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (*_SYSTEMD_VARIABLES, *_XDG_VARIABLES) and not name.startswith("COLDSTART_")
    }
    with (
        mock.patch.dict(os.environ, environment | {"HOME": _ANY_HOME}, clear=True),
        mock.patch("os.geteuid", return_value=number),
    ):
        yield


def _finish(blocks: list[str], written: dict[str, Any], see_also: list[str]) -> str:
    if entries := written.get("files"):
        blocks.append(section("FILES", terms((italic(entry["path"]), entry["text"]) for entry in entries)))
    if examples := written.get("examples"):
        shown = [
            f"{'.PP' if number else ''}\n{prose(entry['text'])}\n{literal(entry['command'])}".lstrip("\n")
            for number, entry in enumerate(examples)
        ]
        blocks.append(section("EXAMPLES", *shown))
    references = [*see_also, *written.get("see_also", [])]
    lines = []
    for number, reference in enumerate(references):
        page, _, rest = reference.partition("(")
        comma = "," if number < len(references) - 1 else ""
        lines.append(f".BR {escape(page)} ({rest}{comma}")
    blocks.append(section("SEE ALSO", *lines))
    return "\n".join(blocks) + "\n"
