"""What was really obtainable: observed counts and attempts, matched to offers as limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coldstart_pool.columns import PLACE_COLUMNS, Synonyms, synonyms
from coldstart_pool.findings import Finding, Severity, TableReport
from coldstart_pool.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.numbers import BadNumberError, parse_count
from coldstart_pool.offers import Offer, canonical_market
from coldstart_pool.tables import Row, read_table

_SUPPLY_COLUMNS: Synonyms = {
    **PLACE_COLUMNS,
    **synonyms(
        obtainable="obtainable obtainableinstances available count supply capacity limit",
        requested="requested asked requests",
        obtained="obtained granted fulfilled got launched",
    ),
}
# of ten attempts, nine obtained at least this many
_ATTEMPT_QUANTILE = 10
_Selector = tuple[str, str, str, str, str, int, str]


@dataclass(frozen=True, order=True)
class Observation:
    """Obtainable machines that fit a selector; an empty field (or 0 GPUs) fits every offer."""

    selector: _Selector
    count: int
    of_gpus: bool
    """The count is of GPUs: the rows named no machine, only a GPU."""
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Limit:
    """At most `count` of `unit` over some offers, given by their numbers."""

    members: tuple[int, ...]
    weights: tuple[int, ...]
    count: int
    sentence: str


@dataclass(frozen=True)
class Availability:
    """Offers with at least one observation, the limits on them, and how many had none."""

    offers: tuple[Offer, ...]
    limits: tuple[Limit, ...]
    obtainable: tuple[int, ...]
    unobserved: tuple[Offer, ...]
    unmatched_lines: tuple[int, ...]
    """Lines of observations that fit no offer."""


def load_supply(path: Path) -> tuple[tuple[Observation, ...], TableReport]:
    """Observations by selector: the smallest stated count, or the lower decile of the attempts."""
    table = read_table(
        path,
        _SUPPLY_COLUMNS,
        "provider",
        "instance_type|gpu",
        "obtainable|obtained",
        numeric=("obtainable", "requested", "obtained"),
    )
    findings = list(table.findings)
    counts: dict[_Selector, list[tuple[int, int]]] = {}
    attempts: dict[_Selector, list[tuple[int, int]]] = {}
    for row in table.rows:
        try:
            selector = _selector(row, table.mark)
            stated = row.text("obtainable")
            count = parse_count(stated, table.mark) if stated else _obtained(row, table.mark)
        except BadNumberError as error:
            findings.append(Finding(table.path, row.line, Severity.INVALID, "unreadable count", str(error)))
        except (UnclearGpuError, _ContradictionError) as error:
            findings.append(Finding(table.path, row.line, Severity.REFUSED, str(error)))
        else:
            (counts if stated else attempts).setdefault(selector, []).append((count, row.line))
    observations = [
        _observation(selector, min(count for count, _ in members), members)
        for selector, members in counts.items()
    ]
    for selector, members in attempts.items():
        if selector in counts:
            continue
        obtained = sorted(count for count, _ in members)
        observations.append(_observation(selector, obtained[len(obtained) // _ATTEMPT_QUANTILE], members))
    used = sum(len(members) for members in (*counts.values(), *attempts.values()))
    report = TableReport(table.path, table.digest, table.row_count, used, tuple(sorted(findings)))
    return tuple(sorted(observations)), report


def availability(offers: Sequence[Offer], observations: Iterable[Observation]) -> Availability:
    """Join offers with observations; one without any counts as not available."""
    observed = list(observations)
    fitting = _fitting(offers, observed)
    seen = sorted({number for members in fitting for number in members})
    renumbered = {number: new for new, number in enumerate(seen)}
    kept = tuple(offers[number] for number in seen)
    limits = [
        _limit(kept, tuple(renumbered[number] for number in members), observation)
        for observation, members in zip(observed, fitting, strict=True)
        if members
    ]
    alone = _alone(kept, limits)
    limits += _shared_by_markets(kept, alone)
    return Availability(
        kept,
        tuple(limits),
        tuple(alone),
        tuple(offer for number, offer in enumerate(offers) if number not in renumbered),
        tuple(
            sorted(
                line
                for entry, members in zip(observed, fitting, strict=True)
                if not members
                for line in entry.lines
            )
        ),
    )


class _ContradictionError(ValueError):
    pass


def _selector(row: Row, mark: str) -> _Selector:
    gpu_count = row.text("gpu_count")
    if not row.text("provider"):
        raise _ContradictionError("no provider")
    if not row.text("instance_type") and not row.text("gpu"):
        raise _ContradictionError("neither an instance type nor a GPU")
    market = canonical_market(text) if (text := row.text("market")) else ""
    if market is None:
        raise _ContradictionError(f"unknown market: `{text}`")
    return (
        row.text("provider").lower(),
        row.text("region").lower(),
        row.text("zone").lower(),
        row.text("instance_type").casefold(),
        canonical_gpu(row.text("gpu")) if row.text("gpu") else "",
        parse_count(gpu_count, mark) if gpu_count else 0,
        market,
    )


def _obtained(row: Row, mark: str) -> int:
    obtained = parse_count(row.text("obtained"), mark)
    if (text := row.text("requested")) and obtained > (requested := parse_count(text, mark)):
        raise _ContradictionError(f"obtained {obtained} of {requested} requested")
    return obtained


def _observation(selector: _Selector, count: int, members: Sequence[tuple[int, int]]) -> Observation:
    names_machine = bool(selector[3] or selector[5])
    return Observation(selector, count, not names_machine, tuple(sorted(line for _, line in members)))


def _fitting(offers: Sequence[Offer], observations: Sequence[Observation]) -> list[list[int]]:
    """Offer numbers for each observation, by one look-up per offer and set of stated fields."""
    shapes: dict[tuple[bool, ...], dict[tuple[object, ...], int]] = {}
    for number, observation in enumerate(observations):
        shape = tuple(bool(part) for part in observation.selector)
        shapes.setdefault(shape, {})[_masked(observation.selector, shape)] = number
    found: list[list[int]] = [[] for _ in observations]
    for number, offer in enumerate(offers):
        key = (*offer.machine, offer.market)
        for shape, table in shapes.items():
            if (fitting := table.get(_masked(key, shape))) is not None:
                found[fitting].append(number)
    return found


def _masked(key: _Selector, shape: tuple[bool, ...]) -> tuple[object, ...]:
    return tuple(part for part, stated in zip(key, shape, strict=True) if stated)


def _limit(offers: Sequence[Offer], members: tuple[int, ...], observation: Observation) -> Limit:
    weights = tuple(offers[number].gpus_per_instance if observation.of_gpus else 1 for number in members)
    provider, region, zone, _, gpu, _, market = observation.selector
    what = gpu if observation.of_gpus else offers[members[0]].instance_type
    place = " ".join(part for part in (provider, region, zone) if part)
    unit = "GPUs" if observation.of_gpus else "instances"
    label = f"{place} {what}" + (f" {market}" if market else "")
    return Limit(members, weights, observation.count, f"{label}: {observation.count} {unit} were obtainable")


def _alone(offers: Sequence[Offer], limits: Iterable[Limit]) -> list[int]:
    """The most instances of each offer when nothing else is taken."""
    most = [-1] * len(offers)
    for limit in limits:
        for number, weight in zip(limit.members, limit.weights, strict=True):
            count = limit.count // weight
            most[number] = count if most[number] < 0 else min(most[number], count)
    return most


def _shared_by_markets(offers: Sequence[Offer], alone: Sequence[int]) -> list[Limit]:
    """Spot and on-demand are the same machines: together no more than the larger observation of the two."""
    machines: dict[tuple[object, ...], list[int]] = {}
    for number, offer in enumerate(offers):
        machines.setdefault(offer.machine, []).append(number)
    limits = []
    for members in machines.values():
        if len(members) > 1:
            count = max(alone[number] for number in members)
            offer = offers[members[0]]
            sentence = (
                f"{offer.place} {offer.instance_type}: {count} instances were obtainable, "
                "spot and on-demand together"
            )
            limits.append(Limit(tuple(members), (1,) * len(members), count, sentence))
    return limits
