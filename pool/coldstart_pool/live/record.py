"""What the pool of a host remembers: who holds which GPU, and which refills are on order. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from coldstart_cli.strict_json import StrictObject

SCHEMA = "coldstart.pool"
VERSION = 1


class NewerStateError(Exception):
    """A later coldstart wrote it; the argument is its version."""


@dataclass(frozen=True)
class Holding:
    """One GPU in somebody's hands.

    `pid` and `start_ticks` name the process with whose end the GPU is free again; both 0: until it is
    released by hand. Nobody holds anything over a reboot.
    """

    uuid: str
    model: str
    holder: str
    since: str
    boot_id: str
    pid: int = 0
    start_ticks: int = 0
    replaced: bool = False
    """Whether it was ordered anew, or was more than the pool's measure: given back, it is surplus."""


@dataclass(frozen=True)
class Order:
    """GPUs to be replaced after a take. `state` is `waiting`, `running`, `obtained` or `gave up`.

    While a command runs, `pid` and `start_ticks` name it: it was asked for `machines` of `gpus_each` GPUs.
    """

    number: int
    gpus: int
    taken_by: str
    since: str
    state: str = "waiting"
    obtained_gpus: int = 0
    offer: str = ""
    attempts: int = 0
    reason: str = ""
    pid: int = 0
    start_ticks: int = 0
    began_seconds: float = 0.0
    machines: int = 0
    gpus_each: int = 1

    @property
    def in_flight(self) -> bool:
        return self.state in {"waiting", "running"}

    @property
    def missing_gpus(self) -> int:
        return max(0, self.gpus - self.obtained_gpus)


@dataclass(frozen=True)
class PoolState:
    """The whole state file; orders that ended are kept for a while, so that one can see how."""

    holdings: tuple[Holding, ...] = ()
    orders: tuple[Order, ...] = ()
    next_order: int = 1
    surplus_gpus: int = 0
    """GPUs that the pool has, or gets, over its measure: the next takes order that many less."""

    def with_order(self, order: Order) -> PoolState:
        """The state with this order in the place of the one with its number."""
        kept = tuple(order if known.number == order.number else known for known in self.orders)
        return replace(self, orders=kept)

    def with_surplus_of(self, order: Order) -> PoolState:
        """What an order that ended brought over what was wanted; whole machines are what is sold."""
        known = self.order(order.number)
        over = max(0, order.obtained_gpus - order.gpus)
        if known is None or order.state != "obtained" or not over:
            return self
        return replace(
            self.with_order(replace(order, obtained_gpus=order.gpus)), surplus_gpus=self.surplus_gpus + over
        )

    def order(self, number: int) -> Order | None:
        return next((order for order in self.orders if order.number == number), None)


def to_json(state: PoolState) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": VERSION, **asdict(state)}


def from_json(document: object) -> PoolState:
    """Raises KeyError, TypeError or ValueError for what is no such document."""
    fields = StrictObject(document)
    if fields.text("schema") != SCHEMA:
        raise ValueError(f"schema: {fields.text('schema')!r:.40}")
    if fields.integer("version") > VERSION:
        raise NewerStateError(fields.integer("version"))
    return PoolState(
        tuple(_holding(StrictObject(item)) for item in fields.items("holdings")),
        tuple(_order(StrictObject(item)) for item in fields.items("orders")),
        fields.integer("next_order"),
        fields.integer("surplus_gpus"),
    )


def _holding(fields: StrictObject) -> Holding:
    texts: Mapping[str, str] = {
        name: fields.text(name) for name in ("uuid", "model", "holder", "since", "boot_id")
    }
    return Holding(
        **texts,
        pid=fields.integer("pid"),
        start_ticks=fields.integer("start_ticks"),
        replaced=fields.flag("replaced"),
    )


def _order(fields: StrictObject) -> Order:
    state = fields.text("state")
    if state not in {"waiting", "running", "obtained", "gave up"}:
        raise ValueError(f"state: {state!r:.40}")
    return Order(
        number=fields.integer("number"),
        gpus=fields.integer("gpus"),
        taken_by=fields.text("taken_by"),
        since=fields.text("since"),
        state=state,
        obtained_gpus=fields.integer("obtained_gpus"),
        offer=fields.text("offer"),
        attempts=fields.integer("attempts"),
        reason=fields.text("reason"),
        pid=fields.integer("pid"),
        start_ticks=fields.integer("start_ticks"),
        began_seconds=fields.number("began_seconds"),
        machines=fields.integer("machines"),
        gpus_each=fields.integer("gpus_each"),
    )
