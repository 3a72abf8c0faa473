"""The options that name the pool's tables and say how to read them, the same for every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_pool.inputs.findings import TableReport
    from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles

_FEWEST_USED = 0.95

TimeZoneOption = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", help="Time zone of times that state none.")
]

ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write a page with pictures, too: one .html file."),
]


def _files(option: str, text: str) -> Any:
    return typer.Option(option, metavar="FILE", help=text)


_TABLES: dict[str, Any] = {
    "prices": _files("--prices", "Price table (CSV); may be repeated, one file a provider."),
    "supply": _files("--supply", "Observed supply (CSV): counts, or attempts."),
    "demand": _files("--demand", "Demand (CSV): targets, replica starts, request rates, a Grafana export."),
    "classes": _files("--classes", "What each application needs (CSV): GPU, substitutes, places."),
    "current": _files("--current", "Machines in the pool now (CSV)."),
    "quota": _files("--quota", "Quotas of providers (CSV)."),
    "commitments": _files("--commitments", "Machines that are paid for, used or not (CSV)."),
    "domains": _files("--domains", "Failure domains (CSV): sets of offers that can be lost together."),
    "snapshots": _files("--snapshots", "Snapshots there are (CSV, or JSON of `snap show`)."),
    "machines": _files("--machines", "Driver and CPU level of machines (CSV)."),
    "paid": _files("--paid", "FOCUS export: contracted prices, unused reservations."),
}
_RULES: dict[str, tuple[Any, Any]] = {
    "maps": (
        Annotated[
            list[str] | None,
            typer.Option("--map", metavar="TABLE.FIELD=HEADING", help="The column that holds a field."),
        ],
        None,
    ),
    "constants": (
        Annotated[
            list[str] | None,
            typer.Option("--set", metavar="TABLE.FIELD=VALUE", help="Value of a field without a column."),
        ],
        None,
    ),
    "time_zone": (TimeZoneOption, None),
    "rates": (
        Annotated[
            list[str] | None,
            typer.Option("--rate", metavar="CURRENCY=USD", help="US dollars for one of another currency."),
        ],
        None,
    ),
    "service_rate": (
        Annotated[
            float | None,
            typer.Option("--service-rate", metavar="RATE", help="Requests a second that one replica serves."),
        ],
        None,
    ),
    "oldest_price_days": (
        Annotated[
            float | None,
            typer.Option("--oldest-price", metavar="DAYS", help="Question older prices; 30 where dated."),
        ],
        None,
    ),
    "accept_suspicious": (
        Annotated[bool, typer.Option("--accept-suspicious", help="Use values that look wrong, too.")],
        False,
    ),
    "skip_invalid": (
        Annotated[bool, typer.Option("--skip-invalid", help="Go on without rows that cannot be right.")],
        False,
    ),
}


def with_tables(
    *, only: Sequence[str] = (), required: Sequence[str] = (), rules_only: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give `command(shell, tables, ...)` the options of these tables (all without `only`) and their rules."""
    offered_rules = {name: rule for name, rule in _RULES.items() if not rules_only or name in rules_only}

    def decorate(handler: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(handler, eval_str=True, locals={"TableFiles": Any}).parameters
        offered = [name for name in _TABLES if not only or name in only]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in (
                *(
                    (name, Annotated[list[Path], _TABLES[name]], inspect.Parameter.empty)
                    if name in required
                    else (name, Annotated[list[Path] | None, _TABLES[name]], None)
                    for name in offered
                ),
                *((name, annotation, default) for name, (annotation, default) in offered_rules.items()),
            )
        ]

        def callback(shell: Any, **given: Any) -> None:
            files = {name: given.pop(name) or [] for name in offered}
            rules = {name: given.pop(name, default) for name, (_, default) in _RULES.items()}
            handler(shell, _table_files(files, **rules), **given)

        callback.__doc__ = handler.__doc__
        own_parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.items()
            if name not in {"shell", "tables"}
        ]
        shell = own["shell"].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        callback.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [shell, *options[: len(offered)], *own_parameters, *options[len(offered) :]]
        )
        return callback

    return decorate


def report_tables(printer: Printer, inputs: PoolInputs) -> None:
    """What was left out and what was decided, before anything else is said; nothing is dropped silently."""
    from coldstart_pool.inputs.findings import grouped_sentences

    for report in inputs.reports:
        if (sentence := used_sentence(report)) is not None:
            printer.answer(sentence)
        for topic, decision in report.decisions:
            printer.debug(f"{report.path}: {topic}: {decision}")
    findings = [finding for report in inputs.reports for finding in report.findings]
    for sentence in grouped_sentences([*findings, *inputs.contradictions]):
        printer.warning(sentence)


def used_sentence(report: TableReport) -> str | None:
    """The sentence for the first line where less than 95 % of a table was used."""
    rows = report.rows - report.other_rows
    if not rows or report.used_rows / rows >= _FEWEST_USED:
        return None
    share = report.used_rows / rows
    return f"used only {report.used_rows} of {rows} rows ({share:.0%}) of {report.path}"


def _table_files(
    files: dict[str, list[Path]],
    *,
    maps: list[str] | None,
    constants: list[str] | None,
    rates: list[str] | None,
    skip_invalid: bool,
    **rules: Any,
) -> TableFiles:
    from coldstart_pool.inputs.fields import TableKind
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.inputs.rules import reading_rules

    return TableFiles(
        tuple((TableKind(name), path) for name, paths in files.items() for path in paths),
        reading_rules(maps=maps or (), constants=constants or (), rates=rates or (), **rules),
        skip_invalid,
    )
