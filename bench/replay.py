"""A year of replicas replayed on a plan, from the table on the disk to the answer."""

from __future__ import annotations

import json
import math
import random
import subprocess
import time
from pathlib import Path

from table import Row

STARTS = 250_000
APPLICATIONS = 100
YEAR_SECONDS = 365 * 86_400


def write_year(path: Path) -> int:
    """Replica starts and stops with busy days, quiet nights and bursts; how many of them."""
    source = random.Random(1)
    lines = ["time,stop,application,gpu,gpus_per_replica,replicas"]
    left, seconds = STARTS, 0.0
    # the mean burst of the choices below
    mean_gap = YEAR_SECONDS / STARTS * 1.78
    while left > 0:
        rhythm = 1 + 0.8 * math.sin(seconds / 86_400 * 2 * math.pi)
        seconds += source.expovariate(rhythm / mean_gap)
        gang = source.random() < 0.02
        replicas = 1 if gang else min(left, source.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 8)))
        stop = seconds + 60 + source.expovariate(1 / 3600)
        gpu = "H100" if gang or source.random() < 0.5 else "L40S"
        owner = source.randrange(APPLICATIONS)
        lines.append(f"{seconds:.3f},{stop:.3f},app-{owner},{gpu},{8 if gang else 1},{replicas}")
        left -= replicas
    path.write_text("\n".join([*lines, ""]))
    return 2 * STARTS


def write_plan(path: Path) -> None:
    offers = [("h8", "H100-80GB", 8, 3), ("h1", "H100-80GB", 1, 10), ("l1", "L40S-48GB", 1, 16)]
    document = {
        "schema": "coldstart.plan",
        "version": 1,
        "policy": {"service_level": 0.99, "lead_time_seconds": 600.0},
        "offers": [
            {
                "provider": "aurora", "region": "eu", "zone": "", "instance_type": name, "gpu": gpu,
                "gpus_per_instance": gpus, "market": "on-demand", "instances": instances,
                "price_per_instance_hour_usd": 2.5 * gpus, "obtainable_instances": instances,
            }
            for name, gpu, gpus, instances in offers
        ],
        "classes": [{"gpu": "H100-80GB"}, {"gpu": "L40S-48GB"}],
    }  # fmt: skip
    path.write_text(json.dumps(document))


def replay_rows(coldstart: str, folder: Path, runs: int) -> list[Row]:
    trace, plan = folder / "year.csv", folder / "plan.json"
    events = write_year(trace)
    write_plan(plan)

    def simulate(*options: str) -> list[float]:
        taken = []
        for _ in range(runs):
            started = time.monotonic()
            subprocess.run(
                [coldstart, "pool", "simulate", plan, "--trace", trace, *options],
                check=True,
                timeout=600,
                capture_output=True,
            )
            taken.append(time.monotonic() - started)
        return taken

    return [
        Row(f"replay, a year, {events:,} events", simulate("--no-baselines"), [], "<= 30 s"),
        Row("the same with three baselines", simulate(), [], "<= 30 s"),
    ]
