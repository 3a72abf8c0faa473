"""The pool of this host: its GPUs with their verdicts, what a replica takes, refills beside us."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError

if TYPE_CHECKING:
    from coldstart_health.verdict import HealthReport
    from coldstart_launch.replica import Replica
    from coldstart_pool.live.refill_file import RefillOffer
    from coldstart_pool.live.state import HostGpu

_LOG_LIMIT_BYTES = 1 << 20


def host_gpus(report: HealthReport) -> list[HostGpu]:
    """GPUs of a health report; what health found stands beside each, on which nothing may be placed."""
    from coldstart_health.verdict import Verdict
    from coldstart_pool.live.state import HostGpu

    fabric = report.fabric_verdict
    found = []
    for gpu in report.gpus:
        if gpu.facts is None or gpu.facts.uuid is None:
            continue
        because = ""
        if not gpu.verdict.may_serve:
            because = gpu.verdict.word
        elif not report.host_verdict.may_serve:
            because = f"host: {report.host_verdict.word}"
        elif fabric is not None and not Verdict(fabric).may_serve:
            because = f"fabric: {fabric.word}"
        found.append(HostGpu(gpu.facts.uuid, gpu.facts.name or "unknown model", because))
    return found


def take_gpus(
    report: HealthReport, count: int, replica: Replica, *, rehearsal: bool, warn: Callable[[str], None]
) -> tuple[str, ...]:
    """UUIDs of GPUs taken for a replica, until it is taken down; refills start beside it."""
    from coldstart_pool.live.state import plan_take, take

    config, gpus = replica.config, host_gpus(report)
    if rehearsal:
        taken = plan_take(config.state_folder, gpus, count=count, holder=replica.holder)
    else:
        refill = wants_refill(config)
        taken = take(config.state_folder, gpus, count=count, holder=replica.holder, refill=refill)
        if refill:
            begin_refill(config, warn)
    return tuple(holding.uuid for holding in taken)


def gpu_devices(
    config: Config, report: HealthReport, uuids: Sequence[str], warn: Callable[[str], None]
) -> tuple[str, ...]:
    """The GPUs taken, by their CDI names."""
    from coldstart_snapshot.containers.cdi import GENERATE
    from coldstart_snapshot.containers.container import host_devices

    known = host_devices(config)
    places = {gpu.facts.uuid: gpu.facts.index for gpu in report.gpus if gpu.facts is not None}
    names = {uuid: known.of_gpu(uuid, places.get(uuid)) for uuid in uuids}
    if missing := [uuid for uuid, name in names.items() if name is None]:
        warn(f"no CDI specification names GPU {missing[0]}: the container gets no device; {GENERATE}")
    return tuple(name for name in names.values() if name is not None)


def wants_refill(config: Config) -> bool:
    """Whether what is taken is ordered anew."""
    return config.optional_text("pool.refill_file") is not None


def begin_refill(config: Config, warn: Callable[[str], None]) -> None:
    """Start ordering in the background; what is wrong with that keeps nobody from the GPUs taken."""
    try:
        refill_offers(config)
        start_refill(config)
    except (ColdstartError, OSError) as error:
        warn(f"nothing is ordered for what was taken, the order waits for `coldstart pool refill`: {error}")


def refill_offers(config: Config) -> tuple[RefillOffer, ...]:
    """The offers that are ordered when GPUs are taken, the plan's first; none without a refill file."""
    from coldstart_pool.live.refill_file import load_refills
    from coldstart_pool.planning.plan_file import read_plan

    path = config.optional_text("pool.refill_file")
    if path is None:
        return ()
    plan = config.optional_text("pool.plan")
    return load_refills(Path(path), plan=None if plan is None else read_plan(Path(plan)))


def refill_log(config: Config) -> Path:
    return config.state_folder / "pool" / "refill.log"


def start_refill(config: Config) -> None:
    """`coldstart pool refill` in the background, in a session of its own; one that runs is enough."""
    from coldstart_cli.process import start

    log = refill_log(config)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_size > _LOG_LIMIT_BYTES:
            os.ftruncate(descriptor, 0)
        command = [sys.executable, "-P", "-m", "coldstart_cli", "pool", "refill"]
        start(command, log=descriptor, environment=config.environment())
    finally:
        os.close(descriptor)
