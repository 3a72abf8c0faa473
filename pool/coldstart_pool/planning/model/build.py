"""From a problem to its rows: the ten kinds of constraint, each in a function of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from coldstart_pool.planning.model.pieces import Pieces
from coldstart_pool.planning.model.system import Kind, Number, Row, Sum, System, Term, whole
from coldstart_pool.planning.problem import CapKind, Counts, Group, Problem, weighted

# what one missing GPU-hour costs beside the dearest GPU on offer: nothing on sale is dearer than a gap
_GAP_FACTOR = 1000
_SURVIVAL_FACTOR = 100


def build(problem: Problem, *, lenient: bool = False) -> System:
    """All rows, the numbers checked first; `lenient` takes commitments that alone pass a share."""
    return _Builder(problem, lenient=lenient).system()


def gap_price(problem: Problem) -> Fraction:
    """US dollars that the planner reckons for one GPU-hour of need without a GPU."""
    dearest = max((offer.price_per_gpu for offer in problem.offers), default=Fraction(1))
    return whole_up(dearest) * Fraction(_GAP_FACTOR)


def whole_up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _least(need: Fraction, terms: Sequence[Term]) -> Number:
    """A need of whole GPUs where all machines are worth whole ones: no plan can give a part of one."""
    return whole_up(need) if all(factor.denominator == 1 for _, factor in terms) else whole(need)


class _Builder:
    def __init__(self, problem: Problem, *, lenient: bool) -> None:
        problem.check()
        self._lenient = lenient
        self._problem = problem
        self._will = problem.will
        self._sums: list[Sum] = []
        self._rows: list[Row] = []
        self._pockets: list[Fraction] = []
        self._gap = gap_price(problem)
        self._known: dict[Sum, int] = {}
        self._pieces = Pieces(problem, self._sum)

    def system(self) -> System:
        components = _components(self._problem.groups)
        for number, group in enumerate(self._problem.groups):
            self._group(number, group, components[number])
        self._caps()
        self._shares()
        self._movement()
        self._budget()
        lowest, highest = self._bounds()
        return System(
            self._problem, tuple(self._sums), tuple(self._rows), tuple(self._pockets), lowest, highest
        )

    # --- needs ---

    def _group(self, number: int, group: Group, component: int) -> None:
        worth = [(offer, value) for offer, value in group.usable if value]
        total = self._named((self._pieces.total(piece), value) for piece, value in self._pieces.of(number))
        need = _least(group.idle_gpus, worth)
        self._rows.append(Row(Kind.COVERAGE, group.label, number, (), total, at_least=need, price=self._gap))
        if group.peak_gpus:
            gpus = tuple((entry, 1) for entry, _ in total)
            peak = whole_up(group.most_at_peak(self._will.utilisation))
            self._rows.append(
                Row(Kind.UTILISATION, group.label, number, (), gpus, at_least=peak, price=self._gap / 2)
            )
        if not need:
            return
        if self._will.floor > 0:
            parts = ((self._pieces.steady(piece), value) for piece, value in self._pieces.of(number))
            least = _least(self._will.floor * group.idle_gpus, worth)
            self._rows.append(
                Row(Kind.FLOOR, group.label, number, (), self._named(parts), at_least=least, price=self._gap)
            )
        self._survival(number, group, total)
        # a floor of everything leaves no gap that a scenario of spot could open
        if self._problem.scenarios and self._will.floor < 1:
            self._scenarios(number, group, component)

    @staticmethod
    def _named(parts: Iterable[tuple[int | None, Number]]) -> tuple[Term, ...]:
        return tuple((entry, value) for entry, value in parts if entry is not None)

    def _survival(self, number: int, group: Group, total: tuple[Term, ...]) -> None:
        if self._will.survive <= 0:
            return
        least = _least(self._will.survive * group.idle_gpus, [(o, v) for o, v in group.usable if v])
        parts = self._pieces.of(number)
        for domain in range(len(self._problem.domains)):
            lost = dict(self._named((self._pieces.lost(piece, domain), -value) for piece, value in parts))
            if lost:
                # of a piece that is all inside, nothing is left: its total and its loss are one sum
                left = {entry: value + lost.get(entry, 0) for entry, value in total}
                terms = {**lost, **left}
                self._rows.append(
                    Row(
                        Kind.SURVIVAL,
                        f"{group.label} without {self._problem.domains[domain].label}",
                        number,
                        (),
                        tuple((entry, value) for entry, value in terms.items() if value),
                        at_least=least,
                        price=self._gap / _SURVIVAL_FACTOR,
                        other=domain,
                    )
                )

    def _scenarios(self, number: int, group: Group, component: int) -> None:
        need = whole(group.idle_gpus)
        count = len(self._problem.scenarios)
        all_weights = sum(entry.weight for entry in self._problem.scenarios)
        while len(self._pockets) < (component + 1) * count:
            weight = self._problem.scenarios[len(self._pockets) % count].weight
            self._pockets.append(self._will.scenario_price * weight / all_weights)
        parts = self._pieces.of(number)
        for index, scenario in enumerate(self._problem.scenarios):
            there = [(self._pieces.left(piece, index), value) for piece, value in parts]
            if all(whole_piece for (_, whole_piece), _ in there):
                continue
            self._rows.append(
                Row(
                    Kind.SCENARIO,
                    f"{group.label} in {scenario.label}",
                    number,
                    (),
                    self._named((entry, value) for (entry, _), value in there),
                    at_least=need,
                    pocket=component * count + index,
                    other=index,
                )
            )

    # --- limits ---

    def _caps(self) -> None:
        for number, cap in enumerate(self._problem.caps):
            terms = tuple(zip(cap.members, cap.weights, strict=True))
            # what is held needs not be obtained again, and a plan cannot take it away at once
            most = max(cap.count, weighted(cap, self._problem.current))
            kind = Kind.SUPPLY if cap.kind is CapKind.SUPPLY else Kind.QUOTA
            self._rows.append(Row(kind, cap.label, number, terms, at_most=most))

    def _shares(self) -> None:
        """A share of the GPUs that are needed: what is bought beyond, to dilute, does not count."""
        shares = [share for share in self._problem.shares if share.most < 1]
        if not shares:
            return
        offers = self._problem.offers
        pieces = []
        for members, most in _needed(self._problem):
            terms = tuple((number, offers[number].gpus_per_instance) for number in members)
            pieces.append(self._sum(terms, most))
        for number, share in enumerate(self._problem.shares):
            if share.most < 1:
                held = tuple((offer, offers[offer].gpus_per_instance) for offer in sorted(share.members))
                total = tuple((piece, whole(-share.most)) for piece in pieces)
                committed = sum(self._problem.floors[offer] * gpus for offer, gpus in held)
                most = committed if self._lenient and committed else 0
                if most:
                    self._rows.append(Row(Kind.SHARE, share.label, number, held, (), at_most=most))
                else:
                    self._rows.append(Row(Kind.SHARE, share.label, number, held, total, at_most=0))

    def _movement(self) -> None:
        if not self._problem.held:
            return
        every = tuple((number, offer.gpus_per_instance) for number, offer in enumerate(self._problem.offers))
        if self._will.shrink_gpus is not None:
            self._rows.append(Row(Kind.SHRINK, "GPUs given back", 0, every, at_most=self._will.shrink_gpus))
        if self._will.grow_gpus is not None:
            self._rows.append(Row(Kind.GROWTH, "GPUs started", 0, every, at_most=self._will.grow_gpus))

    def _budget(self) -> None:
        if self._will.budget is not None:
            terms = tuple((number, whole(offer.price)) for number, offer in enumerate(self._problem.offers))
            self._rows.append(Row(Kind.BUDGET, "budget", 0, terms, at_most=whole(self._will.budget)))

    def _bounds(self) -> tuple[Counts, Counts]:
        current = self._problem.current
        most: list[int | None] = [None] * len(self._problem.offers)
        for row in self._rows:
            if row.kind in {Kind.SUPPLY, Kind.QUOTA} and row.at_most is not None:
                for number, weight in row.offer_terms:
                    count = int(row.at_most // weight)
                    before = most[number]
                    most[number] = count if before is None else min(before, count)
        # an offer that nothing was observed of cannot grow
        highest = tuple(
            current[n] if count is None else max(count, current[n]) for n, count in enumerate(most)
        )
        return self._problem.floors, highest

    def _sum(self, terms: tuple[Term, ...], most: Number | None = None) -> int:
        """The number of this sum, the same for the same terms."""
        entry = Sum(terms, most)
        if entry not in self._known:
            self._known[entry] = len(self._sums)
            self._sums.append(entry)
        return self._known[entry]


def _components(groups: tuple[Group, ...]) -> list[int]:
    """Groups joined by shared offers, numbered in the order of their first group."""
    owner: dict[int, int] = {}
    parent = list(range(len(groups)))

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    for number, group in enumerate(groups):
        for offer, _ in group.usable:
            first = owner.setdefault(offer, number)
            low, high = sorted((root(first), root(number)))
            parent[high] = low
    names: dict[int, int] = {}
    return [names.setdefault(root(number), len(names)) for number in range(len(groups))]


def _needed(problem: Problem) -> Iterator[tuple[tuple[int, ...], int]]:
    """For each component the offers and the most GPUs that its needs can ask for, a last machine included."""
    members: dict[int, set[int]] = {}
    needs: dict[int, Fraction] = {}
    components = _components(problem.groups)
    singles = [len(group.classes) == 1 for group in problem.groups]
    for component, group, single in zip(components, problem.groups, singles, strict=True):
        usable = {offer for offer, value in group.usable if value}
        members.setdefault(component, set()).update(usable)
        if not single:
            continue
        need = max(group.idle_gpus * _spread(problem, usable), group.most_at_peak(problem.will.utilisation))
        needs[component] = needs.get(component, Fraction(0)) + need
    for component, offers in members.items():
        largest = max((problem.offers[offer].gpus_per_instance for offer in offers), default=1)
        yield tuple(sorted(offers)), whole_up(needs.get(component, Fraction(0))) + largest - 1


def _spread(problem: Problem, usable: set[int]) -> Fraction:
    """How much more than the need may have to stand there so that the loss of a domain leaves enough."""
    touched = sum(not usable.isdisjoint(domain.members) for domain in problem.domains)
    survive = problem.will.survive
    if survive <= 0 or touched < 2:
        return Fraction(1)
    return max(Fraction(1), survive * touched / (touched - 1), survive * 2)
