"""Kernel events of the host: memory, disks, file systems, processes that wait for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coldstart_health.kernel_events import KernelEvent, Kind
from coldstart_health.verdict import HOST, Finding, Verdict

SOURCE = "kernel_log"
# a host that ran out of memory, or waited for a disk, an hour ago may be well again
_RECENT_USEC = 3600 * 1_000_000
_LOOK_AT_DISK = "see `smartctl -a /dev/{disk}`"
Judged = tuple[str, Verdict, str, str]


def host_findings(event: KernelEvent, now_usec: int) -> Iterator[Finding]:
    recent = now_usec - event.last_usec < _RECENT_USEC
    judge = _HOST_EVENTS.get(event.kind)
    if judge is None:
        return
    reason, verdict, meaning, action = judge(event)
    passing = event.kind in {Kind.OOM, Kind.HUNG_TASK}
    yield Finding(
        reason,
        Verdict.OK if passing and not recent else verdict,
        HOST,
        SOURCE,
        f"{meaning} {when(event)}: {event.text}",
        action.format(disk=event.detail),
    )


def _oom(event: KernelEvent) -> Judged:
    if event.detail == "cgroup":
        action = "give the container more memory, or its program less work"
        return "oom_kill_cgroup", Verdict.OK, "a container ran out of its memory", action
    action = "find what took the memory: `journalctl -k | grep -A40 oom-kill`"
    return "oom_kill", Verdict.DEGRADED, "the host ran out of memory and killed a process", action


def _hung(event: KernelEvent) -> Judged:
    if event.detail:
        action = "reboot if it stays: nothing ends a process that waits inside the driver"
        return "driver_hung_task", Verdict.DRAIN, "a process waits inside the GPU driver", action
    return "hung_task", Verdict.DEGRADED, "a process waits for the kernel", "see `cat /proc/pressure/io`"


def _disk(event: KernelEvent) -> Judged:
    return "disk_io_error", Verdict.DEGRADED, f"errors of disk {event.detail}", _LOOK_AT_DISK


def _read_only(event: KernelEvent) -> Judged:
    meaning = f"the file system on {event.detail} was stopped after an error"
    return "disk_stopped", Verdict.DRAIN, meaning, "drain the host, then fsck /dev/{disk}"


def _memory(_: KernelEvent) -> Judged:
    action = "drain the host, and find the module with `ras-mc-ctl --errors` or `ipmitool sel list`"
    return "host_memory_uncorrectable", Verdict.DRAIN, "uncorrectable error of the host's hardware", action


_HOST_EVENTS: dict[Kind, Callable[[KernelEvent], Judged]] = {
    Kind.OOM: _oom,
    Kind.HUNG_TASK: _hung,
    Kind.DISK: _disk,
    Kind.READ_ONLY: _read_only,
    Kind.MEMORY: _memory,
}


def when(event: KernelEvent) -> str:
    """`once, 12 s after boot`; the kernel's own clock, which no time service sets."""
    if not event.last_usec:  # from a file, where every tool prints another clock
        return "once" if event.count == 1 else f"{event.count} times"
    seconds = event.last_usec // 1_000_000
    since = f"{seconds} s" if seconds < 600 else f"{seconds / 3600:.1f} h"
    count = "once" if event.count == 1 else f"{event.count} times, last"
    return f"{count} {since} after boot"
