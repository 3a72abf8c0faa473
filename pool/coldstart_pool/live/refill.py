"""Replacing what was taken: orders are worked off beside everything else, offer by offer."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_cli.files import exclusive_lock
from coldstart_pool.live.attempt import Attempt, environment_for, judged, machines_for
from coldstart_pool.live.attempts import append_attempt
from coldstart_pool.live.record import Order, PoolState
from coldstart_pool.live.refill_file import RefillOffer
from coldstart_pool.live.running import RunningCommand
from coldstart_pool.live.state import load_state, state_path, update_state

_LONGEST_BACKOFF_SECONDS = 3600.0


@dataclass(frozen=True)
class Supply:
    """Where attempts are noted, and whom the worker tells what it does; `sleep` between attempts."""

    table: Path
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep


def refill_lock_path(state_folder: Path) -> Path:
    return state_path(state_folder).with_name("refill.lock")


def work_off_orders(
    state_folder: Path, offers: Sequence[RefillOffer], supply: Supply, *, wait_seconds: float = 0.0
) -> tuple[Order, ...]:
    """Work until no order waits; those that it ended. BusyError where another process is at it.

    Every state is on disk before the next step, and a command goes on without us: after a crash the next one
    waits for the command that runs, and nothing is ordered twice.
    """
    done: list[Order] = []
    with exclusive_lock(refill_lock_path(state_folder), wait_seconds=wait_seconds):
        while (order := _next_order(load_state(state_folder))) is not None:
            done.append(_Work(state_folder, offers, supply).fill(order))
    return tuple(done)


def is_refilling(state_folder: Path) -> bool:
    """Whether a process works off the orders now."""
    if not refill_lock_path(state_folder).exists():
        return False
    try:
        with exclusive_lock(refill_lock_path(state_folder)):
            return False
    except BusyError:
        return True


class _Work:
    def __init__(self, state_folder: Path, offers: Sequence[RefillOffer], supply: Supply) -> None:
        self._state_folder = state_folder
        self._offers = offers
        self._supply = supply

    def fill(self, order: Order) -> Order:
        if order.state == "running" and not order.pid:
            order = self._adopted(order)
        if order.pid:
            order = self._finish(order, self._offer_of(order))
        for offer, number in self._tries(order):
            if not order.missing_gpus:
                break
            order = self._finish(self._begin(order, offer, number), offer)
            if order.missing_gpus and number < offer.attempts:
                self._supply.sleep(_backoff_seconds(offer, number))
        return self._put(replace(order, state="gave up" if order.missing_gpus else "obtained"))

    def _adopted(self, order: Order) -> Order:
        """With the command that was begun just before a crash, if it was."""
        running = RunningCommand.found(self._folder(order))
        if running is None:
            return order
        return replace(order, pid=running.pid or os.getpid(), start_ticks=running.start_ticks)

    def _tries(self, order: Order) -> Iterator[tuple[RefillOffer, int]]:
        """What has not been tried for the order: after a crash, what comes after the attempt on record."""
        labels = [offer.label for offer in self._offers]
        at = labels.index(order.offer) if order.offer in labels else 0
        for place, offer in enumerate(self._offers[at:]):
            first = order.attempts + 1 if place == 0 and order.offer == offer.label else 1
            yield from ((offer, number) for number in range(first, offer.attempts + 1))

    def _offer_of(self, order: Order) -> RefillOffer:
        """The offer whose command runs; of one that is in the file no more, what is on record."""
        known = next((offer for offer in self._offers if offer.label == order.offer), None)
        return known or RefillOffer(provider=order.offer, command=("",), gpus_per_instance=order.gpus_each)

    def _begin(self, order: Order, offer: RefillOffer, number: int) -> Order:
        machines = machines_for(offer, order.missing_gpus)
        attempt = replace(
            order,
            state="running",
            offer=offer.label,
            attempts=number,
            machines=machines,
            gpus_each=offer.gpus_per_instance,
            began_seconds=time.time(),
        )
        self._put(attempt)
        order_id = f"{order.number}-{order.since}"
        try:
            running = RunningCommand.begin(
                self._folder(order), offer.command, environment_for(offer, machines, order_id)
            )
        except ColdstartError as error:
            return replace(attempt, reason=error.message)
        return self._put(replace(attempt, pid=running.pid, start_ticks=running.start_ticks))

    def _finish(self, order: Order, offer: RefillOffer) -> Order:
        if order.pid:
            running = RunningCommand(self._folder(order), order.pid, order.start_ticks)
            ended = running.wait(order.began_seconds + offer.deadline_seconds)
            outcome = judged(ended, order.machines, order.began_seconds, offer.deadline_seconds)
        else:
            outcome = Attempt(order.machines, 0, 0.0, order.reason)
        obtained = order.obtained_gpus + outcome.obtained * order.gpus_each
        finished = replace(
            order, obtained_gpus=obtained, reason=outcome.reason, state="waiting", pid=0, start_ticks=0
        )
        # noted first: an attempt is rather there twice than never
        self._note(offer, outcome, order.began_seconds)
        finished = self._put(finished)
        if order.pid:
            running.forget()
        return finished

    def _folder(self, order: Order) -> Path:
        return state_path(self._state_folder).parent / "refills" / str(order.number)

    def _note(self, offer: RefillOffer, outcome: Attempt, began_seconds: float) -> None:
        self._supply.tell(
            f"{offer.label}: {outcome.obtained} of {outcome.requested} after {outcome.seconds:.1f} s"
            + (f": {outcome.reason}" if outcome.reason else "")
        )
        try:
            append_attempt(
                self._supply.table,
                offer,
                time=datetime.fromtimestamp(began_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                requested=outcome.requested,
                obtained=outcome.obtained,
                seconds=outcome.seconds,
                reason=outcome.reason,
            )
        except ColdstartError as error:  # a full disk is no reason to stop ordering
            self._supply.tell(error.message)

    def _put(self, order: Order) -> Order:
        update_state(self._state_folder, lambda state: state.with_order(order).with_surplus_of(order))
        return order


def _next_order(state: PoolState) -> Order | None:
    """What waits, and what a process that was killed left behind."""
    return next((order for order in state.orders if order.in_flight), None)


def _backoff_seconds(offer: RefillOffer, failures: int) -> float:
    """Doubled after each failure, with jitter: hosts that failed together do not ask again together."""
    longest = min(_LONGEST_BACKOFF_SECONDS, offer.backoff_seconds * 2.0 ** (failures - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
