"""criu: is it fit for this kernel, which options it gets, and its calls for plain process trees."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import atomic_write
from coldstart_snapshot.criu.program import Criu, privilege_options

LOG_LIMIT_BYTES = 64 << 20
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"

_QUERY_SECONDS = 20.0
_MIB = 1 << 20


class CriuError(ColdstartError):
    """criu failed; the message is what its log means."""


@dataclass(frozen=True)
class DumpOptions:
    """What differs from one capture to the next."""

    network_lock: str
    ghost_limit_bytes: int
    timeout_seconds: int
    external: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The options as lines of a criu configuration file; with `--` before each, as arguments."""
        return (
            "tcp-established",
            "skip-in-flight",
            "file-locks",
            "link-remap",
            f"network-lock {self.network_lock}",
            f"ghost-limit {-(-self.ghost_limit_bytes // _MIB)}M",
            f"timeout {self.timeout_seconds}",
            *(f"external {key}" for key in self.external),
        )


@dataclass(frozen=True)
class RestoreOptions:
    """`inherit` maps the keys of output files to a descriptor of the criu process."""

    inherit: tuple[tuple[int, str], ...] = ()
    lazy: bool = False

    def lines(self) -> tuple[str, ...]:
        return (
            "tcp-established",
            "file-locks",
            "link-remap",
            *(("lazy-pages",) if self.lazy else ()),
            # the log that we hand in is not the file that was dumped, and need not have its permissions
            "skip-file-rwx-check",
            *(f"inherit-fd fd[{descriptor}]:{key}" for descriptor, key in self.inherit),
        )


def dump_process(
    criu: Criu, pid: int, images: Path, work: Path, options: DumpOptions, *, parent: str | None = None
) -> None:
    """Dump a plain process tree and let it go on; a failure leaves it running.

    `parent` leads from the images to those of a dump ahead.
    """
    ahead = ["--track-mem", "--prev-images-dir", parent] if parent is not None else []
    arguments = [criu.program, "dump", "--tree", str(pid), "--leave-running", *ahead]
    _dump(arguments, images, work, options, "criu dump")


def pre_dump_process(criu: Criu, pid: int, images: Path, work: Path, options: DumpOptions) -> None:
    """Dump the memory of a plain process tree, which goes on, and track what it writes from now on."""
    arguments = [criu.program, "pre-dump", "--tree", str(pid), "--track-mem"]
    _dump(arguments, images, work, options, "criu pre-dump")


def _dump(arguments: list[str], images: Path, work: Path, options: DumpOptions, purpose: str) -> None:
    lines = [*arguments, *_common(images, work, DUMP_LOG), *as_arguments(options.lines())]
    _call(lines, work / DUMP_LOG, options.timeout_seconds, purpose)


def restore_process(
    criu: Criu,
    images: Path,
    work: Path,
    options: RestoreOptions,
    *,
    timeout_seconds: float,
    output: int,
    error_output: int,
    once_started: Callable[[], object] = lambda: None,
) -> int:
    """Restore a plain process tree, detached; returns the root's pid."""
    pid_file = work / "pid"
    pid_file.unlink(missing_ok=True)
    arguments = [
        criu.program,
        "restore",
        "--restore-detached",
        "--pidfile",
        str(pid_file),
        *_common(images, work, RESTORE_LOG),
    ]
    _call(
        arguments + as_arguments(options.lines()),
        work / RESTORE_LOG,
        timeout_seconds,
        "criu restore",
        outputs=(output, error_output),
        once_started=once_started,
    )
    return int(pid_file.read_text())


def _common(images: Path, work: Path, log: str) -> list[str]:
    return [
        "--images-dir",
        str(images),
        "--work-dir",
        str(work),
        "--log-file",
        log,
        "-v2",
        "--no-default-config",
        "--manage-cgroups=ignore",
        *privilege_options(),
        "--libdir",
        str(_no_plugins(work)),
    ]


def _no_plugins(work: Path) -> Path:
    """An empty plugin folder: GPU state is ours to handle, not a plugin's that may be there or not."""
    plugins = work / "plugins"
    plugins.mkdir(exist_ok=True)
    return plugins


def as_arguments(lines: Sequence[str]) -> list[str]:
    """Configuration lines as command-line arguments."""
    return [part for line in lines for part in _argument(line)]


def _argument(line: str) -> list[str]:
    name, _, value = line.partition(" ")
    return [f"--{name}", value] if value else [f"--{name}"]


def _call(
    arguments: list[str],
    log: Path,
    timeout_seconds: float,
    purpose: str,
    *,
    outputs: tuple[int | None, int | None] = (None, None),
    once_started: Callable[[], object] = lambda: None,
) -> None:
    try:
        completed = process.run(
            arguments,
            deadline_seconds=timeout_seconds,
            purpose=purpose,
            check=False,
            watched_logs=(log,),
            log_limit_bytes=LOG_LIMIT_BYTES,
            output=outputs[0],
            error_output=outputs[1],
            once_started=once_started,
        )
    except BaseException:
        release_network(log)
        raise
    if completed.status != 0:
        raise failure(purpose, log, completed.error_text or f"status {completed.status}")


def failure(purpose: str, log: Path, otherwise: str) -> CriuError:
    """The error of a failed criu run, told by its log."""
    from coldstart_snapshot.criu.log import UNRECOGNISED, explain_log  # a hundred patterns, for failures only

    explanation = explain_log(log)
    if explanation is None:
        return CriuError(f"{purpose} failed: {otherwise}")
    # without a hint the caller says where the whole log is
    hint = None if explanation.code == UNRECOGNISED else explanation.hint
    return CriuError(f"{purpose} failed: {explanation.message}", hint=hint)


def engine_environment(work: Path, criu: Criu, lines: Sequence[str]) -> dict[str, str]:
    """Make runc use this criu and make that use these options.

    runc 1.2 finds criu on PATH alone, and passes few of its options; criu reads CRIU_CONFIG_FILE also
    when runc drives it. HOME is moved so that no ~/.criu/default.conf changes anything.
    """
    programs = work / "programs"
    programs.mkdir(exist_ok=True)
    link = programs / "criu"
    link.unlink(missing_ok=True)
    link.symlink_to(criu.program)
    configuration = work / "criu.conf"
    configuration.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return {
        "PATH": f"{programs}:{process.search_path()}",
        "CRIU_CONFIG_FILE": str(configuration),
        # no line of the file: criu 4.2 takes no value with a blank there, quoted or not
        "CRIU_LIBS_DIR": str(_no_plugins(work)),
        "HOME": str(work),
    }


def release_network(log: Path) -> None:
    """Let TCP connections go again that a killed criu still held: it had no chance to do so itself."""
    try:
        with log.open("rb") as stream:
            head = stream.read(8192).decode("utf-8", "replace")
    except OSError:
        return
    for run_id in re.findall(r"CRIU run id = ([0-9a-f-]+)", head):
        with suppress(ColdstartError):
            nft = process.find_program("nft")
            tables = process.run([nft, "list", "tables"], deadline_seconds=_QUERY_SECONDS, check=False).text
            # criu cuts the name to what the kernel allows
            for name in re.findall(r"table inet (CRIU-\S+)", tables):
                if f"CRIU-{run_id}".startswith(name):
                    process.run(
                        [nft, "delete", "table", "inet", name], deadline_seconds=_QUERY_SECONDS, check=False
                    )


def kept_log(run_folder: Path, name: str, log: str) -> Path:
    """Where the log of the last failed criu run for a snapshot is kept."""
    return run_folder / "logs" / f"{name}-{log}"


def keep_log(log: Path, kept: Path) -> bool:
    """Keep the end of a failed run's log where people can read it; false when there is none."""
    if not log.exists():
        return False
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - _MIB))
        atomic_write(kept, source.read(_MIB), mode=0o600)
    return True
