"""coldstart pool plan: how many GPUs of which offer to keep ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import NegativeAnswer
from coldstart_cli.printer import Printer
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_pool.findings import TableReport
    from coldstart_pool.plan import Plan

_FEWEST_USED = 0.95


@coldstart_command()
def command(
    shell: Shell,
    prices: Annotated[Path, typer.Option("--prices", metavar="FILE", help="Price table (CSV).")],
    supply: Annotated[Path, typer.Option("--supply", metavar="FILE", help="Observed supply (CSV).")],
    demand: Annotated[
        Path, typer.Option("--demand", metavar="FILE", help="Targets or scale-up events (CSV).")
    ],
    service_level: Annotated[
        float,
        typer.Option("--service-level", metavar="SHARE", help="Share of scale-ups that find a GPU at once."),
    ] = 0.99,
    lead_time: Annotated[
        float | None,
        typer.Option("--lead-time", metavar="SECONDS", help="Time to refill the pool; needed for events."),
    ] = None,
    peak_utilisation: Annotated[
        float,
        typer.Option("--peak-utilisation", metavar="SHARE", help="Most of the pool in use at the peak."),
    ] = 0.9,
    largest_share: Annotated[
        float,
        typer.Option("--largest-share", metavar="SHARE", help="Most of the GPUs held by one provider."),
    ] = 1.0,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="PLAN", help="Write the plan: .toml or .json.")
    ] = None,
    accept_suspicious: Annotated[
        bool, typer.Option("--accept-suspicious", help="Use prices that look wrong, too.")
    ] = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Plan without rows that cannot be right.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Size the buffer of healthy GPUs at least cost from price, observed supply and demand.

    Exit status 3: the supply does not cover the demand; the answer says what is missing and why.
    """
    from coldstart_pool import document
    from coldstart_pool import plan as planning

    policy = planning.policy_from(
        service_level=service_level,
        lead_time_seconds=lead_time,
        peak_utilisation=peak_utilisation,
        largest_share=largest_share,
        accept_suspicious=accept_suspicious,
        skip_invalid=skip_invalid,
    )
    if output is not None:
        document.plan_suffix(output)
    plan = planning.make_plan(prices, supply, demand, policy)
    _report_inputs(shell.printer, plan)
    _show(shell.printer, plan)
    shell.printer.document("plan", document.SCHEMA_VERSION, document.plan_document(plan))
    if output is not None and not dry_run:
        document.write_plan(plan, output)
        shell.printer.note(f"plan written to {output}")
    if not plan.feasible:
        short = ", ".join(
            f"{entry.missing_gpus} {entry.need.gpu}" for entry in plan.classes if entry.missing_gpus
        )
        raise NegativeAnswer(
            f"shortage: missing {short}", hint="the limits above say what stands in the way of each"
        )


def _report_inputs(printer: Printer, plan: Plan) -> None:
    """What was left out, before anything else is said; nothing is dropped silently."""
    from coldstart_pool.findings import grouped_sentences, line_ranges

    for report in plan.inputs:
        if report.rows and report.used_rows / report.rows < _FEWEST_USED:
            printer.answer(_used(report))
    for sentence in grouped_sentences(plan.findings):
        printer.warning(sentence)
    if plan.unobserved_offers:
        printer.warning(
            f"{plan.unobserved_offers} of {plan.offers_read} offers have no supply observation "
            "and count as not available"
        )
    if plan.unmatched_supply:
        where = line_ranges(plan.unmatched_supply)
        printer.warning(f"{plan.inputs[1].path}: supply of machines without a usable price: lines {where}")


def _used(report: TableReport) -> str:
    share = report.used_rows / report.rows
    return f"used only {report.used_rows} of {report.rows} rows ({share:.0%}) of {report.path}"


def _show(printer: Printer, plan: Plan) -> None:
    printer.table(
        ("GPU", "TARGET", "NEED", "PLANNED", "MISSING"),
        [
            (
                entry.need.gpu,
                f"{float(entry.need.target_gpus):g}",
                str(entry.need.required_gpus),
                str(entry.planned_gpus),
                str(entry.missing_gpus),
            )
            for entry in plan.classes
        ],
        right=(1, 2, 3, 4),
    )
    for entry in plan.classes:
        for sentence in entry.limits:
            printer.answer(f"{entry.need.gpu}: {sentence}")
    if plan.offers:
        printer.answer()
        printer.table(
            ("PROVIDER", "PLACE", "INSTANCE", "GPU", "MARKET", "COUNT", "OF", "USD/H EACH", "USD/H"),
            [
                (
                    entry.offer.provider,
                    " ".join(part for part in (entry.offer.region, entry.offer.zone) if part) or "-",
                    entry.offer.instance_type,
                    entry.offer.gpu,
                    entry.offer.market,
                    str(entry.instances),
                    str(entry.obtainable_instances),
                    f"{float(entry.offer.price):.4f}",
                    f"{float(entry.offer.price * entry.instances):.2f}",
                )
                for entry in plan.offers
            ],
            right=(5, 6, 7, 8),
        )
        printer.answer(
            f"cost {float(plan.cost_per_hour):.2f} USD/h, at least {plan.lower_bound_per_hour:.2f} USD/h "
            f"for these GPUs, gap {plan.gap:.1%}"
        )
