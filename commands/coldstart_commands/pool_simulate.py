"""coldstart pool simulate: a plan replayed on a demand trace, beside what operators do without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.printer import Printer
from coldstart_commands.plots import Plots
from coldstart_commands.pool_tables import ReportOption, report_tables, with_tables
from coldstart_commands.shell import Shell, coldstart_command
from coldstart_pool.shares import percent, percent_range

if TYPE_CHECKING:
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.replay.outcome import Outcome
    from coldstart_pool.replay.planned import PlannedPool
    from coldstart_pool.replay.timeline import Timeline
    from coldstart_pool.replay.walk_forward import WalkForward

_LINE_WIDTH = 60


@coldstart_command()
@with_tables(only=("classes",))
def command(
    shell: Shell,
    tables: TableFiles,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan of `pool plan --output`.")],
    trace: Annotated[
        Path,
        typer.Option("--trace", metavar="FILE", help="Replica starts and stops (CSV), best of unseen days."),
    ],
    lead_time: Annotated[
        float | None,
        typer.Option("--lead-time", metavar="SECONDS", help="Time to refill the pool; the plan's own."),
    ] = None,
    lead_time_spread: Annotated[
        float,
        typer.Option("--lead-time-spread", metavar="RATIO", help="Its standard deviation over its mean."),
    ] = 0.0,
    launch_failures: Annotated[
        float, typer.Option("--launch-failures", metavar="SHARE", help="Attempts that give no machine.")
    ] = 0.0,
    health_rejects: Annotated[
        float, typer.Option("--health-rejects", metavar="SHARE", help="Machines that fail the health check.")
    ] = 0.0,
    preemptions: Annotated[
        float,
        typer.Option(
            "--preemptions-per-hour",
            metavar="RATE",
            help="How often a place takes all its spot machines back.",
        ),
    ] = 0.0,
    keep: Annotated[
        float,
        typer.Option("--keep", metavar="SECONDS", help="Release machines that were spare for this long."),
    ] = 1200.0,
    floor: Annotated[
        float,
        typer.Option(
            "--floor", metavar="SHARE", help="Count the minutes with less than this of the pool idle."
        ),
    ] = 0.1,
    walk_forward: Annotated[
        int | None,
        typer.Option(
            "--walk-forward",
            metavar="DAYS",
            min=1,
            help="Also size each day from the DAYS before it, and judge it there.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of everything that is drawn.")] = 0,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Only the plan, without what it is compared with.")
    ] = False,
    report_file: ReportOption = None,
) -> None:
    """Replay a plan on demand: hits, waits, cost, beside no pool, a tenth of the peak, one per application.

    A scale-up is a hit when it finds its GPUs at once. Intervals redraw whole days (hours, of a short trace).
    """
    from coldstart_pool.inputs.fields import TableKind
    from coldstart_pool.inputs.loading import load_tables
    from coldstart_pool.need.reading import by_classes, trace_of
    from coldstart_pool.replay import document
    from coldstart_pool.replay.fleet import Market
    from coldstart_pool.replay.planned import load_planned
    from coldstart_pool.replay.simulate import Setting, lead_time_of, simulate, walk
    from coldstart_pool.report.page import require_page, write_page

    if report_file is not None:
        require_page(report_file)
    planned = load_planned(plan)
    setting = Setting(
        Market(
            lead_time_of(planned, lead_time),
            lead_time_spread,
            launch_failures,
            health_rejects,
            preemptions,
            keep,
            seed,
        ),
        floor,
    )
    inputs = load_tables(replace(tables, files=(*tables.files, (TableKind.DEMAND, trace))))
    report_tables(shell.printer, inputs)
    demand = trace_of(inputs.demand, by_classes(entry.replica_class for entry in planned.classes))
    seen = any(
        report.digest in planned.input_digests for report in inputs.reports if report.path == str(trace)
    )
    if seen:
        shell.printer.warning(
            f"{plan} was sized from {trace}, whose days are not unseen: `--walk-forward DAYS` judges such"
        )
    with shell.printer.progress(f"replaying {len(demand.times_ns):,} replica events"):
        outcomes = list(simulate(planned, demand, setting, rivals=not no_baselines))
        walked = None if walk_forward is None else walk(planned, demand, setting, walk_forward)
    _show(shell.printer, planned, outcomes, walked)
    shell.printer.document(
        "pool.simulation",
        document.SCHEMA_VERSION,
        document.simulation_document(planned, demand, setting, outcomes, walked, sized_from_this_trace=seen),
    )
    if report_file is not None:
        from coldstart_pool.report.simulation_page import simulation_page

        page = simulation_page(
            planned,
            demand,
            setting,
            outcomes,
            walked,
            trace_name=str(trace),
            since_1970=inputs.demand.trace is not None and inputs.demand.trace.since_1970,
            sized_from_this_trace=seen,
        )
        write_page(page, report_file)
        shell.printer.note(f"report written to {report_file}")


def _show(printer: Printer, plan: PlannedPool, outcomes: list[Outcome], walked: WalkForward | None) -> None:
    printer.table(
        ("POLICY", "GPUS", "SCALE-UPS", "HITS", "95% OF DAYS", "P50", "P90", "P95", "P99", "LONGEST WAIT"),
        [_hits(one) for one in outcomes],
        right=tuple(range(1, 10)),
    )
    printer.answer()
    printer.table(
        (
            "POLICY",
            "IDLE GPU-H",
            "PAID GPU-H",
            "USD",
            "USED",
            "AT PEAK",
            "LAUNCHES",
            "RELEASES",
            "BELOW FLOOR",
        ),
        [_costs(one) for one in outcomes],
        right=tuple(range(1, 9)),
    )
    own = outcomes[0]
    if len(own.classes) > 1:
        printer.answer()
        printer.table(
            ("CLASS", "SCALE-UPS", "HITS", "95% OF DAYS"),
            [
                (
                    entry.name,
                    str(entry.scale_ups),
                    percent(entry.hit_rate),
                    percent_range(entry.hit_rate_interval),
                )
                for entry in own.classes
            ],
            right=(1, 2, 3),
        )
    _show_timeline(printer, own.timeline)
    printer.answer()
    if own.busy_gpu_hours is None:
        printer.answer("the trace does not say when replicas stop: GPU-hours are the pool's alone")
    if own.never_served:
        printer.answer(
            f"{own.never_served} scale-ups never got GPUs: "
            "stopped before, or no machine of the plan is large enough"
        )
    if own.restarts:
        printer.answer(
            f"preemption took {own.preempted_machines} machines; {own.restarts} replicas asked again, "
            f"{own.restart_hits} of them found GPUs at once"
        )
    kept = "kept" if own.hit_rate >= plan.service_level else "not kept"
    printer.answer(
        f"promise of {percent(float(plan.service_level))} {kept}: "
        f"{percent(own.hit_rate)} of scale-ups found GPUs at once"
    )
    if walked is not None:
        printer.answer(_walk_sentence(walked))


def _show_timeline(printer: Printer, seen: Timeline) -> None:
    """The fewest free GPUs, the most busy ones and the misses of each stretch of the trace."""
    plots = Plots(printer)
    free, busy, misses = seen.least_free_gpus, seen.most_busy_gpus, seen.misses
    rows = [("free GPUs, fewest", plots.sparkline(free, _LINE_WIDTH, min), f"{min(free)} to {max(free)}")]
    if busy is not None:
        rows.append(("busy GPUs, most", plots.sparkline(busy, _LINE_WIDTH), f"{min(busy)} to {max(busy)}"))
    rows.append(("misses", plots.sparkline(misses, _LINE_WIDTH, sum), f"{sum(misses)} in all"))
    printer.answer()
    printer.table(("OVER TIME", "FROM FIRST TO LAST", ""), rows)


def _walk_sentence(walked: WalkForward) -> str:
    start = (
        f"sized anew each day from the {walked.trained_days} days before: {percent(walked.hit_rate)}"
        f"{_in_brackets(walked.hit_rate_interval)} on {walked.judged_days} unseen days, "
        f"{walked.mean_gpus:.1f} GPUs on average"
    )
    if walked.kept:
        return start
    promise, level = percent(float(walked.service_level)), walked.level_that_keeps_it
    if level is None:
        return f"{start}; no level keeps {promise} there"
    return f"{start}; {promise} takes `--service-level {float(level):g}`"


def _hits(one: Outcome) -> tuple[str, ...]:
    waits = one.waits_seconds
    return (
        one.policy,
        str(one.pool_gpus),
        str(one.scale_ups),
        percent(one.hit_rate),
        percent_range(one.hit_rate_interval),
        *(f"{wait:.0f} s" for wait in (waits.p50, waits.p90, waits.p95, waits.p99, waits.max)),
    )


def _costs(one: Outcome) -> tuple[str, ...]:
    return (
        one.policy,
        f"{one.idle_gpu_hours:.0f}",
        f"{one.paid_gpu_hours:.0f}",
        "-" if one.cost_usd is None else f"{one.cost_usd:.0f}",
        "-" if one.allocation_utilisation is None else percent(one.allocation_utilisation),
        "-" if one.peak_utilisation is None else percent(one.peak_utilisation),
        str(one.launches),
        str(one.releases),
        f"{one.minutes_below_floor:.0f} min",
    )


def _in_brackets(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({percent_range(interval)})"
