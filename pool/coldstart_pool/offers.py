"""What is sold: instances of one type, in one place, on one market, at an exact price."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

ON_DEMAND, SPOT = "on-demand", "spot"
_MARKETS = {
    "ondemand": ON_DEMAND,
    "standard": ON_DEMAND,
    "regular": ON_DEMAND,
    "spot": SPOT,
    "preemptible": SPOT,
    "interruptible": SPOT,
}


@dataclass(frozen=True)
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
    def key(self) -> tuple[str, str, str, str, str, int, str]:
        """Identity, and the fixed order of offers."""
        return (*self.machine, self.market)

    @property
    def place(self) -> str:
        return " ".join(part for part in (self.provider, self.region, self.zone) if part)

    @property
    def price_per_gpu(self) -> Fraction:
        return self.price / self.gpus_per_instance


def canonical_market(text: str) -> str | None:
    """`on-demand` or `spot`, from the spellings that catalogues use; None when it is neither."""
    return _MARKETS.get("".join(character for character in text.lower() if character.isalpha()))
