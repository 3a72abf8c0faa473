"""Offers of one kind, judged all at once: what one instance more of each would change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral


class Family:
    """The columns of some offers as matrices; numbers are exact, as in a ledger."""

    def __init__(self, integral: Integral, offers: Sequence[int]) -> None:
        self.offers = tuple(offers)
        self._integral = integral
        every = np.stack([integral.flat(number) for number in offers])
        order, soft_from, pocketed_from = integral.order
        touched = order[every[:, order].any(axis=0)]
        first, second = np.searchsorted(integral.rank[touched], (soft_from, pocketed_from))
        soft, self._rows = touched[first:second], touched[second:]
        self._soft = {row: every[:, row].tolist() for row in soft.tolist()}
        self._units = every[:, self._rows]
        self._pockets, self._starts, self._others, self._others_pockets, self._others_starts = (
            integral.pockets_of(self._rows)
        )
        self._pocket_prices = np.array(
            [integral.pocket_price[number] for number in self._pockets.tolist()], dtype=np.object_
        )

    def added(self, ledger: Ledger) -> list[int]:
        """What one instance more of each adds to the objective, in integer money, whatever the limits."""
        found = [ledger.price_of_step(number, 1) for number in self.offers]
        for row, gap in ledger.open_gaps():
            if (units := self._soft.get(row)) is not None:
                price = self._integral.gap_price[row]
                for place, unit in enumerate(units):
                    found[place] += price * (max(0, gap - unit) - gap)
        if len(self._pockets):
            wider = self._wider(ledger)
            touched = wider.any(axis=1)
            if touched.any():
                costs = wider[touched].astype(np.object_) @ self._pocket_prices
                for place, cost in zip(np.flatnonzero(touched).tolist(), costs.tolist(), strict=True):
                    found[place] += cost
        return found

    def _wider(self, ledger: Ledger) -> Any:
        """By how much the largest gap of each pocket grows, offer by offer."""
        gaps = ledger.gaps(self._rows)
        after = np.maximum.reduceat(gaps - self._units, self._starts, axis=1)
        if len(self._others):
            left = np.maximum.reduceat(ledger.gaps(self._others), self._others_starts)
            after[:, self._others_pockets] = np.maximum(after[:, self._others_pockets], left)
        return np.maximum(after, 0) - ledger.pockets(self._pockets)
