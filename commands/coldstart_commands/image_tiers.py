"""What the tiers of mounts did, for `image status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coldstart_commands.image_texts import size

HEADINGS = ("TIER OF", "TIER", "STATE", "REQUESTS", "BYTES", "ERRORS", "HEDGES", "95 % WITHIN")


def tier_rows(mountpoint: str, counters: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each tier that was asked anything."""
    for tier in counters.get("tiers", ()):
        if not tier["requests"] and not tier["skipped"]:
            continue
        errors = ", ".join(f"{kind} {count}" for kind, count in tier["errors"].items())
        yield [
            mountpoint,
            tier["tier"],
            tier["breaker"],
            str(tier["requests"]),
            size(tier["received_bytes"]),
            errors or "0",
            str(tier["hedges"]),
            _most_within(tier["latency_seconds"]),
        ]


def tier_troubles(mountpoint: str, counters: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each tier that is left alone now, or sent wrong bytes."""
    for tier in counters.get("tiers", ()):
        if tier["breaker"] != "closed":
            yield f"tier {tier['tier']} of {mountpoint} fails and is left alone for a while"
        if damaged := tier["errors"].get("damaged"):
            yield f"tier {tier['tier']} sent wrong bytes to {mountpoint} {damaged} times; no reader saw them"


def _most_within(latency: Mapping[str, Any]) -> str:
    counts: Sequence[int] = latency["counts"]
    wanted, so_far = 0.95 * sum(counts), 0
    if not wanted:
        return "-"
    for bound, count in zip(latency["buckets"], counts, strict=False):
        so_far += count
        if so_far >= wanted:
            return f"{bound * 1000:g} ms"
    return f"over {latency['buckets'][-1]:g} s"
