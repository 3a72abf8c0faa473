"""The command tree as plain values: what help, completions and man pages have in common."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from coldstart_cli.app import build_root
from coldstart_cli.tree import TREE, CommandEntry, GroupEntry, walk_groups


@dataclass(frozen=True)
class Parameter:
    """An argument (no option strings) or an option; a flag has no metavar."""

    name: str
    strings: tuple[str, ...]
    metavar: str
    text: str
    required: bool
    default: str
    choices: tuple[str, ...]
    repeated: bool = False
    opposites: tuple[str, ...] = ()
    """What says the contrary of a flag: `--leave-running` of `--stop`."""

    @property
    def is_argument(self) -> bool:
        return not self.strings


@dataclass(frozen=True)
class Command:
    """One command; `words` is what is typed after `coldstart`."""

    words: tuple[str, ...]
    meaning: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def page(self) -> str:
        return "-".join(("coldstart", *self.words))

    @property
    def arguments(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.is_argument]

    @property
    def options(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if not parameter.is_argument]


def all_commands() -> tuple[Command, ...]:
    """Every command in the order of help; all modules must be importable."""
    return tuple(_walk(build_root(), TREE, ()))


def argument_parser(commands: Sequence[Command], complete: Any) -> argparse.ArgumentParser:
    """The tree as argparse, for shtab; `complete(command, parameter)` names what completes a value."""
    root = argparse.ArgumentParser(prog="coldstart", description="From scale-up to ready in seconds.")
    root.add_argument("-V", "--version", action="version", version="", help="Show the version and exit.")
    groups = root.add_subparsers(dest="command")
    parsers: dict[tuple[str, ...], Any] = {(): groups}
    for words, entry in walk_groups(TREE):
        group = parsers[words[:-1]].add_parser(words[-1], help=entry.meaning, description=entry.meaning)
        parsers[words] = group.add_subparsers(dest="verb")
    for command in commands:
        parser = parsers[command.words[:-1]].add_parser(
            command.words[-1], help=command.meaning, description=command.meaning
        )
        for parameter in command.parameters:
            if "--help" in parameter.strings:
                continue  # argparse has its own
            action = _add(parser, parameter)
            if (completer := complete(command, parameter)) is not None:
                action.complete = completer  # type: ignore[attr-defined]
    return root


def _add(parser: argparse.ArgumentParser, parameter: Parameter) -> argparse.Action:
    text = parameter.text.replace("%", "%%")
    if parameter.is_argument:
        nargs = "+" if parameter.repeated else None if parameter.required else "?"
        return parser.add_argument(parameter.name, metavar=parameter.metavar, nargs=nargs, help=text)
    if not parameter.metavar:
        strings = (*parameter.strings, *parameter.opposites)
        return parser.add_argument(*strings, dest=parameter.name, action="store_true", help=text)
    return parser.add_argument(
        *parameter.strings,
        dest=parameter.name,
        metavar=parameter.metavar,
        choices=parameter.choices or None,
        help=text,
    )


def _walk(
    group: Any, entries: Sequence[GroupEntry | CommandEntry], words: tuple[str, ...]
) -> Iterator[Command]:
    for entry in entries:
        found = group.get_command(None, entry.name)
        here = (*words, entry.name)
        if isinstance(entry, GroupEntry):
            yield from _walk(found, entry.commands, here)
        else:
            context = typer.Context(found, info_name=entry.name, **found.context_settings)
            parameters = tuple(
                _parameter(parameter)
                for parameter in found.get_params(context)
                if not getattr(parameter, "hidden", False)
            )
            yield Command(here, entry.meaning, inspect.cleandoc(found.help or ""), parameters)


def _parameter(parameter: Any) -> Parameter:
    is_argument = parameter.param_type_name == "argument"
    is_flag = bool(getattr(parameter, "is_flag", False))
    choices = tuple(str(choice) for choice in getattr(parameter.type, "choices", ()))
    default = parameter.default
    shown = default is not None and not is_flag and not callable(default) and default != ()
    strings = () if is_argument else tuple(sorted(parameter.opts, key=len))
    metavar = "|".join(choices) or parameter.metavar or parameter.name.upper()
    return Parameter(
        name=parameter.name,
        strings=strings,
        metavar="" if is_flag else metavar,
        text=(parameter.help or "").strip(),
        required=parameter.required,
        default=str(getattr(default, "value", default)) if shown else "",
        choices=choices,
        repeated=parameter.nargs == -1,
        opposites=tuple(parameter.secondary_opts),
    )
