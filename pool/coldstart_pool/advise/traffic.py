"""The starts and stops of replicas that a warm floor is made of, from a demand table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_values import DemandTrace
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.loading import load_tables
from coldstart_pool.inputs.pool_inputs import TableFiles
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import read_table

_GPU = (TableKind.DEMAND, "gpu")


def load_trace(path: Path, rules: ReadingRules, classes: Sequence[Path] = ()) -> DemandTrace:
    """Any bad row refuses the table; a table without GPUs is as good as one with them."""
    # a floor counts replicas, whatever they run on; but the reader of demand wants to know their GPU
    unnamed = not classes and _GPU not in rules.constants and not _names_gpus(path, rules)
    if unnamed:
        rules = replace(rules, constants={**rules.constants, _GPU: "H100"})
    files = tuple((TableKind.CLASSES, one) for one in classes)
    trace = load_tables(TableFiles((*files, (TableKind.DEMAND, path)), rules)).demand.trace
    if trace is None:
        raise DataError(f"{path}: no starts of replicas: the table holds targets")
    if unnamed:
        trace = replace(trace, events=tuple(replace(event, gpu="") for event in trace.events))
    return trace


def _names_gpus(path: Path, rules: ReadingRules) -> bool:
    table = read_table(path, TableKind.DEMAND, "target|time", numeric=(), rules=rules)
    return "gpu" in table.headings
