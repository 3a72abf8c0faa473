"""Demand tables: targets, starts and stops of replicas, or sampled counts and rates that become such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_values import Demand, DemandClass, DemandTrace, ReplicaEvent, Target
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.gpu_names import UnclearGpuError
from coldstart_pool.inputs.numbers import is_missing
from coldstart_pool.inputs.rows import RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.samples import MOST_REPLICAS, SampledSeries, read_samples, trace_of_samples
from coldstart_pool.inputs.tables import COLUMNS_NOT_READ, Row, Table, read_table

# beyond this a number is a slip, and sums of millions would not fit into 64 bits
_MOST_GPUS_PER_REPLICA = 100_000
_SIGNS = {
    **dict.fromkeys(("start", "started", "create", "created", "up", "scaleup", "add", "added"), 1),
    **dict.fromkeys(("stop", "stopped", "delete", "deleted", "down", "scaledown", "remove", "removed"), -1),
}


@dataclass(frozen=True)
class _Needs:
    """Application, GPU and GPUs a replica of one row."""

    application: str
    gpu: str
    gpus_per_replica: int


def read_demand(
    path: Path, rules: ReadingRules, classes: Sequence[DemandClass] = ()
) -> tuple[Demand, TableReport]:
    """What the table asks for; every finding that is not `noted` makes it unusable (`refuse_bad_demand`)."""
    table = read_table(
        path,
        TableKind.DEMAND,
        "target|time",
        numeric=("target", "replicas", "gpus_per_replica", "running", "rate", "value"),
        rules=rules,
        with_series=True,
    )
    if {"target", "time"} <= table.headings.keys():
        raise DataError(
            f"{table.path}: both targets (`{table.headings['target']}`) and "
            f"scale-up events (`{table.headings['time']}`)",
            hint="remove one of the columns",
        )
    rows = RowReader(table, rules)
    reader = _DemandReader(rows, {entry.application: entry for entry in classes})
    present = table.headings.keys()
    if "target" in present:
        demand = Demand(targets=reader.targets())
    elif (kind := _sampled(table)) is not None:
        if kind == "wide":
            # the columns that are no field are the series themselves
            rows.decisions = [
                ("series" if topic == COLUMNS_NOT_READ else topic, text) for topic, text in rows.decisions
            ]
        demand = Demand(trace=reader.samples(kind))
    else:
        if not {"gpu", "application"} & present:
            raise DataError(
                f"{table.path}: no column for `gpu` or `application`",
                hint="add one, or give one value for all rows with `--set demand.gpu=H100`",
            )
        demand = Demand(trace=reader.events())
    return demand, rows.report({row.line for row in table.rows} - {finding.line for finding in rows.findings})


def refuse_bad_demand(report: TableReport, demand: Demand) -> None:
    """Demand is never left out: a row that cannot be used, or no row at all, refuses the table."""
    empty = not demand.targets and (demand.trace is None or not any(True for _ in demand.trace.starts))
    if empty and not report.rows:
        raise DataError(f"{report.path}: no demand: the table has no rows")
    bad = [finding.sentence() for finding in report.findings if finding.severity is not Severity.NOTED]
    if bad:
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError("; ".join(bad[:5]) + more, hint="correct these lines: demand is never left out")
    if empty:
        raise DataError(f"{report.path}: no demand: no replica starts in it")


def _sampled(table: Table) -> str | None:
    """`long` or `wide` where the table holds samples; None for single starts."""
    present = table.headings.keys()
    if present & {"running", "rate", "value"} - {
        field for field, heading in table.headings.items() if heading.startswith("--set ")
    }:
        return "long"
    events = {"application", "gpu", "replicas", "stop", "event"}
    stated = {field for field in present & events if not table.headings[field].startswith("--set ")}
    return "wide" if table.series and not stated else None


class _DemandReader:
    def __init__(self, rows: RowReader, classes: Mapping[str, DemandClass]) -> None:
        self._rows = rows
        self._table = rows.table
        self._classes = classes
        self._total = 0
        self._known_needs: dict[tuple[str, str, str], _Needs] = {}

    def targets(self) -> tuple[Target, ...]:
        seen: dict[tuple[str, str], int] = {}
        targets = []
        for row, target in self._rows.values(self._target):
            first = seen.setdefault((target.application, target.gpu), row.line)
            if first != row.line:
                whose = f"{target.application}: {target.gpu}" if target.application else target.gpu
                self._rows.find(row.line, Severity.INVALID, f"{whose} has a target already in line {first}")
            else:
                targets.append(target)
        return tuple(sorted(targets))

    def events(self) -> DemandTrace | None:
        clock = self._rows.clock("time", "stop")
        events: list[ReplicaEvent] = []
        running: dict[tuple[str, str, int], int] = {}
        for _, (needs, replicas, start, stop) in self._rows.values(self._start_and_stop):
            key = (needs.application, needs.gpu, needs.gpus_per_replica)
            if start is None:
                running[key] = running.get(key, 0) + replicas
            else:
                events.append(ReplicaEvent(start, *key, replicas))
            if stop is not None:
                events.append(ReplicaEvent(stop, *key, -abs(replicas)))
        if clock.mixed:
            reason = "dates stand beside seconds that count from a start of their own"
            self._rows.find(0, Severity.INVALID, reason)
        if not events:
            return None
        events.sort(key=attrgetter("order"))
        return DemandTrace(
            tuple(events),
            events[0].time_seconds,
            events[-1].time_seconds,
            clock.since_1970,
            any(event.replicas < 0 for event in events),
            tuple(sorted((*key, count) for key, count in running.items())),
        )

    def samples(self, kind: str) -> DemandTrace | None:
        """Events from the rises and falls of sampled replicas, or of rates over what one replica serves."""
        clock = self._rows.clock("time", ordered=kind == "wide")
        series = read_samples(self._rows, clock, wide=kind == "wide")
        levels: dict[tuple[str, str, int], list[SampledSeries]] = {}
        for entry in series:
            try:
                needs = self._needs(entry.application, entry.gpu, entry.gpus_per_replica)
                rate = self._service_rate(entry)
            except UnusableRow as problem:
                self._rows.find(0, problem.severity, problem.reason, problem.detail)
                continue
            except UnclearGpuError as error:
                self._rows.find(0, Severity.REFUSED, str(error), f"series `{entry.name}`")
                continue
            key = (needs.application, needs.gpu, needs.gpus_per_replica)
            levels.setdefault(key, []).append(entry.scaled(rate))
        return trace_of_samples(self._rows, levels, since_1970=clock.since_1970)

    def _service_rate(self, entry: SampledSeries) -> Fraction | None:
        """Requests per second of one replica; None where the samples count replicas themselves."""
        if entry.counts_replicas:
            return None
        known = self._classes.get(entry.application)
        rate = entry.service_rate or (known.service_rate if known else None) or self._rows.rules.service_rate
        if rate is None:
            raise UnusableRow(
                Severity.REFUSED,
                "request rates need `--service-rate`; for replicas pass `--set demand.value=replicas`",
                f"`{entry.name}`",
            )
        return rate

    def _target(self, row: Row) -> Target:
        needs = self._needs_of(row)
        value = self._rows.number(row, "target")
        if value is None:
            raise UnusableRow(Severity.INVALID, "no target")
        return Target(needs.gpu, value, None, needs.application)

    def _start_and_stop(self, row: Row) -> tuple[_Needs, int, Fraction | None, Fraction | None]:
        clock = self._rows.clock("time", "stop")
        stop = None if is_missing(row.text("stop")) else clock.seconds(row.text("stop"))
        # an empty start with a stop: it ran before the trace began
        start = None if stop is not None and is_missing(row.text("time")) else clock.seconds(row.text("time"))
        if start is not None and stop is not None and stop < start:
            raise UnusableRow(Severity.INVALID, "a replica stops before it starts")
        needs = self._needs_of(row)
        replicas = self._rows.count(row, "replicas", 1)
        if replicas == 0 or needs.gpus_per_replica == 0:
            raise UnusableRow(Severity.INVALID, "a scale-up of nothing")
        if needs.gpus_per_replica > _MOST_GPUS_PER_REPLICA:
            raise UnusableRow(Severity.INVALID, "no replica has so many GPUs", f"{needs.gpus_per_replica}")
        self._total += replicas
        if self._total > MOST_REPLICAS:
            raise DataError(f"{self._table.path}:{row.line}: more than {MOST_REPLICAS} replicas in one table")
        return needs, replicas * self._sign(row), start, stop

    def _sign(self, row: Row) -> int:
        text = row.text("event")
        if not text:
            return 1
        sign = _SIGNS.get("".join(filter(str.isalpha, text.lower())))
        if sign is None:
            raise UnusableRow(Severity.REFUSED, "neither a start nor a stop", f"`{text}`")
        if sign < 0 and row.text("stop"):
            raise UnusableRow(Severity.INVALID, "a stop that stops again")
        return sign

    def _needs_of(self, row: Row) -> _Needs:
        key = (row.text("application"), row.text("gpu"), row.text("gpus_per_replica"))
        if (found := self._known_needs.get(key)) is None:
            gpus = self._rows.count(row, "gpus_per_replica") if key[2] else None
            found = self._known_needs[key] = self._needs(key[0], key[1], gpus)
        return found

    def _needs(self, application: str, gpu: str, gpus: int | None) -> _Needs:
        known = self._classes.get(application)
        if gpu:
            name = self._rows.gpu(gpu)
            if known is not None and name not in known.gpus:
                raise UnusableRow(
                    Severity.INVALID, f"{application} runs on {' or '.join(known.gpus)}, not on {name}"
                )
        elif known is not None:
            name = known.gpus[0]
        else:
            whose = f"`{application}`" if application else "the row"
            raise UnusableRow(
                Severity.INVALID, f"no GPU for {whose}: name it in `--classes` or with `--set demand.gpu`"
            )
        if gpus is None:
            gpus = known.gpus_per_replica if known else 1
        return _Needs(application, name, gpus)
