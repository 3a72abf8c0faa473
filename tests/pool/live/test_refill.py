"""Orders for what was taken: each offer's command, its failures, and the table that remembers them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ConfigError
from coldstart_cli.files import exclusive_lock
from coldstart_cli.process import start_ticks
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.supply_tables import read_supply
from coldstart_pool.live.refill import Supply, is_refilling, refill_lock_path, work_off_orders
from coldstart_pool.live.refill_file import RefillOffer, load_refills
from coldstart_pool.live.state import HostGpu, load_state, release, take, update_state
from conftest import REPOSITORY, wait_until

GPUS = [HostGpu(f"GPU-{number}", "NVIDIA H100 80GB HBM3") for number in range(8)]


def offer(provider: str, script: str, **changes: object) -> RefillOffer:
    values: dict[str, object] = {
        "provider": provider,
        "command": ("/bin/sh", "-c", script),
        "region": "eu",
        "instance_type": "h100.8",
        "gpu": "H100-80GB",
        "backoff_seconds": 10,
    }
    return RefillOffer(**(values | changes))  # type: ignore[arg-type]


class Desk:
    """A pool with orders, and what its refill said and how long it would have slept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "supply.csv"
        self.told: list[str] = []
        self.slept: list[float] = []

    def order(self, gpus: int, holder: str = "a") -> None:
        take(self.folder, GPUS, count=gpus, holder=holder, refill=True)

    def refill(self, *offers: RefillOffer) -> list[str]:
        done = work_off_orders(self.folder, offers, Supply(self.table, self.told.append, self.slept.append))
        return [order.state for order in done]

    def rows(self) -> list[dict[str, str]]:
        with self.table.open(newline="") as stream:
            return list(csv.DictReader(stream))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_take_is_replaced_by_the_first_offer_that_delivers(desk: Desk) -> None:
    desk.order(2)
    assert desk.refill(offer("a", "exit 0"), offer("b", "exit 1")) == ["obtained"]
    (row,) = desk.rows()
    assert (row["provider"], row["requested"], row["obtained"], row["reason"]) == ("a", "2", "2", "")


def test_an_offer_that_fails_is_tried_again_with_growing_pauses_and_then_the_next_one(desk: Desk) -> None:
    desk.order(1)
    dry = offer("a", "echo asking; echo no capacity in eu >&2; exit 7", attempts=3)
    assert desk.refill(dry, offer("b", "exit 0")) == ["obtained"]
    assert [(row["provider"], row["obtained"], row["reason"]) for row in desk.rows()] == [
        *[("a", "0", "no capacity in eu")] * 3,
        ("b", "1", ""),
    ]
    first, second = desk.slept
    assert 5 <= first <= 10
    assert 10 <= second <= 20


def test_what_an_offer_delivered_in_part_is_asked_of_the_next_one_no_more(desk: Desk) -> None:
    desk.order(8)
    part = offer("a", """echo '{"obtained": 1}'; exit 1""", attempts=1, gpus_per_instance=4)
    assert desk.refill(part, offer("b", 'test "$REFILL_INSTANCES" = 4')) == ["obtained"]
    assert [(row["requested"], row["obtained"]) for row in desk.rows()] == [("2", "1"), ("4", "4")]


def test_when_every_offer_failed_the_order_is_given_up_and_says_why(desk: Desk) -> None:
    desk.order(1)
    assert desk.refill(offer("a", "echo quota >&2; exit 1", attempts=1)) == ["gave up"]
    (order,) = load_state(desk.folder).orders
    assert (order.obtained_gpus, order.reason) == (0, "quota")
    assert desk.refill() == []


def test_a_command_that_does_not_end_costs_its_deadline_and_is_ended(desk: Desk) -> None:
    desk.order(1)
    script = f"echo $$ >{desk.folder}/pid; sleep 60"
    assert desk.refill(offer("a", script, deadline_seconds=4, attempts=1)) == ["gave up"]
    assert desk.rows()[0]["reason"] == "no end after 4 s"
    assert start_ticks(int((desk.folder / "pid").read_text())) == 0


@pytest.mark.parametrize(
    "said", ['{"obtained": -1}', '{"obtained": "2"}', '{"obtained": true}', '{"obtained": 1.5}']
)
def test_a_count_that_cannot_be_counts_as_nothing(desk: Desk, said: str) -> None:
    desk.order(2)
    assert desk.refill(offer("a", f"echo '{said}'", attempts=1)) == ["gave up"]
    assert "is no count" in desk.rows()[0]["reason"]


@pytest.mark.parametrize("said", ['{"obtained": "lots', "[1,2]", "{"])
def test_an_answer_that_is_cut_short_counts_as_nothing(desk: Desk, said: str) -> None:
    desk.order(2)
    assert desk.refill(offer("a", f"echo '{said}'", attempts=1)) == ["gave up"]
    assert "the command's answer is" in desk.rows()[0]["reason"]


def test_a_child_that_keeps_the_output_open_does_not_hold_the_order_up(desk: Desk) -> None:
    desk.order(1)
    assert desk.refill(offer("a", "sleep 60 & exit 0", deadline_seconds=50)) == ["obtained"]
    assert float(desk.rows()[0]["seconds"]) < 30


def test_what_a_command_prints_is_bounded(desk: Desk) -> None:
    desk.order(1)
    script = (
        "head -c 30000000 /dev/zero | tr '\\0' x; head -c 30000000 /dev/zero >&2; echo; echo end >&2; exit 4"
    )
    assert desk.refill(offer("a", script, attempts=1)) == ["gave up"]
    assert desk.rows()[0]["reason"].endswith("end")


def _killed_refill(desk: Desk, script: str, when: str) -> None:
    """A refill in a process of its own that dies at once when the file `when` is there."""
    program = (
        "import sys, pathlib; from coldstart_pool.live.refill import Supply, work_off_orders;"
        "from coldstart_pool.live.refill_file import RefillOffer;"
        "f = pathlib.Path(sys.argv[1]);"
        "work_off_orders(f, [RefillOffer(provider='a', command=('/bin/sh', '-c', sys.argv[2]))],"
        "Supply(f / 'supply.csv', print))"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, desk.folder, script])
    wait_until((desk.folder / when).exists, when)
    worker.kill()
    worker.wait(60)


def test_a_refill_that_is_killed_orders_nothing_twice(desk: Desk) -> None:
    desk.order(2)
    script = f"cd {desk.folder}; echo $REFILL_ORDER $REFILL_INSTANCES >>orders; touch began; sleep 2; exit 0"
    _killed_refill(desk, script, "began")
    assert desk.refill(offer("a", script, region="", instance_type="", gpu="")) == ["obtained"]
    assert len((desk.folder / "orders").read_text().splitlines()) == 1
    (row,) = desk.rows()
    assert (row["requested"], row["obtained"]) == ("2", "2")


def test_a_command_that_ended_after_its_refill_was_killed_is_counted(desk: Desk) -> None:
    desk.order(1)
    script = (
        f"cd {desk.folder}; echo $REFILL_ORDER >>orders; touch began; sleep 0.5; echo no room >&2; exit 1"
    )
    _killed_refill(desk, script, "began")
    status = desk.folder / "pool" / "refills" / "1" / "status"
    wait_until(status.exists, "the command's end")
    again = offer("a", "exit 0", region="", instance_type="", gpu="", attempts=2)
    assert desk.refill(again) == ["obtained"]
    assert [row["reason"] for row in desk.rows()] == ["no room", ""]


def test_machines_are_sold_whole_and_what_is_over_is_not_ordered_again(desk: Desk) -> None:
    big = offer("a", f"echo $REFILL_INSTANCES >>{desk.folder}/orders", gpus_per_instance=8)
    desk.order(3, "a")
    assert desk.refill(big) == ["obtained"]
    desk.order(3, "b")
    assert desk.refill(big) == []
    assert load_state(desk.folder).surplus_gpus == 2
    assert (desk.folder / "orders").read_text() == "1\n"


def test_what_is_given_back_is_not_ordered_again(desk: Desk) -> None:
    for _ in range(3):
        desk.order(2)
        release(desk.folder, "a")
    assert desk.refill(offer("a", "exit 0")) == ["obtained"]
    assert load_state(desk.folder).surplus_gpus == 2


def test_a_table_of_somebody_else_is_left_as_it_is(desk: Desk) -> None:
    content = "time,provider,region,gpu,requested,obtained\n2026-05-04T08:00:00Z,a,r,H100,4,4"
    desk.table.write_text(content)
    desk.order(1)
    assert desk.refill(offer("a", "exit 0")) == ["obtained"]
    assert desk.table.read_text() == content
    assert any("has other columns than refills write" in text for text in desk.told)


def test_a_row_that_was_cut_does_not_take_the_next_one_with_it(desk: Desk) -> None:
    desk.order(1)
    desk.refill(offer("a", "exit 0"))
    desk.table.write_text(desk.table.read_text().rstrip("\n"))
    desk.order(1, "b")
    desk.refill(offer("a", "exit 0"))
    assert [row["obtained"] for row in desk.rows()] == ["1", "1"]


def test_an_order_whose_command_was_never_begun_is_gone_on_with(desk: Desk) -> None:
    desk.order(1)
    (order,) = load_state(desk.folder).orders
    running = replace(order, state="running")
    update_state(desk.folder, lambda state: state.with_order(running))
    assert desk.refill(offer("a", "exit 0")) == ["obtained"]


def test_one_process_refills_at_a_time(desk: Desk) -> None:
    desk.order(1)
    assert not is_refilling(desk.folder)
    with exclusive_lock(refill_lock_path(desk.folder)):
        assert is_refilling(desk.folder)
        with pytest.raises(BusyError):
            desk.refill(offer("a", "exit 0"))


def test_a_table_that_cannot_be_written_stops_no_order(desk: Desk) -> None:
    desk.order(1)
    desk.table.mkdir()
    assert desk.refill(offer("a", "exit 0")) == ["obtained"]
    assert any("cannot note an attempt" in text for text in desk.told)


def test_the_attempts_are_the_supply_that_a_plan_reads(desk: Desk) -> None:
    desk.order(2)
    reason = 'say "no", twice\nand again'
    desk.refill(offer("a", f"printf '%s' '{reason}' >&2; exit 1", attempts=2), offer("b", "exit 0"))
    supply, report = read_supply(desk.table, ReadingRules())
    observations = supply.observations
    assert report.rows == report.used_rows == 3
    assert [(one.selector[0], one.count) for one in observations] == [("a", 0), ("b", 2)]


OFFER = '[[offer]]\nprovider = "a"\ncommand = ["true"]\n'
FILE = """\
[[offer]]
provider = "b"
region = "us"
instance_type = "big"
gpu = "H100-80GB"
market = "spot"
command = ["true", "--spot"]
attempts = 2

[[offer]]
provider = "a"
command = ["true"]
"""


def test_offers_come_in_the_order_of_the_plan_and_then_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "refills.toml"
    path.write_text(FILE)
    assert [one.provider for one in load_refills(path)] == ["b", "a"]
    planned = {"offers": [{"provider": "a", "region": "eu", "market": "on-demand"}, {"provider": "b"}]}
    assert [one.provider for one in load_refills(path, plan=planned)] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no offers"),
        ("[[offer", "not valid TOML"),
        ('x = 1\n[[offer]]\nprovider = "a"\ncommand = ["true"]', "unknown key in refill file"),
        ('[[offer]]\ncommand = ["true"]', "offer 1: provider is missing"),
        ('[[offer]]\nprovider = "a"', "offer 1: command must be a list"),
        ('[[offer]]\nprovider = "a"\ncommand = "x"', "offer 1: command must be a list"),
        (OFFER + 'regon = "b"', "offer 1: unknown key: regon"),
        (OFFER + "attempts = 0", "attempts is out of range"),
        (OFFER + "attempts = true", "attempts must be a number"),
        (
            '[[offer]]\nprovider = "a"\ncommand = ["true"]\ndeadline_seconds = nan',
            "deadline_seconds is out of range",
        ),
        (OFFER + "region = 1", "region must be a text"),
    ],
)
def test_a_bad_refill_file_is_refused_by_offer_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "refills.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_refills(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('command = ["/no/such/program"]', "command is no program that can be run: /no/such/program"),
        ('command = ["true"]\nmarket = "bananas"', "unknown market: bananas"),
        ('command = ["true"]\ngpu = "A100"', "offer 1: .*A100"),
        ('command = ["true"]\nprovider = ""', "offer 1: provider is missing"),
    ],
)
def test_what_would_make_attempts_worthless_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "refills.toml"
    provider = "" if "provider" in line else 'provider = "a"\n'
    path.write_text(f"[[offer]]\n{provider}{line}\n")
    with pytest.raises(ConfigError, match=complaint):
        load_refills(path)


def test_an_order_is_readable_json(desk: Desk) -> None:
    desk.order(1)
    document = json.loads((desk.folder / "pool" / "state.json").read_text())
    assert (document["schema"], document["version"]) == ("coldstart.pool", 1)
    assert document["orders"][0]["state"] == "waiting"


def test_the_example_is_a_refill_file(tmp_path: Path) -> None:
    text = (REPOSITORY / "examples" / "pool" / "refills.toml").read_text()
    path = tmp_path / "refills.toml"
    path.write_text(text.replace("/usr/local/sbin/order-instances", "true"))
    assert [one.market for one in load_refills(path)] == ["spot", "on-demand"]
