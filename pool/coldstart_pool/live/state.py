"""The pool of one host: GPUs are taken and given back under a lock, in a file that a crash leaves whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.errors import BusyError, DataError, NegativeAnswer, NotFoundError, UsageError
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.process import start_ticks
from coldstart_cli.regular import read_regular
from coldstart_cli.version import __version__
from coldstart_host.kernel import boot_id
from coldstart_pool.live.record import VERSION, Holding, NewerStateError, Order, PoolState, from_json, to_json

_LOCK_WAIT_SECONDS = 5.0
_REMEMBERED_ORDERS = 32


@dataclass(frozen=True)
class HostGpu:
    """A GPU of this host, as the health check sees it; `blocked_because` is empty where one may be placed."""

    uuid: str
    model: str
    blocked_because: str = ""


@dataclass(frozen=True)
class GpuStanding:
    """A GPU and who has it; `holding` is None for a free one."""

    gpu: HostGpu
    holding: Holding | None

    @property
    def is_free(self) -> bool:
        return self.holding is None and not self.gpu.blocked_because


def state_path(state_folder: Path) -> Path:
    return state_folder / "pool" / "state.json"


def load_state(state_folder: Path) -> PoolState:
    """The state, empty where nothing was ever taken. Damage is refused: nobody knows who holds what."""
    path = state_path(state_folder)
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return PoolState()
    except OSError as error:
        raise DataError(f"cannot read the pool's state: {path}: {error.strerror or error}") from error
    try:
        return from_json(json.loads(content))
    except NewerStateError as error:
        raise DataError(
            f"the pool's state has version {error}, coldstart {__version__} reads up to {VERSION}: {path}",
            hint="install a newer coldstart",
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"the pool's state is damaged: {path}: {error}",
            hint=f"make sure that nothing uses the GPUs, then: rm {path}",
        ) from error


def update_state(state_folder: Path, change: Callable[[PoolState], PoolState]) -> PoolState:
    """Change the state under its lock; what `change` raises leaves it as it is."""
    path = state_path(state_folder)
    with exclusive_lock(path.with_suffix(".lock"), wait_seconds=_LOCK_WAIT_SECONDS):
        before = load_state(state_folder)
        after = change(before)
        ended = [order for order in after.orders if not order.in_flight][:-_REMEMBERED_ORDERS]
        after = replace(after, orders=tuple(order for order in after.orders if order not in ended))
        if after != before:
            atomic_write(path, json.dumps(to_json(after), indent=1).encode() + b"\n", mode=0o600)
    return after


def standings(gpus: Sequence[HostGpu], state: PoolState) -> list[GpuStanding]:
    """Every GPU of the host with its holder; holders that are gone hold nothing."""
    held = {holding.uuid: holding for holding in living(state).holdings}
    return [GpuStanding(gpu, held.get(gpu.uuid)) for gpu in gpus]


def living(state: PoolState) -> PoolState:
    """Without holdings of an earlier boot or of processes that ended."""
    boot = boot_id()
    kept = tuple(
        holding
        for holding in state.holdings
        if holding.boot_id == boot and (not holding.pid or start_ticks(holding.pid) == holding.start_ticks)
    )
    return _without(state, tuple(holding for holding in state.holdings if holding not in kept))


def plan_take(
    state_folder: Path,
    gpus: Sequence[HostGpu],
    *,
    count: int,
    holder: str,
    model: str | None = None,
    pid: int = 0,
) -> tuple[Holding, ...]:
    """What `take` would take now; nothing changes."""
    return _choose(living(load_state(state_folder)), gpus, count, holder, model, pid)


def take(
    state_folder: Path,
    gpus: Sequence[HostGpu],
    *,
    count: int,
    holder: str,
    model: str | None = None,
    pid: int = 0,
    refill: bool = False,
) -> tuple[Holding, ...]:
    """Take `count` free GPUs for `holder`, all or none; with `pid`, until that process ends.

    `model` is part of the wanted model's name. With `refill` an order is noted for what was taken and is not
    surplus. One holder's second take is refused: it would hide that the first was never released.
    """
    taken: list[Holding] = []

    def change(state: PoolState) -> PoolState:
        state = living(state)
        taken[:] = _choose(state, gpus, count, holder, model, pid)
        taken[:] = [replace(holding, replaced=refill) for holding in taken]
        spare = min(state.surplus_gpus, count) if refill else 0
        state = replace(state, holdings=(*state.holdings, *taken), surplus_gpus=state.surplus_gpus - spare)
        if not refill or spare == count:
            return state
        order = Order(state.next_order, count - spare, holder, _now())
        return replace(state, orders=(*state.orders, order), next_order=state.next_order + 1)

    update_state(state_folder, change)
    return tuple(taken)


def require_holder(state_folder: Path, holder: str) -> tuple[Holding, ...]:
    """What `holder` has, or the refusal."""
    return _held_by(load_state(state_folder), holder)


def release(state_folder: Path, holder: str) -> tuple[Holding, ...]:
    """Give back all that `holder` has."""
    released: list[Holding] = []

    def change(state: PoolState) -> PoolState:
        released[:] = _held_by(state, holder)
        return _without(state, tuple(released))

    update_state(state_folder, change)
    return tuple(released)


def _without(state: PoolState, gone: tuple[Holding, ...]) -> PoolState:
    """Their GPUs are free again: those that were replaced are more than the pool's measure now."""
    kept = tuple(holding for holding in state.holdings if holding not in gone)
    return replace(
        state,
        holdings=kept,
        surplus_gpus=state.surplus_gpus + sum(holding.replaced for holding in gone),
    )


def _choose(
    state: PoolState, gpus: Sequence[HostGpu], count: int, holder: str, model: str | None, pid: int
) -> tuple[Holding, ...]:
    if not holder.strip():
        raise UsageError("a holder has a name", hint="name who takes them, for `coldstart pool release`")
    ticks = start_ticks(pid) if pid else 0
    if pid and not ticks:
        raise NotFoundError(f"process does not exist: {pid}")
    if any(holding.holder == holder for holding in state.holdings):
        raise BusyError(f"holds GPUs of the pool already: {holder}", hint=f"coldstart pool release {holder}")
    seen = standings(gpus, state)
    fitting = [one for one in seen if model is None or model.lower() in one.gpu.model.lower()]
    free = [one.gpu for one in fitting if one.is_free]
    if len(free) < count:
        raise NegativeAnswer(_shortage(count, model, fitting), hint="coldstart pool status")
    now, boot = _now(), boot_id()
    return tuple(Holding(gpu.uuid, gpu.model, holder, now, boot, pid, ticks) for gpu in free[:count])


def _held_by(state: PoolState, holder: str) -> tuple[Holding, ...]:
    found = tuple(holding for holding in state.holdings if holding.holder == holder)
    if not found:
        known = ", ".join(sorted({holding.holder for holding in living(state).holdings}))
        hint = f"holders: {known}" if known else "nobody holds anything"
        raise NotFoundError(f"holds nothing of the pool: {holder}", hint=hint)
    return found


def _shortage(count: int, model: str | None, fitting: Sequence[GpuStanding]) -> str:
    free = sum(one.is_free for one in fitting)
    held = sorted({one.holding.holder for one in fitting if one.holding is not None})
    blocked = sum(bool(one.gpu.blocked_because) for one in fitting)
    kind = f" {model}" if model else ""
    parts = [f"{len(fitting)}{kind} on this host"]
    if held:
        parts.append(f"held by {', '.join(held)}")
    if blocked:
        parts.append(f"{blocked} kept out by health")
    return f"not enough free GPUs in the pool: {free} of {count} wanted ({'; '.join(parts)})"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
