"""What a replay needs of a plan document, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.offers import SPOT
from coldstart_pool.need.trace import ReplicaClass
from coldstart_pool.planning.plan_file import read_plan

# more machines than any plan holds are a slip or an attack, and a replay would stand them all up
_MOST = 10**6


@dataclass(frozen=True)
class ReadOffer:
    """`instances` of one offer that the plan keeps ready."""

    provider: str
    region: str
    zone: str
    instance_type: str
    gpu: str
    gpus_per_instance: int
    market: str
    instances: int
    price: float
    """US dollars for one instance and one hour."""

    @property
    def place(self) -> str:
        return " ".join(part for part in (self.provider, self.region, self.zone) if part)

    @property
    def is_spot(self) -> bool:
        return self.market == SPOT


@dataclass(frozen=True)
class PlannedClass:
    """A class that the plan promised its level, and its machines; an empty tuple sets no limit."""

    name: str
    replica_class: ReplicaClass
    gpus_accepted: tuple[str, ...]
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()

    def accepts(self, offer: ReadOffer) -> bool:
        return (
            offer.gpu in self.gpus_accepted
            and offer.gpus_per_instance >= self.replica_class.gpus_per_replica
            and (not self.providers or offer.provider in self.providers)
            and (not self.regions or offer.region in self.regions)
        )


@dataclass(frozen=True)
class PlannedPool:
    """What a plan promised and with which machines."""

    path: str
    service_level: Fraction
    lead_time_seconds: Fraction | None
    offers: tuple[ReadOffer, ...]
    classes: tuple[PlannedClass, ...]
    input_digests: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that it planned for, also where it found none."""
        found = [gpu for entry in self.classes for gpu in entry.gpus_accepted]
        return tuple(dict.fromkeys((*found, *(offer.gpu for offer in self.offers))))


def load_planned(path: Path) -> PlannedPool:
    """Read a plan file; refuse what is newer, and what is wrong by field."""
    return planned_from(read_plan(path), str(path))


def planned_from(document: Mapping[str, Any], path: str) -> PlannedPool:
    """The same from plain values; `path` is what refusals name."""
    reader = _Reader(path, "", document)
    policy = reader.part("policy")
    lead = policy.number("lead_time_seconds", 0) if "lead_time_seconds" in policy.values else None
    if lead == 0:
        raise policy.refusal("lead_time_seconds", "a number above 0")
    level = policy.number("service_level", 0)
    if not 0 < level <= 1:
        raise policy.refusal("service_level", "a share above 0 and at most 1")
    offers = tuple(_offer(entry) for entry in reader.parts("offers"))
    classes = tuple(_class(entry) for entry in reader.parts("classes"))
    digests = tuple(entry.text("digest") for entry in reader.parts("inputs"))
    return PlannedPool(
        path,
        Fraction(str(level)),
        None if lead is None else Fraction(str(lead)),
        offers,
        classes,
        digests,
    )


def _class(entry: _Reader) -> PlannedClass:
    """A class says what it accepts where that is more than its GPU."""
    gpu = entry.text("gpu")
    gpus_per_replica = entry.whole("gpus_per_replica", 1) if "gpus_per_replica" in entry.values else 1
    shared = ReplicaClass(gpu, gpus_per_replica)
    name = entry.text("class") if "class" in entry.values else shared.name
    owner = name.removesuffix(shared.name).removesuffix(" on ")
    accepted = tuple(dict.fromkeys((gpu, *entry.texts("gpus_accepted"))))
    return PlannedClass(
        name,
        replace(shared, application=owner, also_accepts=accepted[1:]),
        accepted,
        entry.texts("providers"),
        entry.texts("regions"),
    )


def _offer(entry: _Reader) -> ReadOffer:
    return ReadOffer(
        entry.text("provider"),
        entry.text("region"),
        entry.text("zone"),
        entry.text("instance_type"),
        entry.text("gpu"),
        entry.whole("gpus_per_instance", 1),
        entry.text("market"),
        entry.whole("instances", 0),
        entry.number("price_per_instance_hour_usd", 0),
    )


@dataclass(frozen=True)
class _Reader:
    """Values of one table, each refused by its full name."""

    path: str
    prefix: str
    values: Mapping[str, Any]

    def refusal(self, key: str, wanted: str) -> DataError:
        found = self.values.get(key, "nothing")
        shown = found if isinstance(found, (int, float)) else f"`{found}`"
        return DataError(f"{self.path}: {self.prefix}{key}: {wanted} was expected: {shown}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.refusal(key, "text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.refusal(key, "a list of texts")
        return tuple(value)

    def whole(self, key: str, least: int) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self.refusal(key, f"a whole number from {least} to {_MOST}")
        return value

    def number(self, key: str, least: float) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refusal(key, "a number")
        if not math.isfinite(value) or value < least:
            raise self.refusal(key, f"a finite number, at least {least:g},")
        return float(value)

    def part(self, key: str) -> _Reader:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.refusal(key, "a table")
        return _Reader(self.path, f"{self.prefix}{key}.", value)

    def parts(self, key: str) -> list[_Reader]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.refusal(key, "a list of tables")
        return [_Reader(self.path, f"{self.prefix}{key}[{n}].", entry) for n, entry in enumerate(value)]
