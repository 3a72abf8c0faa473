"""A published trace that is asked for while the image itself is still being opened."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from typing import Any

from coldstart_cli.errors import ColdstartError, IoFailure
from coldstart_fs.format.trace import Trace
from coldstart_fs.stores.store import Store
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.options import TraceOptions
from coldstart_fs.traces.published import published_trace


class EarlyTrace:
    """Asked for at once, where a replay will want it."""

    def __init__(self, options: Mapping[str, Any] | None, store: Store, image: bytes) -> None:
        self._outcome: Trace | ColdstartError | None = None
        self._store = store
        self._image = image
        self._thread: Thread | None = None
        wanted = None if options is None else TraceOptions.from_json(options)
        if wanted is not None and wanted.replay is not Mode.OFF and wanted.file is None:
            self._thread = Thread(
                target=self._ask, args=(wanted.workload,), name="published trace", daemon=True
            )
            self._thread.start()

    def wait(self) -> Trace:
        """The trace, or why there is none; as long as the store takes for it."""
        if self._thread is None:
            raise IoFailure("the store was not asked for a trace")
        self._thread.join()
        if isinstance(self._outcome, Trace):
            return self._outcome
        raise self._outcome or IoFailure("the store's trace cannot be used")

    def _ask(self, workload: str) -> None:
        try:
            self._outcome = published_trace(self._store, self._image, workload)
        except ColdstartError as error:
            self._outcome = error
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            self._outcome = IoFailure(f"the store's trace cannot be used: {error!r}")
