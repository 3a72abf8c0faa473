"""Google prices machines and their GPUs in rows of their own in the catalogue: together they are an offer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from coldstart_pool.inputs.numbers import is_missing
from coldstart_pool.inputs.tables import Row, Table

# the catalogue's name of the GPU in a family of machines; the last number of the name counts them
_FAMILIES = (
    (re.compile(r"a2-(?:high|mega)gpu-(\d+)g"), "A100"),
    (re.compile(r"a2-ultragpu-(\d+)g"), "A100-80GB"),
    (re.compile(r"a3-(?:high|edge)gpu-(\d+)g(?:-nolssd)?"), "H100"),
    (re.compile(r"a3-ultragpu-(\d+)g(?:-nolssd)?"), "H200"),
    (re.compile(r"a4-highgpu-(\d+)g(?:-nolssd)?"), "B200"),
)
_L4_OF_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_PRICES = ("price", "spot", "on_demand")


def join_google_rows(table: Table) -> tuple[Table, frozenset[int], frozenset[int]]:
    """Machines with the price of their GPUs; the lines of GPUs that were added, and of machines without any.

    Tables without such rows come back as they are.
    """
    if "instance_type" not in table.headings:
        return table, frozenset(), frozenset()
    gpus = {_place(row, row.text("gpu"), row.text("gpu_count")): row for row in table.rows if _is_gpu(row)}
    if not gpus:
        return table, frozenset(), frozenset()
    rows, added, alone = [], set(), set()
    for row in table.rows:
        wanted = gpu_of(row.text("instance_type")) if is_missing(row.text("gpu")) else None
        if wanted is None:
            rows.append(row)
            continue
        found = gpus.get(_place(row, wanted[0], str(wanted[1])))
        if found is None:
            alone.add(row.line)
            rows.append(row)
            continue
        added.add(found.line)
        sums = {field: _sum(row.text(field), found.text(field)) for field in _PRICES if field in row.cells}
        machine = {field: found.text(field) for field in ("gpu", "gpu_count", "gpu_info")}
        rows.append(row.changed({**machine, **sums}))
    return replace(table, rows=tuple(rows)), frozenset(added), frozenset(alone)


def gpu_of(instance_type: str) -> tuple[str, int] | None:
    """The GPU of a machine type that always has the same, and how many."""
    name = instance_type.lower()
    for pattern, gpu in _FAMILIES:
        if match := pattern.fullmatch(name):
            return gpu, int(match[1])
    match = re.fullmatch(r"g2-standard-(\d+)", name)
    count = _L4_OF_G2.get(int(match[1])) if match else None
    return None if count is None else ("L4", count)


def _is_gpu(row: Row) -> bool:
    return not row.text("instance_type") and not is_missing(row.text("gpu"))


def _place(row: Row, gpu: str, count: str) -> tuple[str, ...]:
    places = (row.text(field).lower() for field in ("provider", "region", "zone"))
    return (*places, gpu.upper(), count.removesuffix(".0"))


def _sum(first: str, second: str) -> str:
    """Both together, or nothing where either is not sold or not readable: half a price would be too cheap."""
    parts = _decimals((first, second))
    return "" if parts is None else str(sum(parts))


def _decimals(texts: Iterable[str]) -> list[Decimal] | None:
    try:
        values = [Decimal(text) for text in texts]
    except InvalidOperation:
        return None
    return values if all(value.is_finite() and value > 0 for value in values) else None
