"""Pulling layers in the background: each is read when it is there, while skopeo copies the next ones."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, IoFailure
from coldstart_fs.indexing.sources import Progress
from coldstart_fs.indexing.sources.blob import Blob, Folder, blob_of
from coldstart_fs.indexing.sources.reference import RegistryReference
from coldstart_fs.indexing.sources.skopeo import ConnectionLostError, Skopeo, bytes_below

_TRIES = 3
_PAUSE_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class _StoppedError(Exception):
    """Nobody wants the layers any more."""


class Pull:
    """Copies layers into a layout; what arrived whole is not copied again after a lost connection."""

    def __init__(
        self, skopeo: Skopeo, reference: RegistryReference, layers: list[dict[str, Any]], scratch: Path
    ) -> None:
        self.total_bytes = sum({layer["digest"]: layer["size"] for layer in layers}.values())
        self._skopeo = skopeo
        self._reference = reference
        self._layers = layers
        self._scratch = scratch
        self._folder = scratch / "pulled"
        self._pulled_bytes = 0
        self._tries = 1
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._stopped = threading.Event()
        # not a daemon: an interpreter that ends waits until skopeo's group was ended
        self._thread = threading.Thread(target=self._run, name="pull")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Pull while the block runs; afterwards neither skopeo nor what it copied is there."""
        self._check_room()
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()
            shutil.rmtree(self._folder, ignore_errors=True)

    def blobs(self, progress: Progress) -> Iterator[Blob]:
        """The layers in order, each when it has arrived."""
        files = Folder(self._folder)
        for number, layer in enumerate(self._layers, 1):
            while True:
                ended = self._ended.is_set()  # looked at first: what comes last must be seen
                blob = blob_of(files, layer, "layer")
                if blob is not None:
                    break
                if ended:
                    raise self._error or DataError(
                        f"skopeo did not copy layer {layer['digest']}: {self._reference}"
                    )
                progress(self._describe(number))
                self._ended.wait(_LOOK_SECONDS)
            yield blob

    def _describe(self, number: int) -> str:
        again = f", try {self._tries}" if self._tries > 1 else ""
        return (
            f"pulling layer {number} of {len(self._layers)} "
            f"({self._pulled_bytes / 1e6:.0f} of {self.total_bytes / 1e6:.0f} MB pulled{again})"
        )

    def _run(self) -> None:
        try:
            self._copy()
        except BaseException as error:  # noqa: BLE001 - raised again where the layers are waited for
            self._error = error
        finally:
            self._ended.set()

    def _copy(self) -> None:
        while True:
            try:
                self._skopeo.copy(self._reference, self._folder, self._scratch, self._moved)
            except ConnectionLostError as error:
                if self._tries == _TRIES:
                    error.add(f"{_TRIES} tries")
                    raise
                if self._stopped.wait(_PAUSE_SECONDS * self._tries):
                    return
                self._tries += 1
            else:
                return

    def _moved(self) -> int:
        """How much has arrived; an exception ends skopeo."""
        if self._stopped.is_set():
            raise _StoppedError
        self._pulled_bytes = bytes_below(self._folder)
        return self._pulled_bytes

    def _check_room(self) -> None:
        system = os.statvfs(self._scratch)
        room_bytes = system.f_bavail * system.f_frsize
        if self.total_bytes > room_bytes:
            raise IoFailure(
                f"no room for the layers of {self._reference}: they have {self.total_bytes / 1e6:.0f} MB, "
                f"{room_bytes / 1e6:.0f} MB are free: {self._scratch.parent}",
                hint="choose another `--store`",
            )
