"""Traces in a store, beside the images that they are of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError, UnavailableError
from coldstart_fs.format.trace import Trace, decode_trace, encode_trace
from coldstart_fs.stores.images import open_index
from coldstart_fs.stores.store import Store
from coldstart_fs.traces.fit import fit_trace
from coldstart_fs.traces.merge import aged, merge_traces
from coldstart_fs.traces.names import (
    DEFAULT_WORKLOAD,
    is_workload,
    trace_key,
    trace_prefix,
    workload_of,
)


def published_trace(store: Store, image: bytes, workload: str) -> Trace:
    """The trace of a workload in a store; `NotFoundError` when there is none."""
    key = trace_key(image, workload)
    try:
        content = store.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"store has no trace of workload `{workload}`: {store.url}/{key}") from error
    trace = decode_trace(content, f"{store.url}/{key}")
    if trace.image != image:
        raise DataError(f"trace is of another image: {store.url}/{key}")
    return trace


def published_workloads(store: Store, image: bytes) -> list[str]:
    """The workloads that a store has traces of; `UnavailableError` where a store cannot list."""
    found = [workload_of(key) for key in store.list(trace_prefix(image))]
    return [workload for workload in found if workload is not None]


def publish_trace(store: Store, trace: Trace, *, add_runs: bool = False, wait_seconds: float = 0.0) -> Trace:
    """Merge a trace into the store's; what the store has now. Of two writers at once, the last stays.

    `add_runs`: the store has not heard of these runs before.
    """
    with store.writing(wait_seconds=wait_seconds):
        known: list[Trace] = []
        with suppress(NotFoundError, DataError):  # what is damaged is written anew
            known = [published_trace(store, trace.image, trace.workload)]
        merged = aged(merge_traces([*known, trace], add_runs=add_runs))
        if known != [merged]:
            store.put_bytes(trace_key(trace.image, trace.workload), encode_trace(merged, compressed=True))
    return merged


def publish_for_image(
    store: Store, trace: Trace, image: bytes, cache: Path, *, wait_seconds: float = 0.0
) -> Trace:
    """Publish what an image has of a trace, also of one of another build; what the store has now."""
    workload = trace.workload if is_workload(trace.workload) else DEFAULT_WORKLOAD
    with open_index(store, image, cache) as index:
        fitted, _ = fit_trace(trace, index, image)
    return publish_trace(store, replace(fitted, workload=workload), wait_seconds=wait_seconds)


def copy_traces(
    source: Store, destination: Store, image: bytes, tell: Callable[[str], None], *, wait_seconds: float
) -> int:
    """Bring the traces of an image into another store; how many were sent, or joined with what it has.

    A trace is only a hint: why it cannot be copied is told, and no failure.
    """
    sent = 0
    try:
        for workload in published_workloads(source, image):
            publish_trace(destination, published_trace(source, image, workload), wait_seconds=wait_seconds)
            sent += 1
    except UnavailableError:  # a store that cannot list shows its traces to mounts alone
        return sent
    except ColdstartError as error:
        tell(f"traces are not copied: {error.message}")
    return sent


def unpublish_trace(store: Store, image: bytes, workload: str, *, wait_seconds: float = 0.0) -> None:
    """Remove a trace from a store."""
    with store.writing(wait_seconds=wait_seconds):
        store.delete(trace_key(image, workload))
