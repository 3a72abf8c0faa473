"""All mounts of a host as Prometheus metrics: what their servers counted until a second ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coldstart_cli.prometheus import Metric
from coldstart_fs.mounts.records import MountRecord, all_records
from coldstart_fs.mounts.server_records import read_counters

_COUNTED = {
    "requests": "Requests of the kernel.",
    "failed_requests": "Requests answered with an error of ours.",
    "cache_chunks": "Chunks from the local cache.",
    "store_chunks": "Chunks fetched.",
    "store_bytes": "Bytes of chunks fetched.",
    "prefetched_bytes": "Bytes of packs fetched ahead of their readers.",
    "failed_chunks": "Chunks that could not be had.",
    "quarantined_chunks": "Chunks of the local cache that were damaged.",
}
_TIER_COUNTED = {
    "requests": "Requests sent to a tier.",
    "received_bytes": "Bytes of right answers.",
    "given_up": "Requests given up: another one was faster, or the reader's time was over.",
    "hedges": "Second requests sent after a silent first one.",
    "hedges_won": "Second requests that answered first.",
    "skipped": "Times a tier was passed over.",
    "times_opened": "Times the circuit breaker opened.",
}


def mount_metrics(run_folder: Path) -> list[Metric]:
    """The mounts of this host. Counters belong to a server, and so to all mounts that share it."""
    up = Metric("coldstart_mount_up", "1 where the mount is served.")
    protected = Metric("coldstart_mount_protected", "1 where the death of the server would be survived.")
    restarts = Metric(
        "coldstart_mount_server_restarts_total", "Servers that died and were replaced.", "counter"
    )
    kept = Metric("coldstart_mount_cache_keeps", "1 while the local cache takes what is fetched.")
    counted = {
        name: Metric(f"coldstart_mount_{name}_total", meaning, "counter")
        for name, meaning in _COUNTED.items()
    }
    in_flight = Metric("coldstart_mount_in_flight", "Requests of the kernel that wait for their answer.")
    tiers = _Tiers()
    servers: set[Path] = set()
    for _, record in all_records(run_folder):
        labels = _labels(record)
        server = record.server()
        up.add(record.server_lives(), **labels)
        protected.add(server is not None and server.is_protected(), **labels)
        if record.server_folder in servers:
            continue  # counted once: sums over mounts stay right
        servers.add(record.server_folder)
        counters = read_counters(record.server_folder)
        restarts.add(None if server is None else server.restarts, **labels)
        if counters:
            kept.add(counters.get("cache_failure") is None, **labels)
        in_flight.add(counters.get("in_flight"), **labels)
        for name, metric in counted.items():
            metric.add(counters.get(name), **labels)
        tiers.add(counters.get("tiers", ()), labels)
    return [up, protected, restarts, kept, in_flight, *counted.values(), *tiers.metrics()]


class _Tiers:
    def __init__(self) -> None:
        self._counted = {
            name: Metric(f"coldstart_tier_{name}_total", meaning, "counter")
            for name, meaning in _TIER_COUNTED.items()
        }
        self._in_flight = Metric("coldstart_tier_in_flight", "Requests on their way.")
        self._errors = Metric("coldstart_tier_errors_total", "Failed requests by kind.", "counter")
        self._open = Metric("coldstart_tier_open", "1 while the circuit breaker leaves the tier alone.")
        self._latency = Metric(
            "coldstart_tier_latency_seconds", "From the request to its verified answer.", "histogram"
        )

    def add(self, tiers: Iterable[Mapping[str, Any]], mount: Mapping[str, str]) -> None:
        for tier in tiers:
            labels = {**mount, "tier": str(tier["tier"])}
            for name, metric in self._counted.items():
                metric.add(tier[name], **labels)
            self._in_flight.add(tier["in_flight"], **labels)
            self._open.add(tier["breaker"] != "closed", **labels)
            for kind, count in tier["errors"].items():
                self._errors.add(count, **labels, kind=kind)
            latency = tier["latency_seconds"]
            self._latency.add_histogram(latency["buckets"], latency["counts"], latency["sum"], labels)

    def metrics(self) -> list[Metric]:
        return [*self._counted.values(), self._in_flight, self._errors, self._open, self._latency]


def _labels(record: MountRecord) -> dict[str, str]:
    return {"mountpoint": str(record.mountpoint), "name": record.name, "image": record.image}
