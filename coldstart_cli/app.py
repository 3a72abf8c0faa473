"""The entry point: lazy command tree, and the only place that maps errors to exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coldstart_cli import streams
from coldstart_cli.errors import (
    AnswerStatus,
    ColdstartError,
    ExitCode,
    NegativeAnswer,
    Terminated,
    UsageError,
    near_matches_hint,
)
from coldstart_cli.plain import plain
from coldstart_cli.printer import Printer
from coldstart_cli.signals import install_signal_handlers, leave_at_once_when_interrupted
from coldstart_cli.tree import TREE, CommandEntry, GroupEntry
from coldstart_cli.version import __version__

if TYPE_CHECKING:
    import typer
    from typer.core import TyperGroup

_SUMMARY = "From scale-up to ready in seconds: pool, lazy images, CPU and GPU snapshots."
_EPILOG = "Exit status 3 means: it worked, and the answer is no. See `man coldstart` for all of them."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    streams.open_standard_streams()
    status = run(sys.argv[1:] if arguments is None else arguments)
    leave_at_once_when_interrupted()
    streams.drop_what_cannot_be_written()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command; every expected error ends here, as text on stderr and a status."""
    debug = "--debug" in arguments or os.environ.get("COLDSTART_DEBUG") == "1"
    try:
        install_signal_handlers()
        try:
            status = _dispatch(arguments)
        except AnswerStatus as answer:
            status = answer.status
            if not answer.answered:
                return status
        except NegativeAnswer:
            sys.stdout.flush()  # a verdict that nobody got is a failure to answer
            raise
        sys.stdout.flush()
    except ColdstartError as error:
        if debug:
            _say_traceback()
        Printer().error(error)
        return error.exit_code
    except KeyboardInterrupt:
        Printer().note("interrupted")
        return ExitCode.INTERRUPTED
    except Terminated:
        return ExitCode.TERMINATED
    except BrokenPipeError:
        # the reader of our answer has what it wanted
        return ExitCode.OK
    except Exception:  # noqa: BLE001 - the last resort: a bug may show its traceback
        _say_traceback()
        sys.stderr.write(f"coldstart: error: this is a bug in coldstart {__version__}, please report it\n")
        return ExitCode.SOFTWARE
    return status


def _say_traceback() -> None:
    # the message of an exception may hold names
    sys.stderr.write(plain(traceback.format_exc(), keep="\n"))


def _dispatch(arguments: Sequence[str]) -> int:
    if list(arguments) in (["--version"], ["-V"]):
        print(f"coldstart {__version__}")  # noqa: T201 - answered before typer is imported
        return ExitCode.OK
    import typer  # costs 70 ms: `--version` must not pay for it
    from typer._click.exceptions import ClickException

    root = build_root()
    try:
        # not main(): it turns a broken pipe into status 1, and we have our own meaning for every exception
        with root.make_context("coldstart", list(arguments)) as context:
            result = root.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except ClickException as error:
        raise UsageError(_usage_message(error), hint=_usage_hint(error, arguments)) from error
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return int(result) if isinstance(result, int) else ExitCode.OK


def _usage_message(error: Exception) -> str:
    message = str(getattr(error, "format_message", lambda: error)()).rstrip(".")
    return message[:1].lower() + message[1:]


def _usage_hint(error: Exception, arguments: Sequence[str]) -> str:
    if hint := getattr(error, "hint", None):
        return str(hint)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _command_path(arguments)
    return f"see `{path} --help`"


def _command_path(arguments: Sequence[str]) -> str:
    """The command that arguments begin with, for errors that do not know it."""
    path, entries = ["coldstart"], TREE
    for argument in arguments:
        entry = next((entry for entry in entries if entry.name == argument), None)
        if entry is None:
            break
        path.append(entry.name)
        entries = entry.commands if isinstance(entry, GroupEntry) else ()
    return " ".join(path)


def build_root() -> TyperGroup:
    """The whole tree as a typer group whose commands are imported when they are looked up."""
    return _group("coldstart", _SUMMARY, TREE, epilog=_EPILOG)


def _group(
    name: str, meaning: str, entries: Sequence[GroupEntry | CommandEntry], *, epilog: str | None = None
) -> TyperGroup:
    from typer.core import TyperGroup

    table = {entry.name: entry for entry in entries}

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            del ctx
            return list(table)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            del ctx
            entry = table.get(cmd_name)
            if entry is None:
                return None
            if isinstance(entry, GroupEntry):
                return _group(entry.name, entry.meaning, entry.commands)
            return load_command(entry)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] not in table and not args[0].startswith("-"):
                help_hint = f"see `{ctx.command_path} --help`"
                hint = near_matches_hint(args[0], table, otherwise=help_hint)
                raise UsageError(f"no such command: {args[0]}", hint=hint)
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            # the one-line meanings are data, so that help imports no command
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl([(entry.name, entry.meaning) for entry in table.values()])

    def show_help(context: typer.Context) -> None:
        # bare `coldstart` and bare `coldstart image` answer with help, and that is a success
        if context.invoked_subcommand is None:
            print(context.get_help())  # noqa: T201

    return LazyGroup(
        name=name,
        help=meaning,
        epilog=epilog,
        rich_markup_mode=None,
        invoke_without_command=True,
        callback=_with_context(show_help),
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _with_context(function: Callable[[typer.Context], None]) -> Callable[[], None]:
    def call() -> None:
        from typer._click.globals import get_current_context

        function(get_current_context())  # type: ignore[arg-type]

    return call


def load_command(entry: CommandEntry) -> Any:
    """Import one command's module and wrap its `command` function for typer."""
    import importlib

    import typer
    from typer.main import get_command

    function: Callable[..., Any] = importlib.import_module(entry.module).command
    single = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    single.command(entry.name)(function)
    return get_command(single)
