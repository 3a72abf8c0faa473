"""What stands in the way of missing GPUs: full limits, offers that cannot be used; in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from coldstart_cli.errors import near_matches_hint
from coldstart_pool.inputs.offers import SPOT
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.assemble import Assembled
from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.solve import Solved
from coldstart_pool.planning.model.system import Kind
from coldstart_pool.planning.wants import Wants


def limits_of(assembled: Assembled, solved: Solved, inputs: PoolInputs) -> Mapping[int, tuple[str, ...]]:
    """For each group that is short, by number, the sentences that say what binds."""
    if not solved.short:
        return {}
    ledger = Ledger(Integral(solved.system), solved.counts)
    found = {}
    for number, group in enumerate(solved.problem.groups):
        rows = zip(solved.system.rows, solved.missing, strict=True)
        kinds = {row.kind for row, gap in rows if gap and row.soft and row.subject == number}
        if not kinds:
            continue
        usable = {offer for offer, value in group.usable if value}
        sentences = [*_full(ledger, usable, kinds)]
        for wants in assembled.pool.wants:
            if wants.name in group.classes:
                sentences += _offers(wants, assembled, inputs)
        sentences += _utilisation(solved, number)
        found[number] = tuple(dict.fromkeys(sentences))
    return found


def _full(ledger: Ledger, usable: set[int], kinds: set[Kind]) -> Iterator[str]:
    """Limits that one more usable machine would pass; one over both markets says more than one over each."""
    system = ledger.system
    full: dict[frozenset[int], str] = {}
    others = []
    for number, row in enumerate(system.rows):
        # a machine more is none given back
        if row.at_most is None or row.kind is Kind.SHRINK:
            continue
        if not any(offer in usable for offer, _ in row.offer_terms):
            continue
        smallest = min(factor for offer, factor in row.offer_terms if offer in usable)
        value = ledger.value(number)
        if value + smallest <= row.at_most:
            continue
        members = frozenset(offer for offer, _ in row.offer_terms)
        if row.kind is Kind.SUPPLY:
            if row.at_most:
                full = {other: text for other, text in full.items() if not other < members}
                full.setdefault(members, f"supply: {row.label}, all of them planned")
        else:
            others.append(_sentence(row.kind, row.label, value, row.at_most))
    yield from sorted(full.values())
    yield from others
    if kinds == {Kind.FLOOR}:
        yield "floor: the machines that are not spot do not suffice"


def _sentence(kind: Kind, label: str, value: Fraction, most: Fraction | int) -> str:
    if kind is Kind.QUOTA:
        return f"quota: {label}: {float(value):g} of {float(most):g} are planned"
    if kind is Kind.SHARE:
        return f"share: one machine more of {label} would pass its largest share of the pool"
    if kind is Kind.BUDGET:
        return f"budget: {float(value):.2f} of {float(most):.2f} USD/h are planned"
    return f"growth: {float(value):g} of {float(most):g} GPUs are started in this interval"


def _offers(wants: Wants, assembled: Assembled, inputs: PoolInputs) -> Iterator[str]:
    """Offers that fit and cannot be used."""
    priced = [offer for offer in inputs.offers if wants.fits(offer)]
    if not priced:
        same = [offer for offer in inputs.offers if offer.gpu in wants.gpus]
        if same:
            places = sorted({offer.place for offer in same})
            yield f"place: {wants.gpu} is sold only in {', '.join(places[:3])}, or in smaller machines"
        else:
            hint = near_matches_hint(wants.gpu, {offer.gpu for offer in inputs.offers})
            yield f"price: no usable price row offers {wants.gpu}" + (f"; {hint}" if hint else "")
        return
    what = " or ".join(wants.gpus)
    unobserved = {offer.key for offer in assembled.available.unobserved}
    never = sum(offer.key in unobserved for offer in priced)
    if never:
        yield f"supply: {never} of {len(priced)} {what} offers were never observed"
    obtainable = zip(assembled.available.offers, assembled.available.obtainable, strict=True)
    none = sum(wants.fits(offer) and not count for offer, count in obtainable)
    if none:
        yield f"supply: of {none} of {len(priced)} {what} offers nothing was obtainable"
    cannot = assembled.not_restorable.get(wants.name, 0)
    if cannot:
        yield (
            f"snapshot: {cannot} of {len(priced)} {what} offers are not known to restore `{wants.snapshot}`: "
            "driver or CPU level differ, or are not stated"
        )
    if all(offer.market == SPOT for offer in priced):
        yield f"floor: {what} is sold as spot only"


def _utilisation(solved: Solved, number: int) -> Iterator[str]:
    gaps = {
        row.kind: gap
        for row, gap in zip(solved.system.rows, solved.missing, strict=True)
        if row.subject == number
    }
    if gaps.get(Kind.UTILISATION) and not gaps.get(Kind.COVERAGE):
        need = float(solved.problem.groups[number].idle_gpus)
        yield f"utilisation: the {need:g} idle GPUs are there, only the reserve above them is not"
