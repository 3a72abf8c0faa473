"""Who holds which GPU of a host: all or none, never twice, whoever crashes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, DataError, NegativeAnswer, NotFoundError
from coldstart_cli.files import exclusive_lock
from coldstart_pool.live.record import Order, PoolState, from_json, to_json
from coldstart_pool.live.state import (
    HostGpu,
    load_state,
    plan_take,
    release,
    standings,
    state_path,
    take,
    update_state,
)

H100 = "NVIDIA H100 80GB HBM3"
GPUS = [HostGpu(f"GPU-{number}", H100) for number in range(4)]


def free(folder: Path, gpus: list[HostGpu] = GPUS) -> list[str]:
    return [one.gpu.uuid for one in standings(gpus, load_state(folder)) if one.is_free]


def test_what_is_taken_is_not_free_until_it_is_released(tmp_path: Path) -> None:
    taken = take(tmp_path, GPUS, count=3, holder="a")
    assert [holding.uuid for holding in taken] == ["GPU-0", "GPU-1", "GPU-2"]
    assert free(tmp_path) == ["GPU-3"]
    release(tmp_path, "a")
    assert len(free(tmp_path)) == 4


def test_too_few_free_gpus_take_none_and_say_who_has_the_others(tmp_path: Path) -> None:
    take(tmp_path, GPUS, count=3, holder="a")
    with pytest.raises(NegativeAnswer, match=r"1 of 2 wanted \(4 on this host; held by a\)"):
        take(tmp_path, GPUS, count=2, holder="b")
    assert free(tmp_path) == ["GPU-3"]


def test_a_gpu_that_health_keeps_out_is_never_taken(tmp_path: Path) -> None:
    gpus = [replace(GPUS[0], blocked_because="drain"), *GPUS[1:2]]
    assert [holding.uuid for holding in take(tmp_path, gpus, count=1, holder="a")] == ["GPU-1"]
    with pytest.raises(NegativeAnswer, match="1 kept out by health"):
        take(tmp_path, gpus, count=1, holder="b")


def test_the_model_is_what_was_asked_for(tmp_path: Path) -> None:
    gpus = [*GPUS[:1], HostGpu("GPU-L4", "NVIDIA L4")]
    assert take(tmp_path, gpus, count=1, holder="a", model="l4")[0].uuid == "GPU-L4"


def test_a_holder_takes_once(tmp_path: Path) -> None:
    take(tmp_path, GPUS, count=1, holder="a")
    with pytest.raises(BusyError, match="holds GPUs of the pool already: a"):
        take(tmp_path, GPUS, count=1, holder="a")


def test_a_holder_without_anything_cannot_release(tmp_path: Path) -> None:
    take(tmp_path, GPUS, count=1, holder="a")
    with pytest.raises(NotFoundError) as caught:
        release(tmp_path, "b")
    assert caught.value.hint == "holders: a"


def test_the_end_of_its_process_frees_what_it_held(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        take(tmp_path, GPUS, count=4, holder="a", pid=child.pid)
        assert free(tmp_path) == []
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    assert len(free(tmp_path)) == 4
    take(tmp_path, GPUS, count=4, holder="a")


def test_nobody_holds_anything_over_a_reboot(tmp_path: Path) -> None:
    take(tmp_path, GPUS, count=4, holder="a")

    def earlier(state: PoolState) -> PoolState:
        return replace(state, holdings=tuple(replace(one, boot_id="before") for one in state.holdings))

    update_state(tmp_path, earlier)
    assert len(free(tmp_path)) == 4


def test_a_rehearsal_changes_nothing(tmp_path: Path) -> None:
    assert len(plan_take(tmp_path, GPUS, count=2, holder="a")) == 2
    assert list(tmp_path.iterdir()) == []


def _take_one(folder: Path, number: int) -> int:
    try:
        return len(take(folder, GPUS, count=1, holder=f"holder-{number}", pid=os.getppid()))
    except NegativeAnswer:
        return 0


def test_of_many_that_take_at_once_each_gpu_goes_to_one(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        taken = pool.starmap(_take_one, [(tmp_path, number) for number in range(12)])
    assert sum(taken) == 4
    uuids = [holding.uuid for holding in load_state(tmp_path).holdings]
    assert sorted(uuids) == sorted(set(uuids))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"schema": "coldstart.pool", "version": 0}',
        '{"schema": "coldstart.pool", "version": 1, "holdings": [{}], "orders": [], "next_order": 1}',
        '{"schema": "coldstart.pool", "version": 1, "holdings": [], "orders": 1, "next_order": 1}',
    ],
)
def test_a_damaged_state_is_refused_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = state_path(tmp_path)
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DataError, match=r"the pool's state is damaged: .*state\.json"):
        take(tmp_path, GPUS, count=1, holder="a")
    assert path.read_text() == content


def test_a_state_of_a_later_version_is_not_called_damaged(tmp_path: Path) -> None:
    path = state_path(tmp_path)
    path.parent.mkdir()
    path.write_text('{"schema": "coldstart.pool", "version": 99}')
    with pytest.raises(DataError, match="has version 99") as caught:
        load_state(tmp_path)
    assert caught.value.hint == "install a newer coldstart"


def test_a_state_is_read_as_it_was_written() -> None:
    order = Order(3, 2, "a", "2026-11-29T00:00:00Z", "gave up", 1, "p: t (spot)", 3, "no capacity")
    state = PoolState(orders=(order,), next_order=4)
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


def test_ended_orders_are_remembered_for_a_while_and_open_ones_for_ever(tmp_path: Path) -> None:
    orders = [Order(number, 1, "a", "t", "obtained") for number in range(1, 61)]

    def add(state: PoolState) -> PoolState:
        return replace(state, orders=(Order(100, 1, "a", "t"), *orders))

    kept = update_state(tmp_path, add).orders
    assert kept[0].number == 100
    assert [order.number for order in kept[1:]] == list(range(29, 61))


def test_a_lock_that_somebody_keeps_is_busy_and_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldstart_pool.live.state._LOCK_WAIT_SECONDS", 0.1)
    path = state_path(tmp_path)
    path.parent.mkdir()
    with exclusive_lock(path.with_suffix(".lock")), pytest.raises(BusyError):
        take(tmp_path, GPUS, count=1, holder="a")
