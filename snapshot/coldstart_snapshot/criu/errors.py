"""What error texts of criu mean, the closer reading first. The texts are those of criu 3.16 to 4.2."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorText:
    """A text of criu; `{1}` and `{2}` stand for its groups. Without a hint it is the remedy of the code."""

    pattern: re.Pattern[str]
    code: str
    message: str
    hint: str | None = None


def _text(pattern: str, code: str, message: str, hint: str | None = None) -> ErrorText:
    return ErrorText(re.compile(pattern), code, message, hint)


CATALOGUE: tuple[ErrorText, ...] = (
    _text(
        "Unexpected rt vDSO area bounds",
        "criu-too-old",
        "this criu is too old for this kernel: it cannot read the vDSO of Linux 6.13 and newer",
    ),
    _text(
        r"Can't get 1:(16|34) opt",
        "criu-too-old",
        "this criu is too old for this kernel: it asks sockets for options that Linux 6.16 and newer refuse",
    ),
    _text(
        r"The root process (\d+) is not a session leader",
        "not-session-leader",
        "process {1} is not a session leader",
    ),
    _text(
        r"Can't fork for (\d+): File exists|Pid (\d+) do not match expected"
        r"|Conflict with a dead task with the same PID as of this thread \(virt (\d+)",
        "pid-taken",
        "a process number that the snapshot needs is taken: {1}",
    ),
    _text(
        r"Thread pid mismatch (\d+)/\d+|Unable to create a thread: -?(\d+)",
        "thread-race",
        "the threads of the server could not be created with their old numbers: {1}",
    ),
    _text(
        r"Current [gs]id (\d+) intersects with pid",
        "group-taken",
        "the snapshot needs process number {1}, which is this session's group",
    ),
    _text(
        r"Unknown shit 600 \(anon_inode:\[io_uring\]\)|io_uring",
        "io-uring",
        "the server uses io_uring, which cannot be captured",
    ),
    _text(
        r"send_fds failed \(-22\)|Can't retrieve FDs from socket|Message reply from daemon is trimmed",
        "io-uring",
        "a descriptor cannot be captured, most likely an io_uring ring",
    ),
    _text(
        "Connected TCP socket",
        "tcp-connected",
        "the server has a TCP connection open, and criu was not told to keep it",
    ),
    _text(
        r"In-flight connection \(l\)",
        "tcp-connected",
        "a client connected while the server was captured, and criu was not told to leave it out",
        "dump with `--skip-in-flight`",
    ),
    _text(
        r"inet: Can't bind inet socket .*: Address already in use",
        "port-taken",
        "a TCP port that the snapshot needs is in use on this host",
    ),
    _text(
        r"inet: Can't bind inet socket .*: Cannot assign requested address",
        "address-missing",
        "an address that the snapshot was bound to does not exist on this host",
    ),
    _text(
        r"unix: Can't dump half of stream unix connection|unix: FATAL: Peer \S+ unresolved"
        r"|unix: External socket is used",
        "unix-peer-outside",
        "the server holds a unix socket connection to a process outside the snapshot",
    ),
    _text(
        r"Unsupported proto 262 for socket|to disable MPTCP",
        "socket-family",
        "the server has a socket of a protocol that cannot be captured: MPTCP",
        "set GODEBUG=multipathtcp=0 in the environment of a Go server",
    ),
    _text(
        r"Unknown socket collected \(family (\d+)\)|Unsupported socket family: (\d+)",
        "socket-family",
        "the server has a socket of a family that cannot be captured: {1}",
    ),
    _text(
        r"Unsupported proto (\d+) for socket",
        "socket-family",
        "the server has a socket of a protocol that cannot be captured: {1}",
    ),
    _text(
        r"Can't dump ghost file (.*) of (\d+) size",
        "deleted-file",
        "a deleted file that is still open is too large: {1} ({2} bytes)",
        "close it before the capture, or dump with `--ghost-limit {2}`",
    ),
    _text(
        r"Can't create link remap for (.*)\. Use link-remap|Can't link remap to (.*): File exists",
        "deleted-link",
        "a deleted hard link is still open: {1}",
    ),
    _text(
        r"Can't link (.*) -> .*: No such file",
        "deleted-link",
        "a deleted hard link of the captured server is gone: {1}",
        "capture again with the file closed",
    ),
    _text(
        r"Unresolved lock found pid (\d+)",
        "file-lock",
        "a file lock is held by a process that is not in the snapshot: {1}",
    ),
    _text(
        "Some file locks are hold by dumping tasks",
        "file-lock",
        "the server holds file locks, and criu was not told to keep them",
        "dump and restore with `--file-locks`",
    ),
    _text(
        r"Can ?not set (?:flock|posix lock|ofd lock)",
        "file-lock",
        "a file lock of the server is held by another process",
        "end that process: `/proc/locks` names it",
    ),
    _text(
        r"File (.*) has bad (?:size|build-ID|mode)|(\S+) .*build-?ID doesn't match",
        "file-changed",
        "a file has changed since the capture: {1}",
    ),
    _text(
        r"Open files on overmounted mounts are not supported yet; .* path=(.*)",
        "outside-file",
        "a file is open below a folder that was mounted over since: {1}",
        "mount over it before the server starts",
    ),
    _text(
        r"Can't lookup mount=\d+ for fd=(\d+) path=(/memfd:.*|/secretmem.*)",
        "hugetlb-memfd",
        "descriptor {1} is memory of a kind that cannot be captured: {2}",
    ),
    _text(
        r"Can't lookup mount=\d+ for fd=(\d+) path=(.*)",
        "outside-file",
        "descriptor {1} is open on a file outside the container: {2}",
        "start the server so that its files are opened inside the container",
    ),
    _text(
        r"(\S+) is a fuse mount but not external",
        "fuse-mount",
        "a FUSE file system is mounted inside the container: {1}",
        "bind it from the host, or name it to criu: `--external mnt[{1}]:NAME`",
    ),
    _text(
        r"mnt: .*:(\S+) doesn't have a proper root mount"
        r"|mnt-v2: Can't stat mountpoint (\S+?):"
        r"|mnt-v2: Failed to copy sharing from source (\S+)"
        r"|mnt: FS mnt (\S+) dev .* unsupported",
        "bind-mount",
        "a mount cannot be captured or mounted again: {1}",
    ),
    _text(
        r"mnt-v2: Failed to copy sharing|has unreachable sharing|No parent found for mountpoint"
        r"|A few mount points can't be mounted|mnt: Unable to (?:bind-)?mount"
        r"|mnt-v2: Unable to (?:mount|open)",
        "bind-mount",
        "a mount of the container cannot be captured or mounted again",
    ),
    _text(
        r"Can't dump nested (\w+?)(?:_for_children)? namespace for (\d+)|Can't make (\w+) id",
        "nested-namespace",
        "a process of the server has a namespace of its own: {1}",
    ),
    _text(
        "Can't restore sub-task in NS|Unable to dump more than one netns",
        "nested-namespace",
        "a process of the server had a mount or network namespace of its own",
    ),
    _text(
        r"Can't dump file \d+ of that type \[\d+\] \((?:chr )?195:|/dev/nvidia",
        "gpu-not-suspended",
        "a process still holds the GPU: its CUDA state was not suspended",
    ),
    _text(
        r"Can't dump file (\d+) of that type \[\d+\] \((?:chr )?10:229",
        "fuse-device",
        "the server serves a FUSE file system: descriptor {1}",
    ),
    _text(
        r"Can't dump file (\d+) of that type \[\d+\] \(chr (\d+:\d+)",
        "device",
        "descriptor {1} is of a kind that cannot be captured: chr {2}",
        "close it before the capture: `cat /sys/dev/char/{2}/uevent` names the device",
    ),
    _text(
        r"Can't dump file (\d+) of that type \[\d+\] \((.*)\)",
        "descriptor-kind",
        "descriptor {1} is of a kind that cannot be captured: {2}",
    ),
    _text(
        r"pidfd pid (\d+) is not a part of process tree",
        "pidfd-outside",
        "the server watches a process that is not in the snapshot: {1}",
    ),
    _text(
        r"fsnotify:\s+Can't dump that handle|fsnotify: Can't find suitable path for handle"
        r"|irmap: Failed to resolve",
        "file-watch",
        "the server watches a file whose name criu cannot find",
    ),
    _text(
        r"SysVIPC shmem map @\S+ doesn't live in IPC ns",
        "sysv-shm",
        "the server has System V shared memory, which lives outside of a plain process",
    ),
    _text(
        r"[Dd]ump.*uprobes|allow-uprobes",
        "uprobes",
        "a tracer has placed probes into the server's code",
    ),
    _text(
        r"Unable to connect a transport socket: Permission denied|attr/apparmor/current|SELinux context",
        "security-module",
        "a security module keeps criu from reaching the process",
    ),
    _text(
        r'execvp\("(ip)", \.\.\.\) failed: No such file',
        "program-missing",
        "criu needs a program that is not there: {1}",
        "apt-get install iproute2",
    ),
    _text(
        r'execvp\("(?!ip6?tables|sh")([^"]+)", \.\.\.\) failed: No such file',
        "program-missing",
        "criu needs a program that is not there: {1}",
    ),
    _text(
        "iptables configuration failed|Failed to lock TCP connection|Can't run iptables"
        "|sh exited, status=127|Iptables configuration failed|nftables configuration failed",
        "network-lock",
        "TCP connections cannot be held: neither nftables nor iptables works for criu",
    ),
    _text(
        r"cuda_plugin: (.*)|((?:CHECKPOINT|RESUME)_DEVICES .*failed.*)",
        "cuda-plugin",
        "criu's CUDA plugin could not do its work: {1}",
    ),
    _text(
        r"Missing required plugin: (\S+)",
        "cuda-plugin",
        "the snapshot was made with a plugin of criu that is not here: {1}",
        "install it, and name its folder with `--libdir`",
    ),
    _text("Timeout reached", "timeout", "the processes did not stop in time"),
    _text(
        r"uffd: connect to .* failed|Unable to open a userfaultfd descriptor|lazy-pages: .*connect"
        r"|Lazy pages are not available|UFFD is not supported|lazy-pages.socket",
        "lazy-pages",
        "memory cannot be brought in on demand: the daemon does not run, or userfaultfd is not allowed",
    ),
    _text(
        "Tracking memory is not available",
        "kernel-feature",
        "this kernel does not track changed memory, which a dump in steps needs",
        "dump without `--track-mem` and without pre-dump",
    ),
    _text(
        r"CPU (?:instruction |fpu |)?capabilit\w+ do(?:es)? not match|xsave size mismatch|CPU.*mismatch",
        "cpu-mismatch",
        "this CPU lacks what the snapshot was captured with",
    ),
    _text(
        "Unsupported compact xsave|max xsave frame exceed|Can't set FPU registers|xsave_size",
        "cpu-registers",
        "this criu cannot restore the registers of this CPU",
    ),
    _text(
        "Can't fixup rseq|unsupported RSEQ ABI|has rseq but kernel lacks",
        "rseq",
        "this criu is too old for the server's C library",
    ),
    _text(
        "A session leader of .* is outside of its pid namespace|without the process init",
        "inside-container",
        "the process is inside a container and not its first one",
    ),
    _text(
        r"Dumping seccomp filters not supported|couldn't suspend seccomp|suspending seccomp failed"
        r"|seccomp: .*(?:returned|failed)",
        "seccomp",
        "the server's system call filters could not be read or set",
    ),
    _text(
        r"Unseizable non-zombie (\d+) found",
        "traced",
        "process {1} cannot be stopped: a debugger or tracer is attached to it",
    ),
    _text(
        r"Found dangling tty|tty: .*",
        "terminal",
        "the server has a terminal open",
    ),
    _text(
        "Can't get rlimit|Can't set rlimit",
        "capability-missing",
        "criu may not look at processes of other users: the capability CAP_SYS_RESOURCE is missing",
    ),
    _text("No space left on device", "disk-space", "the disk is full"),
    _text(
        "Unable to freeze cgroup|freezer.*(?:Unable|failed)",
        "freeze",
        "the container's processes could not be frozen",
    ),
    _text(
        r"Can't open file (.*) on restore: No such file",
        "file-missing",
        "a file that the server had open does not exist: {1}",
    ),
    _text(
        r"Unexpected EOF on|Read \d+ bytes while \d+ expected|Can't read pages data|No (\S+) image"
        r"|Can't open (?:dir|file) \S+\.img",
        "images-incomplete",
        "the snapshot's images are incomplete",
    ),
)

# what is only said where no error of the log is told by a text above
VAGUE: tuple[ErrorText, ...] = (
    _text(
        r"Can't open (?:file )?(\S+).*: No such file or directory",
        "file-missing",
        "a file that the snapshot needs does not exist: {1}",
    ),
    _text(
        # Linux tells criu only by a warning that it may not attach
        r"Unable to detach from (\d+): No such process",
        "traced",
        "process {1} cannot be stopped: a debugger or tracer is attached to it",
    ),
    _text("Cannot allocate memory|Not enough memory", "memory", "there is not enough memory"),
    _text(r"cg: (.*)", "cgroup", "control groups cannot be read or made: {1}"),
    _text(r"(.*): (?:Operation not permitted|Permission denied)", "permission", "criu was refused: {1}"),
)
