"""What a criu log means: the error that matters, in words, with a remedy. The noise is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.process import INSTALL_HINTS

_READ_LIMIT_BYTES = 4 << 20
_LINE = re.compile(
    r"^(?:\([\d.]+\) )?(?:pie: )?\s*(?:\d+: )?(?P<kind>Error|Warn) +\((?P<place>[^)]*)\): (?P<text>.*)$"
)


@dataclass(frozen=True)
class Explanation:
    """One sentence and one remedy; `line` is criu's own."""

    message: str
    hint: str | None
    line: str


@dataclass(frozen=True)
class _Row:
    pattern: re.Pattern[str]
    message: str
    hint: str | None = None


def _row(pattern: str, message: str, hint: str | None = None) -> _Row:
    return _Row(re.compile(pattern), message, hint)


# lines that successful runs have too, and lines that only say that an earlier one happened
_NOISE_PATTERNS = (
    "RLIMIT_NOFILE",
    "Can't get pidfd",
    "binfmt_misc",
    "cg: cgroupd: recv req error",
    "Dumping FAILED",
    "Restoring FAILED",
    r"Dump .*\(pid: \d+\) failed",
    r"Can't dump (task|pstree)",
    r"\d+ (killed|stopped) by signal",
    "exited, status=",
    r"Can't open file .*/\.criu",
    "Failed to wait inprogress tasks",
    "Killing processes because of failure",
    "Can't switch to the parasite",
)
_NOISE = re.compile("|".join(_NOISE_PATTERNS))

_CATALOGUE: tuple[_Row, ...] = (
    _row(
        "Unexpected rt vDSO area bounds",
        "this criu is too old for this kernel: it cannot read the vDSO of Linux 6.13 and newer",
        INSTALL_HINTS["criu"],
    ),
    _row(
        r"Can't get 1:(16|34) opt",
        "this criu is too old for this kernel: it asks sockets for options that Linux 6.16 and newer refuse",
        INSTALL_HINTS["criu"],
    ),
    _row(
        r"The root process (\d+) is not a session leader",
        "process {1} is not a session leader",
        "start the server with `setsid`",
    ),
    _row(
        r"Can't fork for (\d+): File exists|Pid (\d+) do not match expected",
        "a process number that the snapshot needs is taken: {1}",
        "end that process, or capture the server in a container",
    ),
    _row(
        r"Current gid (\d+) intersects with pid",
        "the snapshot needs process number {1}, which is this session's group",
        "restore from another session",
    ),
    _row(
        r"Unknown shit 600 \(anon_inode:\[io_uring\]\)|io_uring",
        "the server uses io_uring, which cannot be captured",
        "set UV_USE_IO_URING=0 in its environment, or kernel.io_uring_disabled=2",
    ),
    _row(
        r"send_fds failed \(-22\)|Can't retrieve FDs from socket",
        "a descriptor cannot be captured, most likely an io_uring ring",
        "set UV_USE_IO_URING=0 in its environment, or kernel.io_uring_disabled=2",
    ),
    _row(
        r"inet: Can't bind inet socket .*: Address already in use",
        "a TCP port that the snapshot needs is in use on this host",
        "`ss -ltnp` shows who listens",
    ),
    _row(
        r"inet: Can't bind inet socket .*: Cannot assign requested address",
        "an address that the snapshot was bound to does not exist on this host",
        "let the server listen on 0.0.0.0 or 127.0.0.1",
    ),
    _row(
        r"unix: Can't dump half of stream unix connection|unix: FATAL: Peer \d+ unresolved",
        "the server holds a unix socket connection to a process outside the snapshot",
        "close that connection before the capture: journal, D-Bus or a metrics agent",
    ),
    _row(
        r"Can't dump ghost file (.*) of (\d+) size",
        "a deleted file that is still open is too large: {1} ({2} bytes)",
    ),
    _row(
        r"Can't create link remap for (.*)\. Use link-remap|Can't link remap to (.*): File exists",
        "a deleted hard link is still open: {1}",
    ),
    _row(
        r"Can't link (.*) -> .*: No such file",
        "a deleted hard link of the captured server is gone: {1}",
        "capture again with the file closed",
    ),
    _row(
        r"Can't open file (.*) on restore: No such file",
        "a file that the server had open does not exist: {1}",
    ),
    _row(
        r"Can't open (?:file )?(\S+).*: No such file or directory",
        "a file that the snapshot needs does not exist: {1}",
    ),
    _row(
        r"File (.*) has bad (?:size|build-ID|mode)|(\S+) .*build-?ID doesn't match",
        "a file has changed since the capture: {1}",
        "restore over the same root file system, or capture again",
    ),
    _row(
        r"Can't lookup mount=\d+ for fd=(\d+) path=(.*)",
        "descriptor {1} is open on a file outside the container: {2}",
        "start the server so that its files are opened inside the container",
    ),
    _row(
        r"mnt: .*:(\S+) doesn't have a proper root mount",
        "a bind mount cannot be captured: {1}",
    ),
    _row(
        r"(\S+) is a fuse mount but not external", "a FUSE file system is mounted inside the container: {1}"
    ),
    _row(
        r"Can't dump file \d+ of that type \[\d+\] \((?:chr )?195:|/dev/nvidia",
        "a process still holds the GPU: its CUDA state was not suspended",
        "use `spawn`, not `fork`, for worker processes, and close NVML before the capture",
    ),
    _row(
        r"Can't dump file (\d+) of that type \[\d+\] \((.*)\)",
        "descriptor {1} is of a kind that cannot be captured: {2}",
    ),
    _row(
        r"Unknown socket collected \(family (\d+)\)",
        "the server has a socket of a family that cannot be captured: {1}",
    ),
    _row(
        "Unable to connect a transport socket: Permission denied",
        "a security module keeps criu from reaching the process",
        "put the AppArmor or SELinux profile of the process into complain mode",
    ),
    _row(
        "iptables configuration failed|Failed to lock TCP connection|Can't run iptables",
        "TCP connections cannot be held: neither nftables nor iptables works for criu",
        "apt-get install nftables",
    ),
    _row(
        "Some file locks are hold by dumping tasks",
        "the server holds file locks",
    ),
    _row("Timeout reached", "the processes did not stop in time"),
    _row(
        r"Unexpected EOF on|Read \d+ bytes while \d+ expected|Can't read pages data|No (\S+) image",
        "the snapshot's images are incomplete",
        "coldstart snap verify NAME",
    ),
    _row(
        "Unsupported compact xsave|max xsave frame exceed|Can't set FPU registers|xsave_size",
        "this criu cannot restore the registers of this CPU",
        INSTALL_HINTS["criu"],
    ),
    _row(
        "Can't fixup rseq|unsupported RSEQ ABI",
        "this criu is too old for the server's C library",
        INSTALL_HINTS["criu"],
    ),
    _row(
        "A session leader of .* is outside of its pid namespace|without the process init",
        "the process is inside a container and not its first one",
        "capture the container: `coldstart snap create NAME --container ID`",
    ),
    _row(
        r"tty: .*|Found dangling tty",
        "the server has a terminal open",
        "start it with its input and output in files: `setsid COMMAND </dev/null >LOG 2>&1`",
    ),
    _row(
        "Can't get rlimit",
        "criu may not look at processes of other users: the capability CAP_SYS_RESOURCE is missing",
        "run coldstart as root with all capabilities",
    ),
    _row("No space left on device", "the disk is full"),
    _row("Unable to freeze cgroup", "the container's processes could not be frozen"),
)


def explain_log(log: Path) -> Explanation | None:
    """The error that matters in a criu log; None where there is no log or no error in it."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _READ_LIMIT_BYTES))
            text = stream.read(_READ_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return explain_text(text)


def explain_text(text: str) -> Explanation | None:
    """The first error that has a meaning here, else the last one that is no noise."""
    errors = [
        match["text"]
        for line in text.splitlines()
        if (match := _LINE.match(line)) and match["kind"] == "Error"
    ]
    meaningful = [error for error in errors if not _NOISE.search(error)]
    for error in meaningful:
        for row in _CATALOGUE:
            if match := row.pattern.search(error):
                return Explanation(_fill(row.message, match), row.hint, error)
    if meaningful:
        return Explanation(f"criu: {meaningful[-1]}", None, meaningful[-1])
    return None


def _fill(message: str, match: re.Match[str]) -> str:
    """Put the groups in; where alternatives have groups of their own, the ones that matched come first."""
    groups = [group for group in match.groups() if group is not None]
    for number in (1, 2):
        value = groups[number - 1] if number <= len(groups) else "?"
        message = message.replace(f"{{{number}}}", value)
    return message
