"""runc, the container engine: each of its commands that we use, bounded, with errors in words."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli import process
from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError, UsageError, near_matches_hint
from coldstart_snapshot.criu.calls import (
    DUMP_LOG,
    LOG_LIMIT_BYTES,
    RESTORE_LOG,
    DumpOptions,
    engine_environment,
    failure,
    release_network,
)
from coldstart_snapshot.criu.program import Criu

_CALL_SECONDS = 30.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.01
_OUTPUT_BYTES = 64 << 10
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")


class RuncError(ColdstartError):
    """runc failed; the message is its own."""


@dataclass(frozen=True)
class ContainerState:
    """What runc knows of one container; `root` is its root file system on the host."""

    id: str
    pid: int
    status: str
    bundle: Path
    root: Path


@dataclass(frozen=True)
class Runc:
    """One runc program with one folder for its state."""

    program: str
    state_root: Path

    @classmethod
    def find(cls, configured: str | None, state_root: Path) -> Runc:
        return cls(process.find_program("runc", configured), state_root)

    def version(self) -> str:
        text = process.run([self.program, "--version"], deadline_seconds=_CALL_SECONDS).text
        match = re.search(r"^runc version (\S+)", text, re.MULTILINE)
        return match[1] if match else "unknown"

    def state(self, container_id: str) -> ContainerState | None:
        """The container's state; None when runc knows no such container."""
        check_container_id(container_id)
        if not (self.state_root / container_id).is_dir():
            return None
        completed = self._plain("state", container_id, check=False)
        if completed.status != 0:
            if "does not exist" in completed.error_text:
                return None
            raise RuncError(f"cannot read the state of container {container_id}: {completed.error_text}")
        fields: dict[str, Any] = json.loads(completed.stdout)
        return ContainerState(
            id=fields["id"],
            pid=int(fields["pid"]),
            status=fields["status"],
            bundle=Path(fields["bundle"]),
            root=Path(fields["rootfs"]),
        )

    def container_ids(self) -> tuple[str, ...]:
        """The containers of this state folder."""
        with suppress(OSError):
            return tuple(sorted(entry.name for entry in os.scandir(self.state_root) if entry.is_dir()))
        return ()

    def pids(self, container_id: str) -> tuple[int, ...]:
        """Every process in the container's cgroup."""
        return tuple(json.loads(self._plain("ps", "--format", "json", container_id).stdout) or ())

    def start(
        self,
        container_id: str,
        bundle: Path,
        *,
        output: int,
        before_start: Callable[[int], None] | None = None,
    ) -> int:
        """Start the bundle detached, its output in `output`; returns the pid of its first process.

        `before_start` gets that pid while the process waits to become the container's program.
        """
        check_container_id(container_id)
        self.state_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        pid_file = bundle / "pid"
        verb = ["run", "--detach"] if before_start is None else ["create"]
        self._logged(
            [*verb, "--bundle", str(bundle), "--pid-file", str(pid_file), container_id],
            bundle,
            f"starting container {container_id}",
            outputs=(output, output),
        )
        pid = int(pid_file.read_text())
        if before_start is not None:
            before_start(pid)
            self._plain("start", container_id)
        return pid

    def pause(self, container_id: str) -> None:
        self._plain("pause", container_id)

    def resume(self, container_id: str) -> None:
        self._plain("resume", container_id)

    def checkpoint(
        self,
        container_id: str,
        images: Path,
        work: Path,
        criu: Criu,
        options: DumpOptions,
        *,
        extra: Sequence[str] = (),
    ) -> None:
        """Dump the container and let it be what it was before, running or paused."""
        flags = ["--leave-running", "--tcp-established", "--file-locks", *extra]
        folders = ["--image-path", str(images), "--work-path", str(work)]
        self._criu(
            ["checkpoint", *flags, *folders, container_id],
            work,
            criu,
            options.lines(),
            log=work / DUMP_LOG,
            purpose="capture",
            timeout_seconds=options.timeout_seconds,
        )

    def restore(
        self,
        container_id: str,
        bundle: Path,
        images: Path,
        work: Path,
        criu: Criu,
        lines: Sequence[str],
        *,
        output: int,
        error_output: int,
        timeout_seconds: float,
        once_started: Callable[[], object] = lambda: None,
    ) -> int:
        """Restore a container, detached; returns the pid of its first process."""
        check_container_id(container_id)
        self.state_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        pid_file = bundle / "pid"
        options = ["--detach", "--tcp-established", "--file-locks"]
        # said to runc too: it overrules criu's configuration by what it was told itself
        options += ["--lazy-pages"] if "lazy-pages" in lines else []
        # runc changes into the bundle: every path is absolute
        folders = ["--bundle", str(bundle), "--image-path", str(images), "--work-path", str(work)]
        self._criu(
            ["restore", *options, *folders, "--pid-file", str(pid_file), container_id],
            work,
            criu,
            lines,
            log=work / RESTORE_LOG,
            purpose="restore",
            timeout_seconds=timeout_seconds,
            outputs=(output, error_output),
            once_started=once_started,
        )
        return int(pid_file.read_text())

    def execute(self, container_id: str, description: Path, *, timeout_seconds: float) -> process.Completed:
        """Run a process in a container to its end, as an OCI process description says."""
        return process.run(
            [
                self.program,
                "--root",
                str(self.state_root),
                "exec",
                "--process",
                str(description),
                container_id,
            ],
            deadline_seconds=timeout_seconds,
            purpose=f"command in container {container_id}",
            check=False,
            output_limit_bytes=_OUTPUT_BYTES,
        )

    def kill_and_delete(self, container_id: str) -> None:
        """End every process of the container through its cgroup, then forget it; absent is fine."""
        if self.state(container_id) is None:
            return
        # frozen processes do not die
        self._plain("resume", container_id, check=False)
        self._plain("kill", "--all", container_id, "KILL", check=False)
        deadline = time.monotonic() + _STOP_SECONDS
        while (state := self.state(container_id)) is not None and state.status != "stopped":
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        completed = self._plain("delete", "--force", container_id, check=False)
        if self.state(container_id) is not None:
            raise BusyError(
                f"container does not end: {container_id}: {completed.error_text or 'it is still there'}",
                hint=f"{self.program} --root {self.state_root} delete --force {container_id}",
            )

    def _plain(self, verb: str, *arguments: str, check: bool = True) -> process.Completed:
        completed = process.run(
            [self.program, "--root", str(self.state_root), verb, *arguments],
            deadline_seconds=_CALL_SECONDS,
            purpose=f"runc {verb}",
            check=False,
        )
        if check and completed.status != 0:
            raise RuncError(f"runc {verb} failed: {_message(completed.error_text)}")
        return completed

    def _logged(
        self,
        arguments: Sequence[str],
        folder: Path,
        purpose: str,
        *,
        outputs: tuple[int | None, int | None],
        environment: dict[str, str] | None = None,
        timeout_seconds: float = _CALL_SECONDS,
        watched: tuple[Path, ...] = (),
        once_started: Callable[[], object] = lambda: None,
    ) -> None:
        """Run runc with its messages in a file: its own output belongs to the container."""
        log = folder / "runc.log"
        log.unlink(missing_ok=True)
        completed = process.run(
            [
                self.program,
                "--root",
                str(self.state_root),
                "--log",
                str(log),
                "--log-format",
                "json",
                *arguments,
            ],
            deadline_seconds=timeout_seconds,
            purpose=purpose,
            check=False,
            environment=environment,
            output=outputs[0],
            error_output=outputs[1],
            watched_logs=watched,
            log_limit_bytes=LOG_LIMIT_BYTES,
            once_started=once_started,
        )
        if completed.status != 0:
            raise RuncError(f"{purpose} failed: {_last_message(log) or completed.error_text or 'no message'}")

    def _criu(
        self,
        arguments: Sequence[str],
        work: Path,
        criu: Criu,
        lines: Sequence[str],
        *,
        log: Path,
        purpose: str,
        timeout_seconds: float,
        outputs: tuple[int | None, int | None] = (None, None),
        once_started: Callable[[], object] = lambda: None,
    ) -> None:
        environment = engine_environment(work, criu, lines)
        try:
            self._logged(
                arguments,
                work,
                purpose,
                outputs=outputs,
                environment=environment,
                timeout_seconds=timeout_seconds,
                watched=(log,),
                once_started=once_started,
            )
        except RuncError as error:
            if "criu failed" not in error.message:
                raise
            raise failure(purpose, log, error.message) from error
        except BaseException:
            release_network(log)
            raise


def check_container_id(container_id: str) -> None:
    """Refuse what runc would not take, before it becomes a path."""
    if not _ID.fullmatch(container_id):
        raise UsageError(
            f"invalid container id: {container_id!r}", hint="letters, digits, `_`, `.`, `+`, `-`; at most 128"
        )


def running_container(runc: Runc, container_id: str) -> ContainerState:
    """The state of a container that runs; refused by name when it does not."""
    state = runc.state(container_id)
    if state is None:
        ids = runc.container_ids()
        otherwise = f"look for it elsewhere with `--runc-root`; here is {', '.join(ids) or 'none'}"
        hint = near_matches_hint(container_id, ids, otherwise=otherwise)
        raise NotFoundError(f"no such container in {runc.state_root}: {container_id}", hint=hint)
    if state.status == "paused":
        hint = f"{runc.program} --root {runc.state_root} resume {container_id}"
        raise BusyError(f"container is paused: {container_id}", hint=hint)
    if state.status != "running":
        raise BusyError(f"container does not run: {container_id} is {state.status}")
    return state


def _last_message(log: Path) -> str | None:
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            if record["level"] in {"error", "fatal"}:
                return str(record["msg"]).replace("\n", "; ")
    return None


def _message(text: str) -> str:
    """The `msg` of runc's text log format, or the text."""
    match = re.search(r'level=error msg="((?:[^"\\]|\\.)*)"', text)
    return match[1] if match else text
