"""coldstart pool plan: how many GPUs of which offer to keep ready."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.pool_plan_answer import gpus, show_plan
from coldstart_commands.pool_plan_report import write_report
from coldstart_commands.pool_plan_verify import margin_of, refuse_broken, show_verdict, verification
from coldstart_commands.pool_tables import ReportOption, report_tables, with_tables
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.planning.plan import Plan


@coldstart_command()
@with_tables(required=("prices", "supply", "demand"))
def command(
    shell: Shell,
    tables: TableFiles,
    service_level: Annotated[
        float | None,
        typer.Option(
            "--service-level", metavar="SHARE", help="Share of scale-ups that find a GPU at once; 0.99."
        ),
    ] = None,
    lead_time: Annotated[
        float | None,
        typer.Option("--lead-time", metavar="SECONDS", help="Time to refill the pool; needed for a trace."),
    ] = None,
    peak_utilisation: Annotated[
        float | None,
        typer.Option(
            "--peak-utilisation",
            metavar="SHARE",
            help="Most of the GPUs in use at the peak; 0.9 for stated targets, no cap for a trace.",
        ),
    ] = None,
    largest_share: Annotated[
        float,
        typer.Option("--largest-share", metavar="SHARE", help="Most of the GPUs held by one provider."),
    ] = 1.0,
    survive: Annotated[
        float,
        typer.Option(
            "--survive", metavar="SHARE", help="Share of each need that is left when any one domain is lost."
        ),
    ] = 0.0,
    domain: Annotated[
        str,
        typer.Option("--domain", metavar="KIND", help="What is lost at once: region, zone or provider."),
    ] = "region",
    floor: Annotated[
        float,
        typer.Option(
            "--floor",
            metavar="SHARE",
            help="Share of each need that is not spot, apart from what the cap on utilisation adds.",
        ),
    ] = 1.0,
    missing_price: Annotated[
        float,
        typer.Option(
            "--missing-price", metavar="USD", help="Price of a GPU-hour that is missing when spot runs dry."
        ),
    ] = 20.0,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="USD", help="Most to pay an hour, commitments included."),
    ] = None,
    churn: Annotated[
        float,
        typer.Option(
            "--churn", metavar="SHARE", help="Price of starting or stopping a machine, in hours of it."
        ),
    ] = 0.05,
    shrink: Annotated[
        float,
        typer.Option("--shrink", metavar="SHARE", help="Most of the current pool given back at once."),
    ] = 0.1,
    grow: Annotated[
        int | None, typer.Option("--grow", metavar="GPUS", help="Most GPUs started at once.")
    ] = None,
    good_share: Annotated[
        float,
        typer.Option("--good-share", metavar="SHARE", help="Machines that boot and pass the health check."),
    ] = 1.0,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            "--speed", metavar="PROVIDER:GPU=SHARE", help="Measured speed, where a GPU is slower than usual."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="PLAN", help="Write the plan: .toml or .json.")
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="TRACE",
            help="Replay the plan on unseen demand (CSV); write it if it keeps its promise.",
        ),
    ] = None,
    verify_margin: Annotated[
        float,
        typer.Option(
            "--verify-margin",
            metavar="SHARE",
            help="How far below the promise the replay of `--verify` may stay.",
        ),
    ] = 0.0,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            metavar="FORM=FILE",
            help="Write the plan as kubernetes, ec2-warm-pool or csv; may be repeated.",
        ),
    ] = None,
    report_file: ReportOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Size the buffer of healthy GPUs at least cost from price, observed supply and demand.

    Exit status 3: the supply does not cover the demand, and the answer says what is missing and why; or the
    plan misses its promise on the trace of `--verify`, and the level is named that would have kept it.
    """
    from coldstart_pool.planning.model.linear import solver_module

    solver_module()  # what follows needs it and what it brings along
    from coldstart_pool.planning import plan as planning
    from coldstart_pool.planning.answers import document, exports
    from coldstart_pool.planning.policy import policy_from
    from coldstart_pool.report.page import require_page

    policy = policy_from(
        service_level=0.99 if service_level is None else service_level,
        lead_time_seconds=lead_time,
        peak_utilisation=peak_utilisation,
        largest_share=largest_share,
        survive=survive,
        domain=domain,
        floor=floor,
        missing_price=missing_price,
        budget=budget,
        churn=churn,
        shrink=shrink,
        grow_gpus=grow,
        good_share=good_share,
        speeds=speed or (),
    )
    if output is not None:
        document.plan_suffix(output)
    if report_file is not None:
        require_page(report_file)
    margin = margin_of(verify_margin, verify, policy)
    exported = [exports.export_form(text) for text in export or ()]
    plan = planning.make_plan(tables, policy)
    report_tables(shell.printer, plan.inputs)
    _warn(shell.printer, plan)
    if verify is None:
        _warn_of_idle(shell.printer, plan, {"--service-level": service_level, "--lead-time": lead_time})
    show_plan(shell.printer, plan)
    verified = None if verify is None else verification(shell.printer, plan, tables, verify, margin)
    if verified is not None:
        show_verdict(shell.printer, verified)
    proof = None if verified is None else verified.document
    shell.printer.document("plan", document.SCHEMA_VERSION, document.plan_document(plan, verification=proof))
    if report_file is not None and not dry_run:
        write_report(shell.printer, plan, verified, report_file)
    if verified is not None:
        refuse_broken(verified)
    if output is not None and not dry_run:
        document.write_plan(plan, output, verification=proof)
        shell.printer.note(f"plan written to {output}")
    for form, path in exported if not dry_run else ():
        exports.write_export(plan, form, path)
        shell.printer.note(f"{form} written to {path}")
    if not plan.feasible:
        raise NegativeAnswer(f"shortage: missing {_shortage(plan)}", hint=_hint(plan))


def _warn(printer: Printer, plan: Plan) -> None:
    """What of the tables stayed outside of the plan, before anything else is said."""
    from coldstart_pool.inputs.fields import TableKind
    from coldstart_pool.inputs.findings import line_ranges

    unobserved = len(plan.assembled.available.unobserved)
    if unobserved:
        printer.warning(
            f"{unobserved} of {len(plan.inputs.offers)} offers have no supply observation "
            "and count as not available"
        )
    if plan.unmatched_supply:
        paths = [report.path for report in plan.inputs.reports if report.table == TableKind.SUPPLY]
        where = line_ranges(plan.unmatched_supply)
        printer.warning(f"{', '.join(paths)}: supply of machines without a usable price: lines {where}")
    for note in (*plan.assembled.unheld, *plan.solved.notes):
        printer.warning(note)


def _warn_of_idle(printer: Printer, plan: Plan, options: Mapping[str, float | None]) -> None:
    """Options that say nothing of targets, where nothing else uses them."""
    given = [option for option, value in options.items() if value is not None]
    if plan.inputs.demand.trace is None and given:
        printer.warning(f"the demand is a table of targets: {' and '.join(given)} does not size the plan")


def _hint(plan: Plan) -> str:
    if plan.remedies and not plan.remedies[0].missing_gpus:
        return plan.remedies[0].sentence
    return "no single change would do; the limits above say what stands in the way of each"


def _shortage(plan: Plan) -> str:
    parts = [
        f"{gpus(entry.missing_gpus)} {entry.needed.label}" for entry in plan.groups if entry.missing_gpus
    ]
    parts += [
        f"{gpus(entry.missing_survival_gpus)} {entry.needed.label} after the loss of a domain"
        for entry in plan.groups
        if entry.missing_survival_gpus and not entry.missing_gpus
    ]
    return ", ".join(parts)
