"""One attempt at an offer: what its command is told, and what its answer means."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from coldstart_pool.live.refill_file import RefillOffer
from coldstart_pool.live.running import Ended


@dataclass(frozen=True)
class Attempt:
    """How one run of an offer's command ended, in machines."""

    requested: int
    obtained: int
    seconds: float
    reason: str


def machines_for(offer: RefillOffer, gpus: int) -> int:
    """Whole machines with at least so many GPUs."""
    return -(-gpus // offer.gpus_per_instance)


def environment_for(offer: RefillOffer, machines: int, order_id: str) -> dict[str, str]:
    """What the command finds in its environment. `REFILL_ORDER` is the same for every attempt at an order."""
    return {
        "REFILL_ORDER": order_id,
        "REFILL_PROVIDER": offer.provider,
        "REFILL_REGION": offer.region,
        "REFILL_ZONE": offer.zone,
        "REFILL_INSTANCE_TYPE": offer.instance_type,
        "REFILL_GPU": offer.gpu,
        "REFILL_MARKET": offer.market,
        "REFILL_INSTANCES": str(machines),
    }


def judged(ended: Ended, machines: int, began: float, deadline_seconds: float) -> Attempt:
    """What a command that ended got.

    Status 0 means that all machines were obtained, any other that none were, unless the last line of stdout
    is a JSON object with `obtained`. The last line of stderr is the reason.
    """
    seconds = max(0.0, time.time() - began)
    if ended.status is None:
        late = seconds >= deadline_seconds
        return Attempt(
            machines, 0, seconds, f"no end after {deadline_seconds:g} s" if late else "it was killed"
        )
    obtained, complaint = _obtained(ended.status, ended.stdout.strip().splitlines(), machines)
    return Attempt(machines, obtained, seconds, complaint or ("" if obtained == machines else _reason(ended)))


def _obtained(status: int, lines: Sequence[str], machines: int) -> tuple[int, str]:
    """Machines that the command says it got, and what is wrong with that statement."""
    default = machines if status == 0 else 0
    last = lines[-1].strip() if lines else ""
    if not last.startswith(("{", "[")):
        return default, ""
    try:
        document = json.loads(last)
    except ValueError:
        return 0, f"the command's answer is cut short or damaged: {last[:40]}"
    if not isinstance(document, dict):
        return 0, f"the command's answer is no object: {last[:40]}"
    if "obtained" not in document:
        return default, ""
    said = document["obtained"]
    if isinstance(said, bool) or not isinstance(said, int) or not said >= 0:
        return 0, f"the command's `obtained` is no count: {said!r:.40}"
    return min(said, machines), "" if said <= machines else f"the command got {said} of {machines} asked for"


def _reason(ended: Ended) -> str:
    text = ended.stderr.strip().rpartition("\n")[2]
    return text or (f"status {ended.status}" if ended.status else "fewer than asked for")
