"""Offers that every group uses alike, and their sums: a row names pieces, not offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, cached_property

from coldstart_pool.planning.model.system import Number, Term, whole
from coldstart_pool.planning.problem import Problem

Part = tuple[int, Number]
"""A piece, and what one of its GPUs is worth to a group."""


class Pieces:
    """GPUs of each piece in all, of one domain, or left in a scenario; each is one sum of the system.

    Hundreds of groups overlap in the same offers: written out offer by offer, their rows would be ten
    times as long.
    """

    def __init__(self, problem: Problem, add: Callable[[tuple[Term, ...]], int]) -> None:
        self._problem = problem
        self._add = add
        self._gpus = [offer.gpus_per_instance for offer in problem.offers]
        uses: list[list[Part]] = [[] for _ in problem.offers]
        for number, group in enumerate(problem.groups):
            for offer, value in group.usable:
                if value:
                    gpus = self._gpus[offer]
                    uses[offer].append((number, 1 if value == gpus else whole(Fraction(value) / gpus)))
        kinds: dict[tuple[Part, ...], list[int]] = {}
        for offer, used in enumerate(uses):
            if used:
                kinds.setdefault(tuple(used), []).append(offer)
        self._members = list(kinds.values())
        self._of_group: list[list[Part]] = [[] for _ in problem.groups]
        for piece, used_by in enumerate(kinds):
            for group_number, worth in used_by:
                self._of_group[group_number].append((piece, worth))
        self.total = cache(self._total)
        self.steady = cache(self._steady)
        self.lost = cache(self._lost)
        self.left = cache(self._left)

    def of(self, group: int) -> list[Part]:
        return self._of_group[group]

    def _total(self, piece: int) -> int:
        return self._sum((offer, 1) for offer in self._members[piece])

    def _steady(self, piece: int) -> int | None:
        """What is not spot."""
        terms = [(offer, 1) for offer in self._members[piece] if not self._problem.is_spot(offer)]
        return self._sum(terms) if terms else None

    def _lost(self, piece: int, domain: int) -> int | None:
        inside = self._inside[piece].get(domain)
        return self._sum((offer, 1) for offer in inside) if inside else None

    def _left(self, piece: int, scenario: int) -> tuple[int | None, bool]:
        """What is there of a piece in a scenario, and whether anything of it is not."""
        entry = self._problem.scenarios[scenario]
        dead = (
            self._problem.domains[entry.dead_domain].members if entry.dead_domain is not None else frozenset()
        )
        terms: list[Term] = []
        whole_piece = True
        for offer in self._members[piece]:
            unit = self._units[offer]
            share: Number = 0 if offer in dead else 1 if unit is None else self._shares[scenario][unit]
            whole_piece = whole_piece and share == 1
            if share:
                terms.append((offer, share))
        if whole_piece:
            return self.total(piece), True
        return (self._sum(terms) if terms else None), False

    def _sum(self, terms: Iterable[Term]) -> int:
        return self._add(tuple((offer, factor * self._gpus[offer]) for offer, factor in terms))

    @cached_property
    def _inside(self) -> list[dict[int, list[int]]]:
        """For each piece the offers of it that each domain holds."""
        domains: list[list[int]] = [[] for _ in self._problem.offers]
        for number, domain in enumerate(self._problem.domains):
            for offer in domain.members:
                domains[offer].append(number)
        found: list[dict[int, list[int]]] = []
        for members in self._members:
            inside: dict[int, list[int]] = {}
            for offer in members:
                for number in domains[offer]:
                    inside.setdefault(number, []).append(offer)
            found.append(inside)
        return found

    @cached_property
    def _units(self) -> tuple[int | None, ...]:
        return self._problem.units or (None,) * len(self._problem.offers)

    @cached_property
    def _shares(self) -> list[tuple[Number, ...]]:
        return [tuple(map(whole, entry.supply)) for entry in self._problem.scenarios]
