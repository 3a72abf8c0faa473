"""What is sold: instances of one type, in one place, on one market, at an exact price."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

ON_DEMAND, SPOT, RESERVED, STANDBY = "on-demand", "spot", "reserved", "standby"
_MARKETS = {
    "ondemand": ON_DEMAND,
    "standard": ON_DEMAND,
    "regular": ON_DEMAND,
    "spot": SPOT,
    "preemptible": SPOT,
    "interruptible": SPOT,
    "dynamic": SPOT,  # FOCUS calls it so
    "reserved": RESERVED,
    "reservation": RESERVED,
    "committed": RESERVED,
    "standby": STANDBY,
    "suspended": STANDBY,
    "hibernated": STANDBY,
    "stopped": STANDBY,
}


OfferKey = tuple[str, str, str, str, str, int, str]
"""Provider, region, zone, type, GPU, GPUs and market: what an offer is, whatever it costs."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Instances of one type that one provider sells in one place on one market; places are lower case."""

    provider: str
    region: str
    zone: str
    instance_type: str
    gpu: str
    gpus_per_instance: int
    market: str
    price: Fraction
    """US dollars for one instance and one hour."""
    vcpus: Fraction | None = None
    """Virtual CPUs of one instance, where the table says it: some quotas count them."""
    driver: str = ""
    cpu_level: str = ""
    """NVIDIA driver and psABI level of its hosts, where known: they decide which snapshots it can restore."""

    @property
    def machine(self) -> tuple[str, str, str, str, str, int]:
        """What the offer is apart from its market: both markets sell the same machines."""
        return (
            self.provider,
            self.region,
            self.zone,
            self.instance_type.casefold(),
            self.gpu,
            self.gpus_per_instance,
        )

    @property
    def key(self) -> OfferKey:
        """Identity, and the fixed order of offers."""
        return (*self.machine, self.market)

    @property
    def place(self) -> str:
        return " ".join(part for part in (self.provider, self.region, self.zone) if part)

    @property
    def price_per_gpu(self) -> Fraction:
        return self.price / self.gpus_per_instance


def canonical_market(text: str) -> str | None:
    """`on-demand`, `spot`, `reserved` or `standby`, from the spellings that tables use; None for another."""
    return _MARKETS.get("".join(character for character in text.lower() if character.isalpha()))
