"""Host pressure, file systems and clock turned into findings. A busy CPU warns and never takes a host out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from coldstart_health.evidence import Limits
from coldstart_health.pressure import IO_STALL_PERCENT, MEMORY_STALL_PERCENT, DiskUse, HostPressure
from coldstart_health.samples import Level, Sample, level
from coldstart_health.verdict import HOST, Finding, Verdict
from coldstart_host.clock import ClockFacts

_SOURCE = "pressure"
_JUMP_SECONDS = 5.0
_MAX_ERROR_SECONDS = 1.0


def levels(pressure: HostPressure, limits: Limits, previous: Sample | None = None) -> dict[str, Level]:
    """The verdict on each figure with a threshold, and what the next run needs to know of it."""
    before: Mapping[str, Level] = previous.levels if previous else {}
    return {
        key: Level(percent, level(percent, before.get(key), limits.warn_percent, limits.fail_percent))
        for key, percent in pressure.percents.items()
    }


def pressure_findings(
    pressure: HostPressure, limits: Limits, previous: Sample | None = None
) -> Iterator[Finding]:
    """Nothing where all is well; at `warn_percent` degraded, at `fail_percent` out."""
    now = levels(pressure, limits, previous)
    warn = limits.warn_percent
    # a short sample alone would blame the host for the command that is just starting
    if pressure.cpu_percent >= warn and pressure.load_per_cpu * 100 >= warn:
        evidence = f"CPU {pressure.cpu_percent:.0f} % busy, load {pressure.load_per_cpu:.1f} per CPU"
        yield _found("cpu_busy", Verdict.DEGRADED, evidence, "find the load with `top`")
    if verdict := now["memory"].verdict:
        yield _found("memory_short", verdict, _memory(pressure), "see `ps --sort -rss aux | head`")
    for disk in pressure.disks:
        yield from _disk(disk, now)
    stall = pressure.memory_stall_percent
    if stall is not None and stall > MEMORY_STALL_PERCENT:
        evidence = f"all tasks waited for memory {stall:.0f} % of the last 10 s"
        yield _found("memory_stall", Verdict.DEGRADED, evidence, "free memory, or move load away")
    stall = pressure.io_stall_percent
    if stall is not None and stall > IO_STALL_PERCENT:
        evidence = f"all tasks waited for I/O {stall:.0f} % of the last 10 s"
        yield _found("io_stall", Verdict.DEGRADED, evidence, "find the I/O with `cat /proc/pressure/io`")


def pressure_line(pressure: HostPressure) -> str:
    """The figures of a host that is well."""
    disks = ", ".join(f"{disk.path} {disk.used_percent:.0f} %" for disk in pressure.disks if not disk.problem)
    return (
        f"CPU {pressure.cpu_percent:.0f} %, memory {pressure.memory_percent:.0f} % of "
        f"{_size(_memory_limit(pressure))}, disk {disks}"
    )


def _memory_limit(pressure: HostPressure) -> int:
    own = pressure.cgroup.memory_limit_bytes if pressure.cgroup else None
    return min(own or pressure.memory_total_bytes, pressure.memory_total_bytes)


def _memory(pressure: HostPressure) -> str:
    own = pressure.cgroup
    percent = f"memory {pressure.memory_percent:.0f} % used"
    if own and own.memory_limit_bytes and own.memory_used_bytes is not None:
        left = max(own.memory_limit_bytes - own.memory_used_bytes, 0)
        if left < pressure.memory_available_bytes:
            return f"{percent}, {_size(left)} left of the container's {_size(own.memory_limit_bytes)}"
    return f"{percent}, {_size(pressure.memory_available_bytes)} available"


def _disk(disk: DiskUse, now: Mapping[str, Level]) -> Iterator[Finding]:
    if disk.problem:
        evidence = f"disk behind {disk.path} cannot be read: {disk.problem}"
        yield _found("disk_unreadable", Verdict.UNKNOWN, evidence, f"stat -f {disk.path}")
        return
    if verdict := now[f"disk {disk.path}"].verdict:
        evidence = f"disk of {disk.path} {disk.used_percent:.0f} % full, {_size(disk.free_bytes)} free"
        yield _found("disk_full", verdict, evidence, f"find what fills it with `du -xhd1 {disk.path}`")
    if verdict := now[f"inodes {disk.path}"].verdict:
        evidence = f"disk of {disk.path}: {disk.inodes_percent:.0f} % of the inodes in use"
        action = f"find small files with `du --inodes -xd1 {disk.path}`"
        yield _found("inodes_short", verdict, evidence, action)
    yield from _mount(disk)


def _mount(disk: DiskUse) -> Iterator[Finding]:
    mount = disk.mount
    if mount is None:
        return
    if mount.stopped_by_kernel:
        # the mount asks for writing and the file system refuses: the kernel saw errors and stopped it
        evidence = f"the kernel made {mount.device} at {mount.point} read-only"
        action = f"see `dmesg | grep -i {Path(mount.device).name}`, replace the disk or run fsck"
        yield _found("disk_stopped", Verdict.DRAIN, evidence, action)
    elif mount.read_only and disk.path != Path("/"):
        evidence = f"{mount.point}, which holds {disk.path}, is mounted read-only"
        yield _found("disk_read_only", Verdict.DEGRADED, evidence, f"mount -o remount,rw {mount.point}")
    if mount.errors:
        evidence = f"{mount.device} at {mount.point}: {mount.errors} file system errors since its last repair"
        action = f"run `e2fsck -f {mount.device}` while it is unmounted"
        yield _found("disk_errors", Verdict.DEGRADED, evidence, action)


def clock_findings(clock: ClockFacts, previous: Sample | None = None) -> Iterator[Finding]:
    """An unsteered clock warns: tokens, certificates and the order of logs depend on it."""
    if clock.synchronised is None:
        yield _clock("clock_unreadable", Verdict.OK, "the kernel does not tell of its clock's source", None)
    elif not clock.synchronised:
        yield _unsynchronised(clock)
    elif clock.max_error_seconds is not None and clock.max_error_seconds > _MAX_ERROR_SECONDS:
        evidence = f"the clock may be off by {clock.max_error_seconds:.1f} s"
        yield _clock("clock_skewed", Verdict.DEGRADED, evidence, "see `chronyc tracking` or `timedatectl`")
    jump = clock.booted_at - previous.booted_at if previous else 0.0
    if previous and abs(jump) > _JUMP_SECONDS:
        evidence = f"the clock was set {abs(jump):.0f} s {'ahead' if jump > 0 else 'back'} since the last run"
        # the first setting after a boot is what a time source is for
        verdict = Verdict.DEGRADED if previous.synchronised else Verdict.OK
        yield _clock("clock_jumped", verdict, evidence, "see `chronyc tracking` or `timedatectl`")


def _unsynchronised(clock: ClockFacts) -> Finding:
    reason = "clock_unsynchronised"
    if clock.daemon_running:
        evidence = "a time daemon runs, and the kernel's clock is not synchronised"
        action = "see `chronyc tracking` or `timedatectl`; chrony needs `rtcsync` to tell the kernel"
        return _clock(reason, Verdict.DEGRADED, evidence, action)
    if clock.in_container:
        evidence = "no time source to be seen from this container: its host has to keep the time"
        return _clock(reason, Verdict.OK, evidence, None)
    evidence = "no time daemon runs, and the kernel's clock is not synchronised"
    return _clock(reason, Verdict.DEGRADED, evidence, "systemctl enable --now systemd-timesyncd")


def _clock(reason: str, verdict: Verdict, evidence: str, action: str | None) -> Finding:
    return Finding(reason, verdict, HOST, "clock", evidence, action)


def _found(reason: str, verdict: Verdict, evidence: str, action: str) -> Finding:
    return Finding(reason, verdict, HOST, _SOURCE, evidence, action)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
