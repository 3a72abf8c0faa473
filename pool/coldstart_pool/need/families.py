"""Which sets of classes must be covered together: each alone, and those that machines can be shared by."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coldstart_pool.need.trace import Trace

Members = tuple[int, ...]


def families(trace: Trace, groups: Mapping[str, Collection[str]] | None = None) -> tuple[Members, ...]:
    """Class numbers of every set, singles first; `groups` are the operator's own, by class name.

    One burst can hit a union though it hits no class alone, and covering the sum alone would let all
    machines be of a kind that only one class can use: the plan needs both. Classes that no machine could
    serve both share nothing: a burst of the one never finds what is kept for the other.
    """
    found: dict[Members, None] = {(number,): None for number in range(len(trace.classes))}
    pools = shared_pools(trace)
    for pool in pools:
        users: dict[str, list[int]] = {}
        places: dict[str, list[int]] = {}
        for number in pool:
            for gpu in sorted(trace.classes[number].gpus_accepted):
                users.setdefault(gpu, []).append(number)
            places.setdefault(trace.classes[number].region, []).append(number)
        places.pop("", None)  # no region was asked for
        found |= dict.fromkeys(map(tuple, (*users.values(), *places.values())))
    for names in (groups or {}).values():
        found[trace.numbers_of(names)] = None
    return tuple(found | dict.fromkeys(pools))


def shared_pools(trace: Trace) -> tuple[Members, ...]:
    """Every class once, in sets that are linked by GPUs that several of its classes accept."""
    pools: list[tuple[frozenset[str], Members]] = []
    for number, entry in enumerate(trace.classes):
        gpus = entry.gpus_accepted
        members: Members = (number,)
        apart = []
        for pool in pools:
            if pool[0] & gpus:
                gpus, members = gpus | pool[0], (*pool[1], *members)
            else:
                apart.append(pool)
        pools = [*apart, (gpus, members)]
    return tuple(sorted(tuple(sorted(members)) for _, members in pools))
