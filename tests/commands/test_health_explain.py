"""`coldstart health quick --explain`: what a code means, without looking at anything."""

from __future__ import annotations

import json

import pytest

from conftest import Coldstart


def test_a_reason_code_is_explained(coldstart: Coldstart) -> None:
    result = coldstart("health", "quick", "--explain", "row_remap_pending")
    assert result.status == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "row_remap_pending: a row remapping waits for a reset"
    assert lines[1].split() == ["verdict", "reset"]
    assert "nvidia-smi --gpu-reset" in lines[3]


def test_an_xid_is_explained_as_json(coldstart: Coldstart) -> None:
    content = json.loads(coldstart("health", "quick", "--explain", "xid_79", "--json").stdout)
    assert (content["schema"], content["version"], content["code"]) == (
        "coldstart.health.explain",
        1,
        "xid_79",
    )
    assert content["verdicts"] == ["reboot"]


@pytest.mark.parametrize(
    ("code", "hint"), [("persistance_off", "`persistence_off`"), ("nonsense", "docs/health.md")]
)
def test_an_unknown_code_is_bad_usage_with_a_way_on(coldstart: Coldstart, code: str, hint: str) -> None:
    result = coldstart("health", "quick", "--explain", code)
    assert (result.status, result.stdout) == (2, "")
    assert f"no such reason code: {code}" in result.stderr
    assert hint in result.stderr


def test_explaining_writes_nothing(coldstart: Coldstart) -> None:
    coldstart("health", "quick", "--explain", "no_gpu")
    assert not (coldstart.folder / "coldstart" / "state").exists()
