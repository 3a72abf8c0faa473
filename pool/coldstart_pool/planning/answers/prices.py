"""Why the plan costs what it costs: shadow prices as sentences, each confirmed by another solve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from coldstart_pool.planning.model.linear import Relaxed, SolverError
from coldstart_pool.planning.model.solve import Solved, solve
from coldstart_pool.planning.model.system import Kind, Number, Row
from coldstart_pool.planning.problem import Problem

# duals are not unique where constraints meet: below this they are noise, and only differences are believed
_NOISE = 1e-6
_SAME = 1e-6
_CENT = 0.005
# work, not time: the same tables give the same sentences on any host
_SOLVES_SMALL, _SOLVES_LARGE = 120, 14
_SMALL = 20_000
# rows times offers up to which a rule is taken away from whole machines, not from parts of them
_WHOLE_SIZE = 20_000
_ROWS_A_KIND = 3
_FARTHEST = 64


@dataclass(frozen=True)
class ShadowPrice:
    """What one unit of a constraint is worth, from two solves; `holds_units` is how far at least."""

    kind: str
    subject: str
    sentence: str
    usd_per_hour: float
    """Money alone: what the planner reckons for missing GPUs is not in it."""
    dual_usd_per_hour: float | None
    """As the solver said; None where the sentence is about a whole constraint."""
    holds_units: int | None = None
    closes_gap: bool = False
    """Whether fewer GPUs would be missing."""


@dataclass(frozen=True)
class _Difference:
    """What another solve adds to the objective, and how much of that is the price of gaps."""

    total: float
    gaps: float = 0.0

    @property
    def money(self) -> float:
        return self.total - self.gaps


def shadow_prices(solved: Solved) -> tuple[ShadowPrice, ...]:
    """The needs that cost most, the limits that hold most back, whole rules, offers that nearly enter."""
    prices = _Prices(solved)
    found = [
        *prices.needs(),
        *prices.limits(),
        *prices.whole_kinds(),
        *prices.spot_side(),
        *prices.nearly_used(),
    ]
    return tuple(found)


class _Prices:
    def __init__(self, solved: Solved) -> None:
        self._solved = solved
        self._system = solved.system
        self._rows = solved.system.rows
        self._model = solved.model
        size = self._system.size
        self._small = size <= _SMALL
        self._whole = solved.proven and len(self._rows) * len(solved.counts) <= _WHOLE_SIZE
        self._left = _SOLVES_SMALL if self._small else _SOLVES_LARGE

    def needs(self) -> Iterator[ShadowPrice]:
        """One more GPU of a need, the dearest first; what is missing has no price but its gap's."""
        for kind, text in (
            (Kind.COVERAGE, "one more protected GPU of {0} costs {1} USD/h"),
            (Kind.UTILISATION, "one more GPU in reserve at the peak of {0} costs {1} USD/h"),
            (Kind.FLOOR, "one more GPU of {0} that is not spot costs {1} USD/h"),
            (Kind.SURVIVAL, "one more GPU left of {0} costs {1} USD/h"),
        ):
            for number in self._priced(kind, 1):
                row = self._rows[number]
                if self._solved.missing[number]:
                    continue
                added = self._added(number, 1)
                if added is None or added.total <= _NOISE or added.gaps > _CENT:
                    continue  # at the price of a gap it says only that something is missing elsewhere
                holds = self._holds(number, 1, added)
                yield self._price(row, text.format(row.label, f"{added.total:.2f}"), added, 1, number, holds)

    def limits(self) -> Iterator[ShadowPrice]:
        """One unit more of what is full."""
        for kind in (Kind.QUOTA, Kind.SUPPLY, Kind.SHRINK, Kind.GROWTH, Kind.BUDGET):
            for number in self._priced(kind, -1):
                row = self._rows[number]
                step = _step(row)
                added = self._added(number, step)
                if added is None or added.total >= -_NOISE:
                    continue
                holds = self._holds(number, step, added)
                yield self._price(row, _limit_sentence(row, step, added), added, step, number, holds)

    def whole_kinds(self) -> Iterator[ShadowPrice]:
        """What a whole rule costs: the plan without it."""
        for kind, text in (
            (Kind.SURVIVAL, "surviving the loss of any one domain"),
            (Kind.SHARE, "the largest share of a provider"),
            (Kind.UTILISATION, "the reserve above the idle GPUs"),
            (Kind.SHRINK, "giving back slowly"),
        ):
            numbers = [number for number, row in enumerate(self._rows) if row.kind is kind]
            if not numbers or any(self._solved.missing[number] for number in numbers):
                continue
            # whole machines where that takes no time: parts of machines make a rule look cheap
            added = self._without(kind) if self._whole else self._without_rows(numbers)
            if added is None:
                continue
            if added.gaps < -_CENT:
                sentence = f"{text} leaves GPUs missing"
                yield ShadowPrice(kind.value, "all", sentence, -added.money, None, closes_gap=True)
            elif added.total < -_CENT:
                about = "" if self._whole else "about "
                now = " now" if kind is Kind.SHRINK else ""
                sentence = f"{text} costs {about}{-added.total:.2f} USD/h{now}"
                yield ShadowPrice(kind.value, "all", sentence, -added.total, None)

    def _without(self, kind: Kind) -> _Difference | None:
        """Whole machines without a rule."""
        try:
            other = solve(_freed(self._solved.problem, kind))
        except SolverError:
            return None
        here = self._solved
        gaps = float(_gap_cost(other, kind) - _gap_cost(here, kind))
        money = other.running_cost + other.scenario_cost - here.running_cost - here.scenario_cost
        return _Difference(float(money) + gaps, gaps)

    def _without_rows(self, numbers: list[int]) -> _Difference | None:
        return self._difference(lambda: self._model.without(numbers))

    def spot_side(self) -> Iterator[ShadowPrice]:
        """The floor decides between all spot and none: both sides are shown."""
        problem = self._solved.problem
        spot = any(problem.is_spot(number) for number in range(len(problem.offers)))
        if not self._small or not spot or problem.will.floor == 0 or self._solved.short:
            return
        other = solve(replace(problem, will=replace(problem.will, floor=Fraction(0))))
        here = self._solved
        saved = float(here.running_cost - other.running_cost)
        risk = float(other.scenario_cost - here.scenario_cost)
        if saved > 0.005:
            yield ShadowPrice(
                Kind.FLOOR.value,
                "all",
                f"without the floor {saved:.2f} USD/h would be saved, and spot that runs dry would cost "
                f"{risk:.2f} USD/h more at {float(problem.will.scenario_price):g} USD a missing GPU-hour",
                saved - risk,
                None,
            )

    def nearly_used(self) -> Iterator[ShadowPrice]:
        """Unused offers that a small discount would bring in, one a GPU."""
        offers, relaxed = self._solved.problem.offers, self._solved.relaxed
        near: dict[str, tuple[float, int]] = {}
        for number, cost in enumerate(self._solved.reduced_costs):
            used = relaxed.instances[number] > _NOISE or self._solved.counts[number]
            if used or cost <= _NOISE or not self._system.highest[number]:
                continue
            entry = (cost / float(offers[number].price), number)
            if cost < float(offers[number].price):
                near[offers[number].gpu] = min(near.get(offers[number].gpu, entry), entry)
        most = _ROWS_A_KIND if self._small else 1  # from a lower price the solver has further to go
        for _, number in sorted(near.values())[:most]:
            price = float(offers[number].price) - self._solved.reduced_costs[number]
            if self._left < 1:
                return
            self._left -= 1
            below = self._model.with_price(number, price * (1 - 1e-4))
            if below.instances[number] <= _NOISE:
                continue  # a dual that another solve does not confirm
            offer = offers[number]
            name = f"{offer.place} {offer.instance_type} {offer.market}"
            now = float(offer.price)
            digits = 2 if now - price >= _CENT else 6
            text = f"{name} would enter the plan below {price:.{digits}f} USD/h, now {now:.{digits}f}"
            yield ShadowPrice("price", name, text, price, -self._solved.reduced_costs[number])

    # --- solving again ---

    def _priced(self, kind: Kind, sign: int) -> list[int]:
        """Rows of a kind with a price, the highest first, no more than an operator reads."""
        duals = self._solved.relaxed.duals
        found = [n for n, row in enumerate(self._rows) if row.kind is kind and sign * duals[n] > _NOISE]
        return sorted(found, key=lambda number: (-abs(duals[number]), number))[:_ROWS_A_KIND]

    def _added(self, number: int, units: int) -> _Difference | None:
        row = self._rows[number]
        changed = {number: _bound(row) + units}
        if row.kind is Kind.SUPPLY:
            # one more of several markets together is one more of any of them
            members = {offer for offer, _ in row.offer_terms}
            for other, part in enumerate(self._rows):
                if part.kind is Kind.SUPPLY and {offer for offer, _ in part.offer_terms} < members:
                    changed[other] = _bound(part) + units // _step(row) * _step(part)
        return self._difference(lambda: self._model.with_bounds(changed))

    def _difference(self, solve_again: Callable[[], Relaxed]) -> _Difference | None:
        if self._left < 1:
            return None
        self._left -= 1
        try:
            found = solve_again()
        except SolverError:
            return None
        base = self._solved.relaxed
        return _Difference(found.objective - base.objective, found.gaps - base.gaps)

    def _holds(self, number: int, step: int, added: _Difference) -> int | None:
        """How many steps at least have the same price, doubling."""
        held: int | None = 1
        times = 2
        while times <= _FARTHEST and self._small:
            further = self._added(number, step * times)
            if further is None:
                break
            if abs(further.total - added.total * times) > _SAME * max(1.0, abs(further.total)):
                break
            held, times = times, times * 2
        return None if held is None else held * step

    def _price(
        self, row: Row, text: str, added: _Difference, step: int, number: int, holds: int | None
    ) -> ShadowPrice:
        if holds is not None and holds > 1:
            text += f"; so do up to {holds}" if added.total > 0 else f"; the same each up to {holds}"
        dual = self._solved.relaxed.duals[number]
        closes = added.gaps < -_CENT
        return ShadowPrice(row.kind.value, row.label, text, added.money / step, dual, holds, closes)


def _limit_sentence(row: Row, step: int, added: _Difference) -> str:
    saving = "would close a gap" if added.gaps < -_CENT else f"would save {-added.total:.2f} USD/h"
    if row.kind is Kind.QUOTA:
        return f"{step} more of quota {row.label} {saving}: ask for it"
    if row.kind is Kind.SUPPLY:
        return f"one more instance {saving}, where {row.label}"
    if row.kind is Kind.BUDGET:
        return f"{step} USD/h more of budget {saving}"
    return f"one GPU more of {row.label} in this interval {saving}"


def _freed(problem: Problem, kind: Kind) -> Problem:
    """The same without a rule."""
    if kind is Kind.SURVIVAL:
        return replace(problem, will=replace(problem.will, survive=Fraction(0)))
    if kind is Kind.SHARE:
        return replace(problem, shares=())
    if kind is Kind.SHRINK:
        return replace(problem, will=replace(problem.will, shrink_gpus=None))
    return replace(problem, groups=tuple(replace(group, peak_gpus=Fraction(0)) for group in problem.groups))


def _gap_cost(solved: Solved, but: Kind) -> Fraction:
    """The price of what all needs lack, those of one kind left out."""
    rows = zip(solved.system.rows, solved.missing, strict=True)
    return sum((row.price * gap for row, gap in rows if row.soft and row.kind is not but), Fraction(0))


def _bound(row: Row) -> Number:
    bound = row.at_least if row.at_least is not None else row.at_most
    assert bound is not None
    return bound


def _step(row: Row) -> int:
    """A quota grows by whole machines, the others by one."""
    if row.kind is Kind.QUOTA:
        return int(max(factor for _, factor in row.offer_terms))
    if row.kind is Kind.SUPPLY:
        return int(min(factor for _, factor in row.offer_terms))
    return 1
