"""What tiers count, as JSON values."""

from __future__ import annotations

import json

from coldstart_fs.tiers.counters import BUCKETS_SECONDS, TierCounters


def counters() -> TierCounters:
    tier = TierCounters('http://a/"x"')
    for seconds in (0.0005, 0.02, 0.02, 99.0):
        tier.began(hedge=seconds == 99.0)
        tier.answered(1000, seconds, hedge=seconds == 99.0)
    for kind in ("reset", "reset", "page"):
        tier.began(hedge=False)
        tier.failed(kind, opened=kind == "page")
    tier.began(hedge=True)
    tier.gave_up()
    tier.began(hedge=False)
    tier.passed_over()
    return tier


def test_counters_are_json_values() -> None:
    values = json.loads(json.dumps(counters().as_json()))
    assert {key: values[key] for key in ("requests", "answers", "received_bytes", "in_flight")} == {
        "requests": 9,
        "answers": 4,
        "received_bytes": 4000,
        "in_flight": 1,
    }
    assert values["errors"] == {"page": 1, "reset": 2}
    assert (values["hedges"], values["hedges_won"], values["given_up"], values["skipped"]) == (2, 1, 1, 1)
    assert len(values["latency_seconds"]["counts"]) == len(BUCKETS_SECONDS) + 1
    assert sum(values["latency_seconds"]["counts"]) == 4
