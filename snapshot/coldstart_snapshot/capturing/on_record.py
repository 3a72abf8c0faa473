"""One capture keeps its record: written before each step, removed when the server is known to be well."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_cli.files import exclusive_lock
from coldstart_cli.process import start_ticks
from coldstart_cli.signals import undisturbed
from coldstart_host.kernel import boot_id
from coldstart_snapshot.answers.serving import prove_serving
from coldstart_snapshot.capturing.guardian import guarded
from coldstart_snapshot.capturing.journal import CaptureRecord, remove_record, write_record
from coldstart_snapshot.containers.target import ContainerTarget, Target, is_same
from coldstart_snapshot.cuda.capturing import GpuCapture
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.kept.manifest import Manifest

_SERVING_SECONDS = 60.0


class CaptureState:
    """What is known of the server and of the snapshot while a capture runs."""

    def __init__(
        self, target: Target, ready_url: str | None, config: Config, engine: EngineSettings | None = None
    ) -> None:
        self._engine = engine
        self._target = target
        self._ready_url = ready_url
        self._config = config
        self._record: CaptureRecord | None = None
        # whether the server is known to be as it was before
        self._proven = False
        self._problem: str | None = None
        self._gpu: GpuCapture | None = None
        self.published = False

    @contextmanager
    def guarded(
        self, manifest: Manifest, gpu: GpuCapture | None, timeout_seconds: float, notes: list[str]
    ) -> Iterator[None]:
        """A guardian watches; what `begin` writes stays unless the server is known to be well at the end."""
        target, config = self._target, self._config
        runc = target.runc if isinstance(target, ContainerTarget) else None
        self._timeout_seconds = timeout_seconds
        self._gpu = gpu
        with guarded(config.run_folder, manifest.name, notes) as guardian_pid:
            self._record = CaptureRecord(
                name=manifest.name,
                variant=manifest.variant,
                created=manifest.created,
                phase="begin",
                boot=boot_id(),
                state_folder=str(config.state_folder),
                staging="",
                server_pid=target.pid,
                server_start_ticks=target.ticks,
                command_pid=os.getpid(),
                command_start_ticks=start_ticks(os.getpid()),
                guardian_pid=guardian_pid,
                container_id=target.container_id if isinstance(target, ContainerTarget) else None,
                runc_program=runc.program if runc is not None else None,
                runc_root=str(runc.state_root) if runc is not None else None,
                cuda_program=config.text("programs.cuda_checkpoint"),
                cuda_backend=config.text("snapshot.cuda_backend"),
                gpu_processes=gpu.pids if gpu is not None else (),
                ready_url=self._ready_url,
                engine=self._engine.document() if self._engine is not None else None,
            )
            try:
                yield
            finally:
                with undisturbed():
                    # a server that is gone cannot be brought back
                    if self._proven or not is_same(target):
                        remove_record(config.run_folder, manifest.name)

    def begin(self, staging: Path) -> None:
        """From here on the capture is on record."""
        assert self._record is not None
        self._record = replace(self._record, staging=str(staging))
        write_record(self._config.run_folder, self._record)

    def entered(self, phase: str) -> None:
        """Say on record what is done now; the server comes before the record, which is no reason to stop."""
        if self._record is None or not self._record.staging:
            return
        deadline = time.monotonic() + self._timeout_seconds
        self._record = replace(self._record, phase=phase, deadline_monotonic=deadline)
        with suppress(ColdstartError):
            write_record(self._config.run_folder, self._record)

    def prove(self) -> str:
        """See that the server serves, and say so; raises when it does not."""
        try:
            sentence = prove_serving(self._target, self._ready_url, _SERVING_SECONDS, self._require_gpu)
        except ColdstartError as error:
            self._problem = error.message
            raise
        self._proven = True
        return sentence

    def _require_gpu(self) -> None:
        if self._gpu is not None:
            self._gpu.client.require_running(self._gpu.pids)

    def in_words(self, cause: str | None = None) -> str:
        """After a failure told as `cause`: what was published, and how the server is."""
        with undisturbed():
            self._proven = False
            result = "the snapshot is published" if self.published else "nothing was published"
            if self._problem is not None and self._problem == cause:
                return f"{result}, and the server does not serve"
            try:
                return f"{result}; {self.prove()}"
            except ColdstartError as error:
                return f"{result}, and the server does not serve: {error.message}"


@contextmanager
def server_lock(run_folder: Path, target: Target) -> Iterator[None]:
    """One capture at a time of a server, whatever the snapshots are called."""
    try:
        with exclusive_lock(run_folder / "locks" / f"server-{target.pid}.lock"):
            yield
    except BusyError as error:
        if error.message.startswith("locked by"):
            error.message = f"{target.label} is being captured already ({error.message})"
            error.hint = "wait for it"
        raise
