"""Every trace that this host and its store have."""

from __future__ import annotations

from dataclasses import dataclass

from coldstart_cli.errors import ColdstartError, NotFoundError
from coldstart_fs.format.trace import Trace
from coldstart_fs.stores.references import list_names, read_ref
from coldstart_fs.stores.store import Store
from coldstart_fs.traces.find import TraceDesk
from coldstart_fs.traces.names import workload_of
from coldstart_fs.traces.published import published_trace

HOST, STORE = "host", "store"


@dataclass(frozen=True)
class ListedTrace:
    """One trace; `name` is what its image is called in the store, `problem` why it cannot be read."""

    image: bytes
    name: str | None
    workload: str
    place: str
    trace: Trace | None
    problem: str | None = None


def list_traces(desk: TraceDesk, name: str | None) -> tuple[list[ListedTrace], list[str]]:
    """The traces of one image, or of all, and what could not be asked; a damaged one hides no other."""
    problems: list[str] = []
    store: Store | None = None
    only: bytes | None = None
    if name is not None:
        store = desk.store()
        only = desk.image(name, store).digest
    else:
        try:
            store = desk.store()
        except NotFoundError:  # nothing was indexed here yet
            store = None
        except ColdstartError as error:
            problems.append(error.message)
    names = {} if store is None else _names(store, problems)
    kept = desk.kept()
    found = [
        ListedTrace(item.image, names.get(item.image), item.workload, HOST, item.trace, item.problem)
        for item in (kept.all() if only is None else kept.of(only))
    ]
    if store is not None:
        found += _published(store, only, names, problems)
    found.sort(key=lambda item: (item.name or "~", item.image, item.workload, item.place))
    return found, problems


def _names(store: Store, problems: list[str]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    try:
        for name in list_names(store):
            try:
                found.setdefault(read_ref(store, name).digest, name)
            except ColdstartError as error:
                problems.append(f"image `{name}` cannot be read: {error.message}")
    except ColdstartError as error:
        problems.append(f"names of the images are not known: {error.message}")
    return found


def _published(
    store: Store, only: bytes | None, names: dict[bytes, str], problems: list[str]
) -> list[ListedTrace]:
    found = []
    try:
        keys = store.list("traces/" if only is None else f"traces/{only.hex()}/")
    except ColdstartError as error:
        problems.append(f"traces of the store are not known: {error.message}")
        return []
    for key in keys:
        workload = workload_of(key)
        try:
            image = bytes.fromhex(key.split("/")[1])
        except (ValueError, IndexError):
            continue
        if workload is None or len(image) != 32:
            continue
        trace, problem = None, None
        try:
            trace = published_trace(store, image, workload)
        except ColdstartError as error:
            problem = error.message
        found.append(ListedTrace(image, names.get(image), workload, STORE, trace, problem))
    return found
