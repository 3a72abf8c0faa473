"""The trace that somebody means: a file, or what this host and the store know of an image's workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError, NotFoundError
from coldstart_fs.format.trace import Trace, load_trace
from coldstart_fs.stores.references import ResolvedImage, resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.merge import merge_traces
from coldstart_fs.traces.names import check_workload
from coldstart_fs.traces.published import published_trace

Tell = Callable[[str], None]


@dataclass(frozen=True)
class FoundTrace:
    """A trace and where it was found."""

    trace: Trace
    places: tuple[str, ...]


@dataclass(frozen=True)
class TraceDesk:
    """Where traces may be: the state folder of this host, and the store."""

    state_folder: Path
    store_url: str
    cache: Path
    tell: Tell

    def kept(self) -> KeptTraces:
        return KeptTraces(self.state_folder)

    def store(self) -> Store:
        return open_store(self.store_url, tell=self.tell)

    def image(self, name: str, store: Store) -> ResolvedImage:
        return resolve_image(store, name, cache=self.cache, tell=self.tell)

    def find(self, given: str, workload: str) -> FoundTrace:
        """The trace in a file of this name, else that of the image of this name."""
        path = Path(given)
        if path.exists() or given.startswith((".", "/")):
            return FoundTrace(load_trace(path), (str(path),))
        store = self.store()
        return self.of_image(self.image(given, store), workload, store)

    def of_image(self, image: ResolvedImage, workload: str, store: Store) -> FoundTrace:
        """What this host and the store know together, as a replay takes it."""
        check_workload(workload)
        found, places = known_traces(self.kept(), store, image.digest, workload, self.tell)
        if not found:
            raise NotFoundError(
                f"no trace of image {image.name}, workload `{workload}`",
                hint=f"mount it with `--workload {workload}`, start what runs in it, and unmount it",
            )
        return FoundTrace(merge_traces(found, add_runs=False), places)


def known_traces(
    kept: KeptTraces,
    store: Store,
    image: bytes,
    workload: str,
    tell: Tell,
    published: Callable[[], Trace] | None = None,
) -> tuple[list[Trace], tuple[str, ...]]:
    """The traces of this host and of the store, as far as they can be had; `tell` hears why not.

    `published` gives the store's, where it was asked already.
    """
    found: list[Trace] = []
    places: list[str] = []
    sources: tuple[tuple[str, Callable[[], Trace]], ...] = (
        (str(kept.path(image, workload)), lambda: kept.load(image, workload)),
        (store.url, published or (lambda: published_trace(store, image, workload))),
    )
    for place, load in sources:
        try:
            found.append(load())
            places.append(place)
        except NotFoundError:
            continue
        except ColdstartError as error:
            tell(f"trace cannot be used: {error.message}")
    return found, tuple(places)
