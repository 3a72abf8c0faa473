"""From a plan to the machines of a replay: which shelves it keeps, and which classes may use them."""

from __future__ import annotations

from coldstart_cli.errors import DataError
from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.fleet import Fleet, Shelf
from coldstart_pool.replay.planned import PlannedClass, PlannedPool, ReadOffer


def fleet_of(plan: PlannedPool, trace: Trace) -> Fleet:
    """The plan's machines. A class for which it has none waits for machines that are ordered one by one.

    A class of a GPU that the plan never heard of is refused: the plan promised it nothing.
    """
    promised = {entry.name: entry for entry in plan.classes}
    shelves = [_shelf(offer) for offer in plan.offers]
    allowed = []
    for entry in trace.classes:
        # replicas of a size that the plan did not know take what their GPU's machines offer
        wanted = promised.get(entry.name) or PlannedClass(entry.name, entry, (entry.gpu,))
        if not set(wanted.gpus_accepted) & set(plan.gpus):
            raise DataError(
                f"the trace asks for {entry.name}; {plan.path} plans for {', '.join(plan.gpus) or 'nothing'}",
                hint="pass the plan of these GPUs, or a trace without the others",
            )
        mine = [number for number, offer in enumerate(plan.offers) if wanted.accepts(offer)]
        if not mine:
            mine = [len(shelves)]
            shelves.append(Shelf(entry.name, entry.gpus_per_replica, 0, None))
        allowed.append(tuple(mine))
    return Fleet(tuple(shelves), tuple(allowed))


def _shelf(offer: ReadOffer) -> Shelf:
    return Shelf(
        f"{offer.place} {offer.instance_type} {offer.market}",
        offer.gpus_per_instance,
        offer.instances,
        offer.price,
        f"{offer.place} {offer.instance_type}" if offer.is_spot else "",
    )
