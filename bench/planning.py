"""`coldstart pool plan` on made-up markets of growing size: seconds, memory, and what whole machines cost."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from installed import COLDSTART, PYTHON
from table import Row

GPUS = (
    "H100", "H200", "B200", "B300", "A100-80GB", "A100-40GB", "L40S", "L40", "L4", "A10G", "A10", "A30",
    "A40", "A6000", "T4", "V100-16GB", "V100-32GB", "RTX4090", "RTX6000ADA", "MI300X",
)  # fmt: skip
PROVIDERS = tuple(f"cloud{number}" for number in range(8))
REGIONS = tuple(f"region{number}" for number in range(12))
CLASSES = 40
BLOCKS = 24
SIZES = (500, 2_000, 5_000, 10_000, 20_000)
TIGHT_SIZES = (2_000, 20_000)
BATCHES = (1, 1, 1, 2, 4, 8, 16, 32, 64, 128)
# needs of 44 to 73 GPUs a class instead of 148 to 277: one machine is a larger part of each
TIGHT_BATCHES = BATCHES[:-2]
OPTIONS = (
    "--lead-time", "600", "--service-level", "0.99", "--floor", "0.5", "--survive", "0.7", "--largest-share",
    "0.4",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One run of the command."""

    seconds: float
    peak_mib: float
    plan: dict[str, object]


def planning_rows(folder: Path, runs: int, sizes: Sequence[int] = SIZES) -> list[Row]:
    """A row a size; the peer is the relaxation of the same market, rounded up, and how much dearer it is."""
    rows = []
    markets = [(offers, "", BATCHES) for offers in sizes]
    markets += [(offers, " tight", TIGHT_BATCHES) for offers in TIGHT_SIZES if offers in sizes]
    for offers, kind, batches in markets:
        place = folder / f"market-{offers}{kind.replace(' ', '-')}"
        place.mkdir()
        write_market(place, offers, batches)
        measured = [_run(place) for _ in range(runs if offers <= 2_000 else 1)]
        plan = measured[0].plan
        peak = max(one.peak_mib for one in measured)
        naive = _naive(place)
        print(
            f"plan, {offers}{kind} offers x {CLASSES} classes: peak {peak:.0f} MiB, gap to the certified "
            f"bound {_number(plan, 'gap'):.2%}, rounding up {naive:.2%}"
        )
        goal = "<= 5 s, <= 1 GiB, gap <= 2 %" if offers == 2_000 else ""
        rows.append(Row(f"plan, {offers}{kind} offers", [one.seconds for one in measured], [], goal))
    return rows


def write_market(folder: Path, offers: int, batches: Sequence[int] = BATCHES) -> None:
    """Prices, attempts of a day, and a week of replicas of forty applications; the same for the same size."""
    source = random.Random(offers)
    machines = []
    seen = set()
    zones = "abcdefgh" if offers > 5_000 else "abc"
    while len(machines) < offers // 2:
        gpu, provider, region = source.choice(GPUS), source.choice(PROVIDERS), source.choice(REGIONS)
        zone, count = region + source.choice(zones), source.choice((1, 2, 4, 8))
        if (gpu, provider, zone, count) in seen:
            continue
        seen.add((gpu, provider, zone, count))
        price = round((0.6 + GPUS.index(gpu) % 7 * 0.5) * source.uniform(0.9, 1.6) * count, 3)
        name = f"{gpu.lower()}-{count}x"
        machines.append(
            (provider, region, zone, name, gpu, count, price, round(price * source.uniform(0.25, 0.6), 3))
        )
    heading = ("provider", "region", "zone", "instance_type", "gpu", "gpu_count", "on_demand", "spot")
    _write(folder / "prices.csv", heading, machines)
    _write(
        folder / "supply.csv",
        (
            "time",
            "provider",
            "region",
            "zone",
            "instance_type",
            "gpu",
            "gpu_count",
            "market",
            "requested",
            "obtained",
        ),
        _attempts(source, machines),
    )
    _write(folder / "demand.csv", ("time", "application", "gpu", "replicas"), _starts(source, batches))
    wants = [(f"app{n}", _gpu(n), _other(n), f"app{n}") for n in range(CLASSES)]
    _write(folder / "classes.csv", ("application", "gpu", "substitutes", "snapshot"), wants)
    quotas = [(f"{p} {gpu}", p, gpu, "gpus", 512) for p in PROVIDERS for gpu in GPUS[::3]]
    _write(folder / "quota.csv", ("group", "provider", "gpu", "unit", "limit"), quotas)


def _attempts(source: random.Random, machines: Iterable[tuple[object, ...]]) -> Iterable[tuple[object, ...]]:
    """Spot of a provider in a region is there or not as a whole; on-demand nearly always is."""
    listed = list(machines)
    for block in range(BLOCKS):
        dry = {(p, r) for p in PROVIDERS for r in REGIONS if source.random() < 0.25}
        for machine in listed:
            provider, region, zone, name, gpu, count, *_ = machine
            most = 2 + hash_of(machine) % 12
            time_text = f"2026-01-01T{block:02}:00:00Z"
            place = (time_text, provider, region, zone, name, gpu, count)
            if block % 6 == 0:
                yield (*place, "on-demand", 14, most if source.random() < 0.97 else 0)
            if source.random() < 0.25:
                yield (*place, "spot", 14, 0 if (provider, region) in dry else most)


def hash_of(machine: tuple[object, ...]) -> int:
    return sum(map(ord, "".join(map(str, machine[:6]))))


def _starts(source: random.Random, batches: Sequence[int]) -> Iterable[tuple[object, ...]]:
    for number in range(CLASSES):
        for _ in range(400):
            second = source.randrange(7 * 86_400)
            size = source.choice(batches)
            yield second, f"app{number}", _gpu(number), size


def _gpu(number: int) -> str:
    return GPUS[number % len(GPUS)]


def _other(number: int) -> str:
    """What an application accepts instead: two that share a GPU have another substitute each."""
    return GPUS[(number + 1 + number // len(GPUS)) % len(GPUS)]


def _write(path: Path, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        writer.writerows(rows)


def _command(folder: Path) -> list[str]:
    tables = ("prices", "supply", "demand", "classes", "quota")
    return [
        COLDSTART,
        "pool",
        "plan",
        *(x for t in tables for x in (f"--{t}", str(folder / f"{t}.csv"))),
        *OPTIONS,
    ]


def _run(folder: Path) -> Measured:
    """The command, its time and the most memory it held."""
    started = time.monotonic()
    with (folder / "plan.json").open("wb") as answer, (folder / "log").open("wb") as log:
        process = subprocess.Popen([*_command(folder), "--json"], stdout=answer, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 3}:
        raise SystemExit(f"bench: pool plan failed: {(folder / 'log').read_text()}")
    return Measured(seconds, usage.ru_maxrss / 1024, json.loads((folder / "plan.json").read_text()))


def _naive(folder: Path) -> float:
    """How much dearer than the bound the relaxation is when it is rounded up, and nothing more is done."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import planning; planning.print_naive(sys.argv[2])"
    done = subprocess.run(
        [PYTHON, "-c", code, str(Path(__file__).parent), str(folder)],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return float(done.stdout)


def print_naive(folder: str) -> None:
    import math
    from fractions import Fraction

    from coldstart_pool.inputs.fields import TableKind
    from coldstart_pool.inputs.loading import load_tables
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.planning.assemble import assemble
    from coldstart_pool.planning.groups import needed_pool
    from coldstart_pool.planning.model.bound import lower_bound
    from coldstart_pool.planning.model.build import build
    from coldstart_pool.planning.model.linear import LinearModel
    from coldstart_pool.planning.policy import policy_from

    tables = ("prices", "supply", "demand", "classes", "quota")
    files = TableFiles(tuple((TableKind(table), Path(folder) / f"{table}.csv") for table in tables))
    policy = policy_from(
        service_level=0.99,
        lead_time_seconds=600,
        peak_utilisation=None,
        largest_share=0.4,
        survive=0.7,
        floor=0.5,
    )
    inputs = load_tables(files)
    system = build(assemble(inputs, needed_pool(inputs, policy), policy).problem)
    relaxed = LinearModel(system).solve()
    pairs = zip(relaxed.instances, system.prices, strict=True)
    rounding = sum((price * (math.ceil(x - 1e-7) - Fraction(x)) for x, price in pairs), Fraction(0))
    print(float(rounding / lower_bound(system, relaxed)))


def _number(plan: dict[str, object], key: str) -> float:
    value = plan[key]
    assert isinstance(value, (int, float))
    return float(value)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_market(target, int(sys.argv[2]))
