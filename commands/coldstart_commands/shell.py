"""What every command gets: printer, configuration, and the options shared by all."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from coldstart_cli import config as configuration
from coldstart_cli.config import Config, Scalar
from coldstart_cli.errors import UsageError
from coldstart_cli.printer import ColorMode, Level, Printer

JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON document on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer, warnings and errors.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is being done and why.")]
ColorOption = Annotated[ColorMode, typer.Option("--color", help="When to use colour.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file, above the user's and the system's."),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an expected error too.")]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")]


@dataclass(frozen=True)
class Shell:
    """The hands of a command: where it prints and what is configured."""

    printer: Printer
    config: Config


def coldstart_command(*settings: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(shell, ...)` into a typer callback with the shared options appended.

    `settings` are configuration keys that this command also takes as options (see `_SETTING_OPTIONS`);
    the handler reads them from `shell.config`, where the command line wins over every other source.
    """

    def decorate(handler: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(handler, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "shell"]
        options = [(_option_name(key), _SETTING_OPTIONS[key], None) for key in settings]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in (*options, *_SHARED)
        ]

        def callback(**given: Any) -> None:
            quiet, verbose = given.pop("quiet"), given.pop("verbose")
            level = Level.QUIET if quiet else Level.VERBOSE if verbose else Level.NORMAL
            given.pop("debug")  # read by main(), which prints the traceback
            printer = Printer(level=level, color=given.pop("color"), json_output=given.pop("json_output"))
            _check_numbers(parameters, given)
            overrides = {key: _scalar(given.pop(_option_name(key))) for key in settings}
            config = configuration.load(overrides, given.pop("config_file"))
            handler(Shell(printer, config), **given)

        callback.__doc__ = handler.__doc__
        callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        callback.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return callback

    return decorate


def _check_numbers(parameters: Iterable[inspect.Parameter], given: dict[str, Any]) -> None:
    """Refuse nan and infinity where typer looks at bounds: nan passes any."""
    for parameter in parameters:
        value = given.get(parameter.name)
        if isinstance(value, float) and not math.isfinite(value):
            for mark in getattr(parameter.annotation, "__metadata__", ()):
                if mark.min is not None or mark.max is not None:
                    # below Annotated typer keeps the first spelling where a default would be
                    raise UsageError(f"not a finite number: {mark.default} {value}")


def _scalar(value: Any) -> Scalar:
    """An option that may be repeated and is not there is an empty list to typer."""
    if isinstance(value, list):
        return tuple(value) or None
    scalar: Scalar = value
    return scalar


def _option_name(key: str) -> str:
    return "setting_" + key.replace(".", "_")


_SETTING_OPTIONS: dict[str, Any] = {
    "store": Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="Image store: a folder, or a URL (file, http, https, s3, gs, az)."
        ),
    ],
    "cache_dir": Annotated[
        str | None, typer.Option("--cache", metavar="DIR", help="Folder of the local chunk cache.")
    ],
    "tiers": Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            metavar="TIER",
            help="HTTP cache to ask before the store, with its settings as URL,NAME=VALUE; repeatable.",
        ),
    ],
    "lock_wait_seconds": Annotated[
        float | None,
        typer.Option(
            "--lock-wait",
            metavar="SECONDS",
            min=0,
            help="Wait this long for a lock that another process holds.",
        ),
    ],
    "image.fetch": Annotated[
        str | None,
        typer.Option(
            "--fetch",
            metavar="lazy|all|auto",
            help="Fetch on demand, everything in the background, or that once demand turns out to lose.",
        ),
    ],
    "image.trace_replay": Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="pages|cache|off",
            help="How far a known trace is replayed: into the page cache, the local cache, or not.",
        ),
    ],
    "snapshot.verify": Annotated[
        str | None,
        typer.Option(
            "--verify",
            metavar="first|always|never",
            help="When digests of memory pages are computed: once for each copy, each time, or not at all.",
        ),
    ],
    "health.expect_gpus": Annotated[
        int | None,
        typer.Option("--expect-gpus", metavar="N", min=0, help="GPUs that this host should have."),
    ],
}
_SHARED: tuple[tuple[str, Any, Any], ...] = (
    ("json_output", JsonOption, False),
    ("quiet", QuietOption, False),
    ("verbose", VerboseOption, False),
    ("color", ColorOption, ColorMode.AUTO),
    ("config_file", ConfigOption, None),
    ("debug", DebugOption, False),
)
