"""What the operator decides, exact, and refused by option where it is out of range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_pool.inputs.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import canonical_provider

# a pool a thousand times its peak is a slip of the finger, and less overflows the solver's integers
_SMALLEST_SHARE = 0.001
_MOST = 10**9
DOMAIN_KINDS = ("region", "zone", "provider")


@dataclass(frozen=True)
class Speed:
    """A GPU of one provider does this share of the work that the demand was measured on."""

    provider: str
    gpu: str
    share: Fraction


@dataclass(frozen=True)
class Policy:
    """Levels, shares and limits; None where none was given."""

    service_level: Fraction = Fraction(99, 100)
    lead_time_seconds: Fraction | None = None
    peak_utilisation: Fraction | None = None
    largest_share: Fraction = Fraction(1)
    survive: Fraction = Fraction(0)
    domain: str = "region"
    floor: Fraction = Fraction(1)
    missing_price: Fraction = Fraction(20)
    budget: Fraction | None = None
    churn: Fraction = Fraction(1, 20)
    shrink: Fraction = Fraction(1, 10)
    grow_gpus: int | None = None
    good_share: Fraction = Fraction(1)
    speeds: tuple[Speed, ...] = ()

    @property
    def target_utilisation(self) -> Fraction:
        """For stated targets, which say nothing of what is in use beside them, 90 % unless told otherwise."""
        return Fraction(9, 10) if self.peak_utilisation is None else self.peak_utilisation


def policy_from(
    *,
    service_level: float,
    lead_time_seconds: float | None,
    peak_utilisation: float | None,
    largest_share: float,
    survive: float = 0.0,
    domain: str = "region",
    floor: float = 1.0,
    missing_price: float = 20.0,
    budget: float | None = None,
    churn: float = 0.05,
    shrink: float = 0.1,
    grow_gpus: int | None = None,
    good_share: float = 1.0,
    speeds: Sequence[str] = (),
) -> Policy:
    """Exact policy from what was typed."""
    if domain not in DOMAIN_KINDS:
        raise UsageError(f"--domain is one of {', '.join(DOMAIN_KINDS)}: {domain}")
    if grow_gpus is not None and not 0 <= grow_gpus <= _MOST:
        raise UsageError(f"--grow must be a number of GPUs from 0 to {_MOST}: {grow_gpus}")
    return Policy(
        _share("--service-level", service_level),
        None if lead_time_seconds is None else _positive("--lead-time", lead_time_seconds, "of seconds"),
        None if peak_utilisation is None else _share("--peak-utilisation", peak_utilisation),
        _share("--largest-share", largest_share),
        _from_zero("--survive", survive),
        domain,
        _from_zero("--floor", floor),
        _positive("--missing-price", missing_price, "of US dollars"),
        None if budget is None else _positive("--budget", budget, "of US dollars an hour"),
        _from_zero("--churn", churn),
        _from_zero("--shrink", shrink),
        grow_gpus,
        _share("--good-share", good_share),
        tuple(sorted((_speed(text) for text in speeds), key=lambda one: (one.provider, one.gpu))),
    )


def refuse_unknown_speeds(speeds: Sequence[Speed], offers: Sequence[Offer]) -> None:
    """A speed of a provider or a GPU that no offer has is a slip, and would leave the plan as it was."""
    for speed in speeds:
        sold = {offer.gpu for offer in offers if speed.provider in {"", offer.provider}}
        if offers and (not sold or speed.gpu not in {"", *sold}):
            known = sorted({f"{offer.provider}:{offer.gpu}" for offer in offers})
            name = f"{speed.provider}:{speed.gpu}"
            otherwise = f"for example `--speed {known[0]}={float(speed.share):g}`"
            raise UsageError(
                f"--speed names no machine of the price tables: {name}",
                hint=near_matches_hint(name, known, otherwise=otherwise),
            )


def _speed(text: str) -> Speed:
    """`PROVIDER:GPU=SHARE`; either name may be left empty to mean all."""
    names, _, share = text.rpartition("=")
    provider, colon, gpu = names.partition(":")
    hint = "for example `--speed vast:H100=0.5`"
    if not colon:
        raise UsageError(f"--speed takes PROVIDER:GPU=SHARE: {text}", hint=hint)
    try:
        value = float(share)
        name = canonical_gpu(gpu) if gpu else ""
    except (ValueError, UnclearGpuError) as error:
        raise UsageError(f"--speed {text}: {error}", hint=hint) from error
    return Speed(canonical_provider(provider) if provider else "", name, _share("--speed", value))


def _share(option: str, value: float) -> Fraction:
    if not (math.isfinite(value) and _SMALLEST_SHARE <= value <= 1):
        raise UsageError(f"{option} must be at least {_SMALLEST_SHARE} and at most 1: {value}")
    return Fraction(str(value))


def _from_zero(option: str, value: float) -> Fraction:
    if value and not (math.isfinite(value) and _SMALLEST_SHARE <= value <= 1):
        raise UsageError(f"{option} must be 0, or at least {_SMALLEST_SHARE} and at most 1: {value}")
    return Fraction(str(value))


def _positive(option: str, value: float, what: str) -> Fraction:
    if not (math.isfinite(value) and 0 < value <= _MOST):
        raise UsageError(f"{option} must be a number {what} above 0 and at most {_MOST}: {value}")
    return Fraction(str(value))
