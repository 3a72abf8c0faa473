"""coldstart pool need: how many idle GPUs a demand trace asks for, and what each further hit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import NegativeAnswer, UsageError
from coldstart_cli.printer import Printer
from coldstart_commands.plots import Plots
from coldstart_commands.pool_tables import ReportOption, report_tables, with_tables
from coldstart_commands.shell import Shell, coldstart_command
from coldstart_pool.shares import percent

if TYPE_CHECKING:
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.need.report import NeedReport

_BAR_WIDTH = 32


@coldstart_command()
@with_tables(only=("demand", "classes"), required=("demand",))
def command(
    shell: Shell,
    tables: TableFiles,
    lead_times: Annotated[
        list[float],
        typer.Option(
            "--lead-time",
            metavar="SECONDS",
            help="Time to refill the pool; repeated, the first one sizes it and all are compared.",
        ),
    ],
    service_level: Annotated[
        float | None,
        typer.Option(
            "--service-level", metavar="SHARE", help="Share of scale-ups that find a GPU at once; 0.99."
        ),
    ] = None,
    cold_start_cost: Annotated[
        float | None,
        typer.Option(
            "--cold-start-cost", metavar="USD", help="Size by what one avoided cold start is worth instead."
        ),
    ] = None,
    idle_price: Annotated[
        float | None,
        typer.Option("--idle-price", metavar="USD", help="What an idle GPU costs an hour."),
    ] = None,
    returns: Annotated[
        bool, typer.Option("--returns", help="Count on the GPUs that stopped replicas give back.")
    ] = False,
    critical: Annotated[
        list[str] | None,
        typer.Option("--critical", metavar="CLASS", help="A class that gets its largest batch at least."),
    ] = None,
    by_hour: Annotated[
        bool, typer.Option("--by-hour", help="Also what each hour of the day (UTC) needs.")
    ] = False,
    report_file: ReportOption = None,
) -> None:
    """Size the pool from scale-ups inside a refill lead time, as the arriving scale-up sees them.

    Each class and each union of classes that can share machines has a need; a shared pool needs less than
    the sum. With a price, the cost of the next hit and what a shorter lead time saves. Exit status 3: no
    pool pays at `--cold-start-cost`.
    """
    from coldstart_pool.inputs.loading import load_tables
    from coldstart_pool.need.document import SCHEMA_VERSION, need_document
    from coldstart_pool.need.lead_times import Aim
    from coldstart_pool.need.reading import by_wants, trace_of
    from coldstart_pool.need.report import lead_time, need_report, share
    from coldstart_pool.report.page import require_page, write_page

    if report_file is not None:
        require_page(report_file)
    leads = [lead_time(value) for value in lead_times]
    if service_level is not None and cold_start_cost is not None:
        raise UsageError("--service-level and --cold-start-cost both size the pool: pass one of them")
    aim = Aim(share(0.99 if service_level is None else service_level), cold_start_cost)
    inputs = load_tables(tables)
    report_tables(shell.printer, inputs)
    trace = trace_of(inputs.demand, by_wants(inputs.classes))
    if by_hour and inputs.demand.trace is not None and not inputs.demand.trace.since_1970:
        raise UsageError("the times of the trace are no dates: there is no hour of the day in them")
    report = need_report(
        trace,
        leads,
        aim,
        idle_usd_per_gpu_hour=idle_price,
        returns=returns,
        critical=critical or (),
        hours=by_hour,
    )
    _show(shell.printer, report)
    shell.printer.document("pool.need", SCHEMA_VERSION, need_document(report, trace, leads[0]))
    if report_file is not None:
        from coldstart_pool.report.need_page import need_page

        write_page(need_page(report, trace, leads[0], idle_price), report_file)
        shell.printer.note(f"report written to {report_file}")
    if not report.shared_gpus:
        raise NegativeAnswer(
            f"no pool pays at {cold_start_cost:g} USD for a cold start "
            f"and {idle_price:g} USD for an idle GPU-hour"
        )


def _show(printer: Printer, report: NeedReport) -> None:
    printer.table(
        ("CLASSES", "SCALE-UPS", "PEAK BUSY", "GPUS", "95% OF DAYS"),
        [
            (
                " + ".join(need.classes),
                str(need.replicas),
                "-" if need.peak_busy_gpus is None else str(need.peak_busy_gpus),
                str(need.gpus),
                "-" if need.interval is None else f"{need.interval[0]}-{need.interval[1]}",
            )
            for need in report.needs
        ],
        right=(1, 2, 3, 4),
    )
    printer.answer()
    level = percent(float(report.aim.service_level))
    _show_pools(printer, report)
    if report.separate_gpus > report.shared_gpus:
        printer.answer(f"pools of their own for every class: {report.separate_gpus} GPUs")
    if report.implied_value_usd is not None and report.aim.value_usd is None:
        printer.answer(
            f"{level} pays where an avoided cold start is worth {report.implied_value_usd:.2f} USD or more"
        )
    if report.aim.value_usd is not None:
        printer.answer(f"at {report.aim.value_usd:g} USD for a cold start the level that pays is {level}")
    plots = Plots(printer)
    for pool in report.pools:
        if not pool.milestones:
            continue
        dearest = max(step.usd_per_avoided_cold_start for step in pool.milestones)
        printer.answer()
        if len(report.pools) > 1:
            printer.answer(" + ".join(pool.classes))
        printer.table(
            ("GPUS", "HITS", "USD PER AVOIDED COLD START", ""),
            [
                (
                    f"{step.from_gpus}-{step.to_gpus}",
                    f"{percent(step.from_hit_rate)}-{percent(step.to_hit_rate)}",
                    f"{step.usd_per_avoided_cold_start:.2f}",
                    plots.bar(step.usd_per_avoided_cold_start, dearest, _BAR_WIDTH),
                )
                for step in pool.milestones
            ],
            right=(0, 1, 2),
        )
    if report.lead_times:
        printer.answer()
        _show_lead_times(printer, report)
    if report.by_hour is not None:
        printer.answer()
        printer.table(
            ("HOUR (UTC)", "GPUS", ""),
            [
                (f"{hour:02}", str(gpus), plots.bar(gpus, max(report.by_hour), _BAR_WIDTH))
                for hour, gpus in enumerate(report.by_hour)
            ],
            right=(1,),
        )


def _show_pools(printer: Printer, report: NeedReport) -> None:
    found = f"{percent(report.shared_hit_rate)} find one at once"
    if len(report.pools) == 1:
        printer.answer(f"one shared pool of {report.shared_gpus} GPUs: {found}")
        return
    printer.answer(
        f"{len(report.pools)} pools, as no GPU links their classes: {report.shared_gpus} GPUs, {found}"
    )
    for pool in report.pools:
        printer.answer(f"  {' + '.join(pool.classes)}: {pool.gpus} GPUs, {percent(pool.hit_rate)}")


def _show_lead_times(printer: Printer, report: NeedReport) -> None:
    printer.table(
        ("LEAD TIME", "GPUS", "HITS", "USD A YEAR", "USD A YEAR PER SECOND SAVED"),
        [
            (
                f"{float(entry.lead_time_seconds):g} s",
                str(entry.gpus),
                percent(entry.hit_rate),
                f"{entry.usd_per_year:.0f}",
                "-" if entry.saved_usd_per_second_year is None else f"{entry.saved_usd_per_second_year:.0f}",
            )
            for entry in report.lead_times
        ],
        right=(0, 1, 2, 3, 4),
    )
