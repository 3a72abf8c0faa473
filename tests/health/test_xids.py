"""Our verdict of every XID against NVIDIA's catalogue, and the rules of NVLink 5."""

from __future__ import annotations

import csv

import pytest

from coldstart_health.nvlink5 import Resolution, link_verdict, resolution
from coldstart_health.verdict import Verdict
from coldstart_health.xids import LAST_KNOWN, Course, all_xids, xid
from conftest import shared_data

# NVIDIA's immediate action -> verdicts of one such event that carry it out
ALLOWED = {
    "IGNORE": {Verdict.OK},
    "RESTART_APP": {Verdict.OK, Verdict.DEGRADED},
    "RESET_GPU": {Verdict.RESET},
    "RESTART_BM": {Verdict.REBOOT},
    "RESTART_VM": {Verdict.REBOOT},
    "CONTACT_SUPPORT": {Verdict.DRAIN, Verdict.UNKNOWN},
    "CHECK_MECHANICALS": {Verdict.DRAIN},
    "UPDATE_SWFW": {Verdict.DRAIN},
    "CHECK_UVM": {Verdict.DRAIN},
    "WORKFLOW_XID_45": {Verdict.OK},
    "WORKFLOW_XID_48": {Verdict.RESET},
    "WORKFLOW_NVLINK_ERR": {Verdict.RESET},
}
DECODED = {"WORKFLOW_NVLINK5_ERR": Course.DECODE, "XID_154": Course.DRIVER_SAYS}
SEVERITIES = {"Non-fatal": "nonfatal", "Non-fatal*": "nonfatal"}
LINKS = {
    "RESET_GPU": {Verdict.RESET},
    "XID_154_EVAL": {Verdict.OK},
    "IGNORE": {Verdict.OK, Verdict.DEGRADED},
}


def catalogue() -> list[dict[str, str]]:
    with shared_data("health/tables/xid-catalog.csv").open() as stream:
        return list(csv.DictReader(stream))


def rules() -> list[dict[str, str]]:
    with shared_data("health/tables/xid-nvlink5-rules.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_every_code_of_the_catalogue_has_a_verdict_that_carries_out_nvidias_action() -> None:
    rows = catalogue()
    assert [int(row["code"]) for row in rows] == list(range(1, LAST_KNOWN + 1))
    for row in rows:
        entry, action = xid(int(row["code"])), row["immediate_resolution"]
        if action in DECODED:
            assert entry.course is DECODED[action], row
        elif action:
            assert entry.course.verdict in ALLOWED[action], row


def test_unused_and_unknown_numbers_are_never_ok() -> None:
    for row in catalogue():
        if row["description"] == "Unused" and row["immediate_resolution"] == "CONTACT_SUPPORT":
            assert not xid(int(row["code"])).course.verdict.may_serve, row
    for code in (0, LAST_KNOWN + 1, 9999):
        assert xid(code).course.verdict is Verdict.UNKNOWN


def test_a_used_number_is_explained_in_words() -> None:
    for row in catalogue():
        if row["description"] != "Unused":
            assert xid(int(row["code"])).course is not Course.UNEXPLAINED, row


def test_remapping_and_single_bit_events_do_not_drain() -> None:
    assert [xid(code).course.verdict for code in (63, 92)] == [Verdict.OK, Verdict.OK]


def test_every_entry_has_one_course() -> None:
    codes = [entry.code for entry in all_xids()]
    assert len(codes) == len(set(codes))


def _word(bits: str) -> int:
    return int(bits.replace("-", "0"), 2)


@pytest.mark.parametrize("layout", ["intrinfo_v1", "intrinfo_v2"])
def test_every_nvlink_rule_decides_as_the_table_says(layout: str) -> None:
    rows = rules()
    assert len(rows) > 90
    for row in rows:
        for unit in row["unit"].split("/"):
            detail = (
                f"{unit} {SEVERITIES.get(row['severity'], 'fatal')} "
                f"{_word(row[layout]):#010x} {row['error_status']}"
            )
            verdict, _ = link_verdict(int(row["xid"]), detail)
            assert verdict in LINKS[row["resolution"]], (row, detail, verdict)


def test_an_ignored_fatal_link_event_is_a_link_less_and_no_reset() -> None:
    assert link_verdict(149, "NETIR_LINK_EVT fatal 0x026001c6 0x00000000")[0] is Verdict.DEGRADED


def test_an_error_that_only_its_severity_makes_fatal() -> None:
    word = f"{0b00011000010:#010x}"
    assert link_verdict(145, f"RLW_RXPIPE fatal {word} 0x1")[0] is Verdict.RESET
    assert link_verdict(145, f"RLW_RXPIPE nonfatal {word} 0x1")[0] is Verdict.OK


def test_of_several_status_bits_the_worst_decides() -> None:
    word = f"{0b0000100001:#010x}"
    assert link_verdict(144, f"SAW_MVB nonfatal {word} 0x3")[0] is Verdict.RESET
    assert link_verdict(144, f"SAW_MVB nonfatal {word} 0x5")[0] is Verdict.OK


def test_an_error_without_a_rule_follows_its_severity_and_without_that_is_unknown() -> None:
    for severity, verdict in (
        ("fatal", Verdict.RESET),
        ("nonfatal", Verdict.OK),
        ("unknown", Verdict.UNKNOWN),
    ):
        assert link_verdict(146, f"TLW_NEW {severity} 0xffffffff 0x1")[0] is verdict
    assert link_verdict(149, "")[0] is Verdict.UNKNOWN


def test_a_unit_by_another_name_is_found_by_its_bits() -> None:
    assert resolution(150, "MSE_NEW_NAME", 0, 0) is Resolution.RESET
