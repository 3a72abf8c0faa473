"""coldstart pool advise: is it the batching, the model, or the number of GPUs."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import NegativeAnswer, UsageError
from coldstart_commands.pool_tables import with_tables
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_pool.advise.diagnosis import Advice
    from coldstart_pool.advise.floor import Floor, KeptIdle
    from coldstart_pool.advise.window import Observed
    from coldstart_pool.inputs.pool_inputs import TableFiles

_LONGEST_WINDOW_SECONDS = 86_400.0

_HEADLINES = {
    "none": "no more GPUs needed",
    "stalled": "nothing is answered: no question of GPUs yet",
    "batching": "a batching problem, not a lack of GPUs",
    "model": "a model problem: more GPUs do not help",
    "routing": "a routing problem: requests wait while replicas idle",
    "capacity": "a capacity problem: more replicas needed",
}


@coldstart_command()
@with_tables(only=("classes",), rules_only=("maps", "constants", "time_zone", "service_rate"))
def command(
    shell: Shell,
    tables: TableFiles,
    metrics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METRICS...",
            help="/metrics addresses, one a replica, looked at for `--window`; or saved ones and `--later`.",
        ),
    ] = None,
    later: Annotated[
        list[Path] | None,
        typer.Option("--later", metavar="FILE", help="The second look at each file, in the same order."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="Serving metrics as a table (CSV).")
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            metavar="SECONDS",
            help="Time between the two looks; default for addresses: 30. "
            "Of a table without times, from row to row; default: 60.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Which model, where the metrics are of several."),
    ] = None,
    first_result: Annotated[
        float,
        typer.Option("--first-result", metavar="SECONDS", help="Wanted time to the first token or result."),
    ] = 2.0,
    full_batch: Annotated[
        int, typer.Option("--full-batch", metavar="N", min=1, help="Requests that make a batch a full one.")
    ] = 8,
    peak_utilisation: Annotated[
        float,
        typer.Option(
            "--peak-utilisation", metavar="SHARE", help="Share of a replica's throughput to plan with."
        ),
    ] = 0.8,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Starts and stops of replicas (CSV, as --demand of `pool plan`): "
            "answers with a warm floor, too.",
        ),
    ] = None,
    cold_start: Annotated[
        float | None,
        typer.Option("--cold-start", metavar="SECONDS", help="How long a replica takes to be ready."),
    ] = None,
    service_level: Annotated[
        float,
        typer.Option("--service-level", metavar="SHARE", help="Share of scale-ups that find a warm replica."),
    ] = 0.99,
    cold_start_cost: Annotated[
        float | None,
        typer.Option(
            "--cold-start-cost",
            metavar="USD",
            help="What an avoided cold start is worth; default: an idle replica for ten of them.",
        ),
    ] = None,
    idle_price: Annotated[
        float | None,
        typer.Option("--idle-price", metavar="USD", help="What an idle GPU costs an hour."),
    ] = None,
) -> None:
    """Say whether late answers are a batching, a model or a capacity problem, and what to keep warm.

    Reads what vLLM, SGLang, TGI and Triton export. Exit status 3: there is a problem; the answer names it.
    """
    from coldstart_pool.advise.diagnosis import Cause, Wanted, diagnose

    _check_shares({"--peak-utilisation": peak_utilisation, "--service-level": service_level})
    _check_seconds({"--first-result": first_result, "--window": window, "--cold-start": cold_start})
    worth = _worth_gpu_seconds(cold_start_cost, idle_price)
    floors = _floors(tables, trace, cold_start, service_level, worth)
    observed = _observed(
        shell.printer, _Sources(metrics or [], later or [], table, trace is not None), window, model, tables
    )
    document: dict[str, Any] = {"floors": {name: asdict(floor) for name, floor in floors.items()}}
    advice = None
    if observed:
        advice = diagnose(observed, Wanted(first_result, full_batch, peak_utilisation))
        _show_advice(shell.printer, advice)
        document |= {**asdict(advice), "observed": [asdict(item) for item in observed]}
    for name, floor in floors.items():
        _show_floor(shell.printer, name, floor)
    shell.printer.document("pool.advise", 1, document)
    if advice is not None and advice.cause is not Cause.NONE:
        raise NegativeAnswer(_HEADLINES[advice.cause], hint=advice.remedies[0])


def _show_advice(printer: Printer, advice: Advice) -> None:
    printer.answer(_HEADLINES[advice.cause])
    for sentence in advice.evidence:
        printer.answer(f"  {sentence}")
    for sentence in advice.remedies:
        printer.answer(f"  do: {sentence}")


def _show_floor(printer: Printer, name: str, floor: Floor) -> None:
    printer.answer(
        f"{name}: keep {floor.replicas} warm beside those that serve: {_percent(floor.service_level)} of "
        f"{floor.started_replicas} replicas that started would have found one, "
        f"when each is replaced within a cold start of {floor.cold_start_seconds:g} s"
    )
    if not floor.is_supported:
        printer.answer(
            f"{name}: {floor.started_replicas} starts are too few to tell {_percent(floor.service_level)}: "
            "that is the most that came together"
        )
    printer.answer(
        f"{name}: scale down after {floor.keep.seconds:.0f} s idle: {_kept(floor.keep)} "
        f"(a cold start saved counts as {floor.worth_seconds:.0f} s of an idle replica)"
    )
    if (longer := floor.longer) is not None:
        printer.answer(
            f"{name}: {longer.seconds:.0f} s would let {longer.hit_share:.0%} of starts find one, "
            f"for {longer.idle_seconds_per_hit:.0f} s more of an idle replica for each of them"
        )
    if not floor.has_stops:
        printer.answer(
            f"{name}: the trace has no stops, so idle times are taken as the gaps between starts: "
            "the real ones are shorter"
        )


def _kept(kept: KeptIdle) -> str:
    if kept.idle_seconds_per_hit is None:
        return "no start finds one that was kept"
    return (
        f"{kept.hit_share:.0%} of starts find one that was kept, "
        f"and each cost {kept.idle_seconds_per_hit:.0f} s of an idle replica"
    )


def _percent(share: float) -> str:
    return f"{share * 100:.10g}%"


def _check_shares(shares: dict[str, float]) -> None:
    for name, value in shares.items():
        if not 0 < value < 1:
            raise UsageError(f"`{name}` is a share between 0 and 1: {value:g}")


def _worth_gpu_seconds(cold_start_cost: float | None, idle_price: float | None) -> float | None:
    """Seconds of an idle GPU that cost as much as a cold start."""
    if (cold_start_cost is None) != (idle_price is None):
        raise UsageError(
            "`--cold-start-cost` and `--idle-price` belong together", hint="pass both or neither"
        )
    if cold_start_cost is None or idle_price is None:
        return None
    for name, value in (("--cold-start-cost", cold_start_cost), ("--idle-price", idle_price)):
        if not 0 < value < math.inf:
            raise UsageError(f"`{name}` must be a number of dollars above 0: {value:g}")
    return 3600 * cold_start_cost / idle_price


def _check_seconds(values: dict[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"`{name}` must be a number of seconds above 0: {value:g}")


@dataclass(frozen=True)
class _Sources:
    """What was named to be looked at; nothing need be where only a floor is asked for."""

    metrics: list[str]
    later: list[Path]
    table: Path | None
    wanted_floor: bool


def _observed(
    printer: Printer, sources: _Sources, window: float | None, model: str | None, tables: TableFiles
) -> list[Observed]:
    from coldstart_pool.advise.fetch import check_distinct, is_address
    from coldstart_pool.advise.serving_table import observed_in

    metrics, later = sources.metrics, sources.later
    if sources.table is not None:
        if metrics or later:
            raise UsageError("a table and METRICS exclude each other", hint="leave one of them out")
        found = observed_in(sources.table, row_seconds=window, time_zone=tables.rules.time_zone, model=model)
        for note in found.notes:
            printer.warning(note)
        return found.observed
    if not metrics:
        if sources.wanted_floor and not later:
            return []
        raise UsageError("nothing to look at", hint="name the /metrics of each replica")
    addresses = [source for source in metrics if is_address(source)]
    if addresses and (len(addresses) < len(metrics) or later):
        raise UsageError("addresses and files cannot be mixed", hint="name either all of one kind")
    check_distinct(metrics, later)
    if addresses:
        return _twice(metrics, 30.0 if window is None else window, model)
    return _files(metrics, later, window, model)


def _twice(addresses: list[str], seconds: float, model: str | None) -> list[Observed]:
    from coldstart_pool.advise.fetch import scrape_all
    from coldstart_pool.advise.window import between

    if not 1 <= seconds <= _LONGEST_WINDOW_SECONDS:
        raise UsageError(f"`--window` is from 1 s to a day where addresses are looked at: {seconds:g}")
    # several looks in between: queues are gauges, and two moments say little about them
    looks = max(2, min(16, int(seconds) + 1))
    started = time.monotonic()
    seen = [scrape_all(addresses, model)]
    for number in range(1, looks):
        time.sleep(max(0.0, started + seconds * number / (looks - 1) - time.monotonic()))
        seen.append(scrape_all(addresses, model))
    return [between(scrapes) for scrapes in zip(*seen, strict=True)]


def _files(first: list[str], later: list[Path], window: float | None, model: str | None) -> list[Observed]:
    from coldstart_pool.advise.fetch import scrape_file
    from coldstart_pool.advise.window import between

    if len(later) != len(first):
        raise UsageError(
            f"{len(first)} files and {len(later)} later ones",
            hint="pass `--later FILE` once for each file: rates need two looks",
        )
    pairs = zip(map(Path, first), later, strict=True)
    return [
        between([scrape_file(one, model), scrape_file(other, model)], seconds=window) for one, other in pairs
    ]


def _floors(
    tables: TableFiles,
    trace: Path | None,
    cold_start: float | None,
    service_level: float,
    worth_gpu_seconds: float | None,
) -> dict[str, Floor]:
    from coldstart_pool.advise.floor import warm_floors
    from coldstart_pool.advise.traffic import load_trace
    from coldstart_pool.inputs.fields import TableKind

    if (trace is None) != (cold_start is None):
        raise UsageError("`--trace` and `--cold-start` belong together", hint="pass both or neither")
    if trace is None or cold_start is None:
        if worth_gpu_seconds is not None:
            raise UsageError("`--cold-start-cost` sizes a scale-down window: pass `--trace`, too")
        return {}
    found = load_trace(trace, tables.rules, tables.of(TableKind.CLASSES))
    floors = warm_floors(
        found,
        cold_start_seconds=cold_start,
        service_level=service_level,
        worth_gpu_seconds=worth_gpu_seconds,
    )
    return {name or "replicas": floor for name, floor in floors.items()}
