"""Commands of the operator's: run inside the container, or on the host beside a plain process.

Their environment, besides the server's own PATH: COLDSTART_SNAPSHOT, COLDSTART_PID (of the server's first
process, as the command sees it), COLDSTART_PHASE (`quiesce`, `resume` after a capture, `restore`),
COLDSTART_WEIGHTS (`keep`, `park`, `drop`) and COLDSTART_CONTAINER (where there is one).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from coldstart_cli import process
from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.containers.container_commands import run_inside
from coldstart_snapshot.containers.runc import Runc, running_container
from coldstart_snapshot.engines.engine import EngineError, Quiesced, Served
from coldstart_snapshot.engines.settings import EngineSettings

_SHOWN_CHARACTERS = 300


class CommandEngine:
    def __init__(self, settings: EngineSettings, served: Served) -> None:
        self._settings = settings
        self._served = served

    def quiesce(self, releasing: Callable[[], None]) -> Quiesced:
        releasing()
        self._run(self._settings.quiesce, "quiesce")
        return Quiesced(f"quiesced by {self._settings.quiesce[0]}")

    def undo(self, *, released: bool, late: bool) -> str:
        del released, late
        return self.resume(restored=False)

    def resume(self, *, restored: bool) -> str:
        if not self._settings.resume:
            return "nothing to run"
        self._run(self._settings.resume, "restore" if restored else "resume")
        return f"resumed by {self._settings.resume[0]}"

    def _run(self, command: Sequence[str], phase: str) -> None:
        served, seconds = self._served, self._settings.timeout_seconds
        variables = {
            "COLDSTART_SNAPSHOT": served.snapshot,
            "COLDSTART_PHASE": phase,
            "COLDSTART_WEIGHTS": self._settings.weights,
        }
        try:
            if served.container_id is None or served.runc_root is None:
                variables["COLDSTART_PID"] = str(served.pid)
                done = process.run(
                    command,
                    deadline_seconds=seconds,
                    purpose=f"engine {phase}",
                    check=False,
                    environment={**os.environ, **variables},
                )
            else:
                # in there the server's first process is the namespace's
                variables |= {"COLDSTART_PID": "1", "COLDSTART_CONTAINER": served.container_id}
                runc = Runc.find(served.runc, served.runc_root)
                bundle = running_container(runc, served.container_id).bundle
                done = run_inside(
                    runc, served.container_id, bundle, command, variables, timeout_seconds=seconds
                )
        except ColdstartError as error:
            raise EngineError(f"engine command failed: {command[0]}: {error.message}") from error
        if done.status != 0:
            words = (done.error_text or done.text).strip()[-_SHOWN_CHARACTERS:]
            raise EngineError(
                f"engine command failed: {command[0]}: status {done.status}: {words}".rstrip(": ")
            )
