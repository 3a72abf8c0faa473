"""One run of a program on a mount of its own, recorded whole: no replay answers for the server."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError, NotFoundError
from coldstart_cli.process import run
from coldstart_fs.format.trace import Trace
from coldstart_fs.mounts.mount import MountRequest, mount_detached, unmount
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.options import TraceOptions

PLACE = "{}"


def record_run(
    request: MountRequest,
    options: TraceOptions,
    command: Sequence[str],
    *,
    writable: bool,
    deadline_seconds: float,
    output: int,
) -> Trace:
    """Mount in a scratch folder, run, unmount, and join the recording with the workload's trace.

    `{}` in the command stands for the mount point. A program that fails, or is not through at the deadline,
    is an error, and leaves the trace as it was.
    """
    with tempfile.TemporaryDirectory(prefix="coldstart-record-") as folder:
        point, state = Path(folder) / "root", Path(folder) / "state"
        point.mkdir()
        traces = replace(
            options, state_folder=str(state), record=True, replay=Mode.OFF, limit_seconds=deadline_seconds
        )
        overlay = Path(folder) / "overlay" if writable else None
        record = mount_detached(
            replace(request, mountpoint=point, overlay=overlay, alone=True, traces=traces)
        )
        try:
            arguments = [part.replace(PLACE, str(point)) for part in command]
            run(arguments, deadline_seconds=deadline_seconds, output=output, purpose=command[0])
        except BaseException:
            with suppress(ColdstartError):
                unmount(point, run_folder=request.run_folder)
            raise
        unmount(point, run_folder=request.run_folder)
        image = bytes.fromhex(record.image.rpartition(":")[2])
        try:
            trace = KeptTraces(state).load(image, options.workload)
        except NotFoundError as error:
            raise ColdstartError(
                f"nothing of the image was read by: {command[0]}",
                hint=f"name the mount point as `{PLACE}` in the command: chroot {PLACE} PROGRAM",
            ) from error
        return KeptTraces(options.state).add(trace)
