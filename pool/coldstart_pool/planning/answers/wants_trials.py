"""Remedies of the applications: another GPU accepted, another place allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.answers.trial import MOST_OF_A_KIND, Trial, planned, saying
from coldstart_pool.planning.assemble import Assembled
from coldstart_pool.planning.groups import with_wants
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.wants import Wants


def substitute_trials(
    inputs: PoolInputs, assembled: Assembled, policy: Policy, short: Sequence[Wants]
) -> Iterator[Trial]:
    sold = sorted({offer.gpu for offer in assembled.available.offers})
    for wants in short:
        others = [gpu for gpu in sold if gpu not in wants.gpus and _memory_gb(gpu) >= _memory_gb(wants.gpu)]
        for gpu in others[:MOST_OF_A_KIND]:
            pool = with_wants(assembled.pool, replace(wants, gpus=(*wants.gpus, gpu)))
            text = f"accept {gpu} for {wants.name}"
            yield Trial("substitute", planned(inputs, pool, policy), saying(text))


def place_trials(
    inputs: PoolInputs, assembled: Assembled, policy: Policy, short: Sequence[Wants]
) -> Iterator[Trial]:
    """One region or provider more for a class that is tied to some."""
    offers = assembled.available.offers
    for wants in short:
        regions = {offer.region for offer in offers} - {*wants.regions, ""} if wants.regions else set()
        providers = {offer.provider for offer in offers} - {*wants.providers} if wants.providers else set()
        changed = [
            ("region", place, replace(wants, regions=(*wants.regions, place)))
            for place in sorted(regions)[:MOST_OF_A_KIND]
        ]
        changed += [
            ("provider", place, replace(wants, providers=(*wants.providers, place)))
            for place in sorted(providers)[:MOST_OF_A_KIND]
        ]
        for kind, place, other in changed:
            pool = with_wants(assembled.pool, other)
            yield Trial(kind, planned(inputs, pool, policy), saying(f"allow {kind} {place} for {wants.name}"))


def _memory_gb(gpu: str) -> int:
    """Memory in a canonical name; a smaller GPU does not hold the model."""
    match = re.search(r"-(\d+)GB$", gpu)
    return int(match[1]) if match else 0
