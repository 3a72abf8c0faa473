"""Which offers a row of a table speaks of: fields it leaves empty fit every offer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from coldstart_pool.inputs.offers import Offer

# FOCUS exports and people write these out; price tables use the short names
_PROVIDERS = {
    "amazon web services": "aws",
    "amazon": "aws",
    "microsoft": "azure",
    "microsoft azure": "azure",
    "google": "gcp",
    "google cloud": "gcp",
    "google cloud platform": "gcp",
    "oracle": "oci",
    "oracle cloud": "oci",
    "oracle cloud infrastructure": "oci",
}


_TOTALS = {
    *("total", "totals", "subtotal", "grand total", "sum", "summe", "gesamt", "gesamtsumme"),
    *("zwischensumme", "insgesamt", "somme", "sous-total", "total général"),
}


class Selector(NamedTuple):
    """A machine, or some of its facts; an empty field (or 0 GPUs) fits every offer. Places are lower case."""

    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpu_count: int = 0
    market: str = ""

    @property
    def names_machine(self) -> bool:
        """Whether it names a kind of machine, and not only the GPU in it."""
        return bool(self.instance_type or self.gpu_count)

    @property
    def text(self) -> str:
        """What it states, in a few words."""
        count = f"{self.gpu_count}x" if self.gpu_count else ""
        gpu = f"{count}{self.gpu}" if self.gpu or count else ""
        parts = (self.provider, self.region, self.zone, self.instance_type or gpu, self.market)
        return " ".join(part for part in parts if part) or "everything"


def is_total(text: str) -> bool:
    """Whether a name is that of a row of sums, as sheets end with one."""
    return " ".join(text.casefold().strip(" :=").split()) in _TOTALS


@lru_cache(maxsize=65536)
def canonical_provider(text: str) -> str:
    """Lower case, and one name for the large clouds."""
    name = " ".join(text.lower().split())
    return _PROVIDERS.get(name, name)


def matching(offers: Sequence[Offer], selectors: Iterable[Selector]) -> list[tuple[int, ...]]:
    """For each selector the numbers of the offers it fits; one look-up per offer and set of stated fields."""
    shapes: dict[tuple[bool, ...], dict[tuple[object, ...], list[int]]] = {}
    count = 0
    for number, selector in enumerate(selectors):
        shape = tuple(bool(part) for part in selector)
        shapes.setdefault(shape, {}).setdefault(_masked(selector, shape), []).append(number)
        count += 1
    if not shapes:
        return []
    found: list[list[int]] = [[] for _ in range(count)]
    for number, offer in enumerate(offers):
        key = (*offer.machine, offer.market)
        for shape, table in shapes.items():
            for fitting in table.get(_masked(key, shape), ()):
                found[fitting].append(number)
    return [tuple(numbers) for numbers in found]


def _masked(key: Sequence[object], shape: tuple[bool, ...]) -> tuple[object, ...]:
    return tuple(part for part, stated in zip(key, shape, strict=True) if stated)
