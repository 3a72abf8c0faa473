"""Which pools there are when a replay begins."""

from __future__ import annotations

from coldstart_pool.replay.fleet import Fleet
from coldstart_pool.replay.stock import Pool


def pools_of_fleet(fleet: Fleet, floor_share: float, now: int) -> tuple[list[Pool], list[list[Pool]]]:
    """Shelves with the same users are one pool; and the pools of each class, the least shared first.

    What only this class can use is used first, so that the others find what only they can use.
    """
    users: dict[int, list[int]] = {number: [] for number in range(len(fleet.shelves))}
    for class_number, shelves in enumerate(fleet.allowed):
        for shelf in shelves:
            users[shelf].append(class_number)
    together: dict[tuple[int, ...], list[int]] = {}
    for number, classes in users.items():
        together.setdefault(tuple(classes), []).append(number)
    pools = [
        Pool([(number, fleet.shelves[number]) for number in numbers], floor_share, now)
        for numbers in together.values()
    ]
    pool_of = {number: pool for pool in pools for number in pool.numbers}
    few_users_first = [
        sorted(dict.fromkeys(shelves), key=lambda number: len(users[number])) for shelves in fleet.allowed
    ]
    return pools, [list(dict.fromkeys(pool_of[number] for number in shelves)) for shelves in few_users_first]
