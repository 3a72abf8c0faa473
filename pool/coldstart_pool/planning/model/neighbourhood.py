"""Offers that can stand for each other, and what hundreds of moves between them would change, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import HARD, Integral


@dataclass(frozen=True)
class Moves:
    """Places of up to two offers that lose an instance, and of up to two that gain one; a column a move."""

    lost: Any
    gained: Any

    def only(self, chosen: Any) -> Moves:
        return Moves(self.lost[:, chosen], self.gained[:, chosen])

    def change(self, more: Any, less: Any) -> Any:
        """What each move adds, from what one instance more and one less of each offer do."""
        return more[self.gained[0]] + more[self.gained[1]] + less[self.lost[0]] + less[self.lost[1]]


@dataclass(frozen=True)
class _Alike:
    """Rows that all these offers move alike, as one: the one with the least room speaks for them."""

    rows: Any
    starts: Any
    units: Any
    """What one instance of each offer adds to each kind of row; the last offer stands for none."""
    reach: Any
    """The most that a move can add to each kind, or take from it."""

    @staticmethod
    def of(rows: Any, units: Any, apart: Any) -> _Alike:
        """Rows that differ in `apart` are never one, and come in its order."""
        _, kinds = np.unique(np.vstack((apart, units)), axis=1, return_inverse=True)
        kinds = kinds.reshape(-1)
        order = np.argsort(kinds, kind="stable")
        starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        units = _with_none(units[:, order][:, starts])
        return _Alike(rows[order], starts, units, 2 * np.abs(units).max(axis=0))


class Neighbourhood:
    """Some offers and the rows they touch; moves are weighed in rounded money, and applied exactly."""

    def __init__(self, integral: Integral, offers: Sequence[int], money_shift: int) -> None:
        """`money_shift`: by how many bits exact money is rounded down, to fit 64 bits."""
        self.offers = tuple(offers)
        self._integral = integral
        self._places = np.array(offers, dtype=np.intp)
        every = np.stack([integral.flat(number) for number in offers])
        touched = np.flatnonzero(every.any(axis=0))
        pockets = integral.pocket_of[touched]
        self._find_pockets(touched[pockets != HARD], every)
        # rows that bend are left to the check of the one move that is chosen
        bent = np.array(sorted({row for n in offers for row in integral.bent_by(n)}), dtype=np.intp)
        limits = np.setdiff1d(touched[pockets == HARD], bent)
        self._checked = np.concatenate((limits, bent))
        from_below = np.array([integral.least[row] is not None for row in limits.tolist()], dtype=np.bool_)
        needs, caps = limits[from_below], limits[~from_below]
        self._needs = _Alike.of(needs, every[:, needs], np.zeros_like(needs))
        self._caps = _Alike.of(caps, every[:, caps], np.zeros_like(caps))
        system = integral.system
        self._lowest = _with_none(np.array(system.lowest)[self._places])
        self._highest = _with_none(np.array(system.highest)[self._places])
        self._current = _with_none(np.array(system.problem.current)[self._places])
        self._price = _with_none(_rounded([integral.price[n] for n in offers], money_shift))
        self._churn = _with_none(_rounded([integral.churn[n] for n in offers], money_shift))
        self._gap_price = _rounded([integral.pocket_price[n] for n in self._pockets.tolist()], money_shift)

    def _find_pockets(self, rows: Any, every: Any) -> None:
        pocket_of = self._integral.pocket_of
        self._gaps = _Alike.of(rows, every[:, rows], pocket_of[rows])
        kinds = pocket_of[self._gaps.rows[self._gaps.starts]]
        self._pockets, self._pocket_starts = np.unique(kinds, return_index=True)
        others = np.setdiff1d(np.flatnonzero(np.isin(pocket_of, self._pockets)), rows)
        self._others = others[np.argsort(pocket_of[others], kind="stable")]
        found, self._others_starts = np.unique(pocket_of[self._others], return_index=True)
        self._others_pockets = np.searchsorted(self._pockets, found)

    def moves(self, ledger: Ledger, draws: Any) -> Moves:
        """Every instance more, less, or in another's place; of two for one, as many as were drawn."""
        none = len(self.offers)
        counts = self._counts(ledger)
        # the offer that is none has no room: it is put behind the others where it is wanted
        out = np.flatnonzero(counts > self._lowest)
        into = np.flatnonzero(counts < self._highest)
        no_out, no_into = np.append(out, none), np.append(into, none)
        one, other = np.repeat(no_out, len(no_into)), np.tile(no_into, len(no_out))
        lost, gained = [one, np.full(len(one), none)], [other, np.full(len(one), none)]
        if len(out) and len(into):
            first, second, third = draws
            both_out = np.arange(len(first)) < len(first) // 2
            also_out = np.where(both_out, out[third % len(out)], none)
            also_into = np.where(both_out, none, into[third % len(into)])
            lost = [np.append(lost[0], out[first % len(out)]), np.append(lost[1], also_out)]
            gained = [np.append(gained[0], into[second % len(into)]), np.append(gained[1], also_into)]
        moves = Moves(np.stack(lost), np.stack(gained))
        twice_out = (lost[0] == lost[1]) & (counts - 2 < self._lowest)[lost[0]] & (lost[0] < none)
        twice_in = (gained[0] == gained[1]) & (counts + 2 > self._highest)[gained[0]] & (gained[0] < none)
        return moves.only(self._kept(ledger, moves) & ~twice_out & ~twice_in)

    def _kept(self, ledger: Ledger, moves: Moves) -> Any:
        """Which moves open no gap of a need, and pass no limit."""
        kept = np.ones(moves.lost.shape[1], dtype=np.bool_)
        needs, caps = self._needs, self._caps
        for alike, sign, bare in ((needs, 1, ledger.gaps(needs.rows)), (caps, -1, ledger.over(caps.rows))):
            if len(alike.rows):
                room = np.maximum(-np.maximum.reduceat(bare, alike.starts), 0)
                near = np.flatnonzero(room < alike.reach)
                units = sign * alike.units[:, near]
                kept &= (room[near] + moves.change(units, -units) >= 0).all(axis=1)
        return kept

    def costs(self, ledger: Ledger, moves: Moves) -> Any:
        """What each move adds to the objective, in rounded money."""
        held = self._counts(ledger) - self._current
        more = self._price + np.where(held >= 0, self._churn, -self._churn)
        less = np.where(held > 0, -self._churn, self._churn) - self._price
        costs = moves.change(more, less)
        if not len(self._pockets):
            return costs
        units = self._gaps.units
        bare = np.maximum.reduceat(ledger.gaps(self._gaps.rows), self._gaps.starts)
        gaps = bare - moves.change(units, -units)
        if gaps.shape[1] != len(self._pockets):
            gaps = np.maximum.reduceat(gaps, self._pocket_starts, axis=1)
        left = np.zeros(len(self._pockets), dtype=np.int64)
        if len(self._others):
            widest = np.maximum.reduceat(ledger.gaps(self._others), self._others_starts)
            left[self._others_pockets] = np.maximum(widest, 0)
        return costs + (np.maximum(gaps, left) - ledger.pockets(self._pockets)) @ self._gap_price

    def applied(self, ledger: Ledger, moves: Moves, chosen: int) -> int | None:
        """What one move adds to the objective, exactly; None, and nothing done, where a row forbids it."""
        steps = [(place, -1) for place in moves.lost[:, chosen].tolist()]
        steps += [(place, 1) for place in moves.gained[:, chosen].tolist()]
        steps = [(self.offers[place], step) for place, step in steps if place < len(self.offers)]
        broken, pockets = ledger.excess(self._checked), ledger.pockets(self._pockets)
        added = 0
        for number, step in steps:
            added += ledger.price_of_step(number, step)
            ledger.apply(number, step)
        if (ledger.excess(self._checked) > np.maximum(broken, 0)).any():
            for number, step in steps:
                ledger.apply(number, -step)
            return None
        wider: list[int] = (ledger.pockets(self._pockets) - pockets).tolist()
        prices: list[int] = [self._integral.pocket_price[pocket] for pocket in self._pockets.tolist()]
        return added + sum(price * gap for price, gap in zip(prices, wider, strict=True))

    def _counts(self, ledger: Ledger) -> Any:
        return np.array([*(ledger.counts[number] for number in self.offers), 0])


def _with_none(values: Any) -> Any:
    """With a last offer that is none, and does nothing."""
    return np.concatenate((values, np.zeros_like(values[:1])))


def _rounded(money: Sequence[int], shift: int) -> Any:
    return np.array([value >> shift for value in money], dtype=np.int64)
