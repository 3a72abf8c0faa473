"""The one place that runs external programs: deadline, own process group, bounded output and logs."""

from __future__ import annotations

import os
import select
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError

if TYPE_CHECKING:
    from coldstart_cli.origin import Origin

_OUTPUT_LIMIT_BYTES = 8 << 20
_LOG_LIMIT_BYTES = 16 << 20
_TAIL_LINES = 6
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # between two looks at how far a program is
_TERM_GRACE_SECONDS = 2.0
_KILL_WAIT_SECONDS = 10.0
# an operator's PATH often lacks sbin, where criu and runc live
_EXTRA_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# a program that was started and goes on
Program = subprocess.Popen[bytes]

INSTALL_HINTS: dict[str, str] = {
    "criu": "run `make setup`, or install criu 4.2 or newer and name it in `programs.criu`",
    "runc": "apt-get install --no-install-recommends runc",
    "minisign": "apt-get install --no-install-recommends minisign",
    "skopeo": "apt-get install --no-install-recommends skopeo",
    "fusermount3": "apt-get install --no-install-recommends fuse3",
    "ip": "apt-get install --no-install-recommends iproute2",
    "nsenter": "apt-get install --no-install-recommends util-linux",
    "setpriv": "apt-get install --no-install-recommends util-linux",
    "dcgmi": "install NVIDIA DCGM (package `datacenter-gpu-manager-4-core`)",
    "cuda-checkpoint": "install `cuda-checkpoint` from NVIDIA, driver 555 or newer, and put it on PATH",
}


class ProgramFailedError(ColdstartError):
    """An external program ended with a status we did not ask for; `completed` has the details."""

    def __init__(self, message: str, completed: Completed, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.completed = completed


class ProgramTimeoutError(BusyError):
    """An external program passed its deadline or its log limit and was killed; `stdout` is what it said."""

    def __init__(self, message: str, *, stdout: bytes = b"") -> None:
        super().__init__(message)
        self.stdout = stdout


@dataclass(frozen=True)
class Completed:
    """What a program left: exit status (128+N after signal N), output up to the limit, run time."""

    arguments: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    duration_seconds: float
    truncated: bool

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """The last meaningful lines of stderr, or of stdout where stderr is empty."""
        return last_lines(self.stderr) or last_lines(self.stdout)


def search_path() -> str:
    """Where programs are looked for, also by those that we start: criu unpacks with `tar`."""
    parts = (*os.environ.get("PATH", "").split(os.pathsep), *_EXTRA_PATH)
    return os.pathsep.join(dict.fromkeys(filter(None, parts)))


def rounded(seconds: float) -> str:
    """A deadline for a message: what is left of one may be 3.99999 s."""
    return f"{round(seconds, 1 if seconds >= 1 else 3):g}"


def find_program(name: str, configured: str | None = None) -> str:
    """Absolute path of a program: as configured, else on PATH or in the usual system folders."""
    wanted = configured or name
    if (found := shutil.which(wanted, path=search_path())) is None:
        raise UnavailableError(f"program is not installed: {wanted}", hint=INSTALL_HINTS.get(name))
    return os.path.abspath(found)


def is_installed(name: str, configured: str | None = None) -> bool:
    """Whether `find_program` finds it."""
    return shutil.which(configured or name, path=search_path()) is not None


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    deadline_seconds: float,
    activity: Callable[[], object] | None = None,
    purpose: str | None = None,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
    stdin: bytes | None = None,
    output_limit_bytes: int = _OUTPUT_LIMIT_BYTES,
    watched_logs: Iterable[Path] = (),
    log_limit_bytes: int = _LOG_LIMIT_BYTES,
    pass_descriptors: Sequence[int] = (),
    output: int | None = None,
    error_output: int | None = None,
    grace_seconds: float = _TERM_GRACE_SECONDS,
    kill_wait_seconds: float = _KILL_WAIT_SECONDS,
    once_started: Callable[[], object] = lambda: None,
) -> Completed:
    """Run a program to its end, or kill its whole process group at the deadline.

    Where `activity` is given, the deadline counts from the last change of what it returns: a transfer
    may take hours as long as it moves.
    `watched_logs` are files the program itself writes: when one passes `log_limit_bytes` the program
    is killed (criu 4.2 writes gigabytes when a pages image is truncated). Output past
    `output_limit_bytes` is read and dropped. With `check`, a non-zero status raises `ProgramFailedError`.
    `output` is a descriptor that takes stdout and stderr instead of us: what the program starts keeps it;
    `error_output` is another one for stderr.
    `grace_seconds` is what the program gets between TERM and KILL, `kill_wait_seconds` what KILL gets to act.
    `once_started` is called while the program works; what it raises ends the program.
    """
    command = tuple(os.fspath(argument) for argument in arguments)
    name = os.path.basename(command[0])
    started = time.monotonic()
    errors = error_output if error_output is not None else output
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE if errors is None else errors,
            env=child_environment(environment),
            cwd=working_directory,
            start_new_session=True,
            pass_fds=tuple(pass_descriptors),
        )
    except OSError as error:
        raise _not_started(command[0], error) from error
    pump = _Pump(child, stdin, output_limit_bytes)
    logs = tuple(watched_logs)
    moved = looked = started
    seen: object = None
    try:
        once_started()
        while not pump.step():
            now = time.monotonic()
            if activity is not None and now - looked >= _LOOK_SECONDS:
                looked = now
                if (found := activity()) != seen:
                    moved, seen = now, found
            if now - moved > deadline_seconds:
                what = "no progress for" if activity else "no end after"
                raise ProgramTimeoutError(
                    f"{purpose or name}: {what} {rounded(deadline_seconds)} s, killed",
                    stdout=bytes(pump.stdout),
                )
            if log := _oversized(logs, log_limit_bytes):
                raise ProgramTimeoutError(
                    f"{purpose or name}: log passed {log_limit_bytes} bytes, killed: {log}"
                )
        status = child.returncode
    finally:
        kill_group(child, grace_seconds=grace_seconds, kill_wait_seconds=kill_wait_seconds)
        pump.close()
    completed = Completed(
        arguments=command,
        status=status if status >= 0 else 128 - status,
        stdout=bytes(pump.stdout),
        stderr=bytes(pump.stderr),
        duration_seconds=time.monotonic() - started,
        truncated=pump.truncated,
    )
    if check and completed.status != 0:
        detail = completed.error_text
        message = f"{purpose or name} failed (status {completed.status})" + (f": {detail}" if detail else "")
        raise ProgramFailedError(message, completed)
    return completed


def start(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    log: IO[bytes] | int,
    environment: Mapping[str, str] | None = None,
    pass_descriptors: Sequence[int] = (),
    standard_input: int = subprocess.DEVNULL,
    working_directory: Path | None = None,
    as_it_was: Origin | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that outlives this call, in its own session, with all output in `log`."""
    from coldstart_cli.origin import Origin

    command = [os.fspath(argument) for argument in arguments]
    origin = as_it_was or Origin()
    try:
        return subprocess.Popen(
            command,
            executable=origin.executable,
            stdin=standard_input,
            cwd=working_directory,
            stdout=log,
            stderr=log,
            env=child_environment(environment) if as_it_was is None else environment,
            user=origin.uid,
            group=origin.gid,
            extra_groups=origin.groups,
            umask=origin.umask,
            start_new_session=True,
            pass_fds=tuple(pass_descriptors),
        )
    except OSError as error:
        raise _not_started(origin.executable or command[0], error) from error


def start_piped(arguments: Sequence[str | os.PathLike[str]]) -> Program:
    """Start a program to talk with over pipes, in its own session; `kill_group` ends it."""
    command = [os.fspath(argument) for argument in arguments]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(command[0], error) from error


def _not_started(program: str, error: OSError) -> UnavailableError:
    if isinstance(error, FileNotFoundError) and error.filename in {None, program}:
        hint = INSTALL_HINTS.get(os.path.basename(program))
        return UnavailableError(f"program is not installed: {program}", hint=hint)
    # a missing working directory comes as the file name of the same error
    where = f" in {error.filename}" if error.filename not in {None, program} else ""
    return UnavailableError(f"program cannot be executed{where}: {program}: {error.strerror}")


def kill_group(
    child: subprocess.Popen[bytes],
    *,
    grace_seconds: float = _TERM_GRACE_SECONDS,
    kill_wait_seconds: float = _KILL_WAIT_SECONDS,
) -> None:
    """End what is left of a child's process group: TERM, a short grace, KILL. Idempotent."""
    group = child.pid  # start_new_session makes the child its group's leader
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=grace_seconds)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    try:
        child.wait(timeout=kill_wait_seconds)
    except subprocess.TimeoutExpired:
        # in uninterruptible sleep, as behind a hung GPU driver: KILL acts when the kernel lets go of it,
        # which may be never; setting the status keeps Popen from waiting for it or complaining about it
        child.returncode = -signal.SIGKILL


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with a C locale, so that messages can be recognised, and a PATH for all."""
    # a notify socket is ours alone; a child that inherits it could declare us ready
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    return environment | {"LC_ALL": "C.UTF-8", "PATH": search_path(), **(extra or {})}


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; with the pid it names one process. 0: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return 0 if state in {"Z", "X"} else int(rest[18])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, as by SIGSTOP: it does nothing until it is continued."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "T"  # "t" comes and goes under strace


def last_lines(output: bytes, count: int = _TAIL_LINES) -> str:
    """The last `count` non-empty lines, joined with '; '."""
    lines = [line.strip() for line in output[-16384:].decode("utf-8", "replace").splitlines()]
    return "; ".join([line for line in lines if line][-count:])


def _oversized(logs: tuple[Path, ...], limit_bytes: int) -> Path | None:
    for log in logs:
        with suppress(OSError):
            if log.stat().st_size > limit_bytes:
                return log
    return None


class _Pump:
    """Moves bytes between us and the child without ever blocking longer than a tick."""

    def __init__(self, child: subprocess.Popen[bytes], stdin: bytes | None, limit_bytes: int) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.truncated = False
        self._child = child
        self._limit_bytes = limit_bytes
        self._pending = memoryview(stdin or b"")
        self._selector = selectors.DefaultSelector()
        for stream, sink in ((child.stdout, self.stdout), (child.stderr, self.stderr)):
            if stream is not None:
                self._selector.register(stream, selectors.EVENT_READ, sink)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            self._selector.register(child.stdin, selectors.EVENT_WRITE, None)
        self._end = os.pidfd_open(child.pid)

    def step(self) -> bool:
        """Handle what is ready; return True when the child has ended and its output is drained."""
        ended = self._child.poll() is not None
        # a grandchild that kept the pipe open must not hold us once the child itself has ended
        timeout = 0.0 if ended else _TICK_SECONDS
        events = self._selector.select(timeout) if self._selector.get_map() else []
        if not self._selector.get_map() and not ended:
            # Popen.wait polls with growing pauses; a pidfd tells at once
            select.select([self._end], [], [], _TICK_SECONDS)
        for key, _ in events:
            stream = key.fileobj
            assert not isinstance(stream, int)
            if key.data is None:
                self._feed(stream)
            else:
                self._drain(stream, key.data)
        return ended and not events

    def _drain(self, stream: object, sink: bytearray) -> None:
        descriptor = stream.fileno()  # type: ignore[attr-defined]
        data = os.read(descriptor, 65536)
        if not data:
            self._selector.unregister(descriptor)
            return
        if sink is self.stderr:
            sink += data
            if len(sink) > self._limit_bytes:  # the end of stderr is what explains a failure
                del sink[: len(sink) - self._limit_bytes]
                self.truncated = True
        else:
            room = self._limit_bytes - len(sink)
            sink += data[:room]
            self.truncated = self.truncated or len(data) > room

    def _feed(self, stream: object) -> None:
        assert self._child.stdin is not None
        try:
            written = os.write(self._child.stdin.fileno(), self._pending[:65536])
            self._pending = self._pending[written:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._pending = self._pending[:0]
        if not self._pending:
            self._selector.unregister(stream)  # type: ignore[arg-type]
            self._child.stdin.close()

    def close(self) -> None:
        self._selector.close()
        os.close(self._end)
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
