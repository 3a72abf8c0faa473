"""Host pressure turned into findings. A busy CPU warns and never takes a host out."""

from __future__ import annotations

from collections.abc import Iterator

from coldstart_health.pressure import IO_STALL_PERCENT, MEMORY_STALL_PERCENT, DiskUse, HostPressure
from coldstart_health.verdict import HOST, Finding, Verdict

_SOURCE = "pressure"


def pressure_findings(
    pressure: HostPressure, *, warn_percent: float, fail_percent: float
) -> Iterator[Finding]:
    """Nothing where all is well; at `warn_percent` degraded, at `fail_percent` out."""
    # a short sample alone would blame the host for the command that is just starting
    if pressure.cpu_percent >= warn_percent and pressure.load_per_cpu * 100 >= warn_percent:
        evidence = f"CPU {pressure.cpu_percent:.0f} % busy, load {pressure.load_per_cpu:.1f} per CPU"
        yield _found("cpu_busy", Verdict.DEGRADED, evidence, "find the load with `top`")
    if verdict := _level(pressure.memory_percent, warn_percent, fail_percent):
        free = _size(pressure.memory_available_bytes)
        evidence = f"memory {pressure.memory_percent:.0f} % used, {free} available"
        yield _found(
            "memory_short", verdict, evidence, "find the largest processes with `ps --sort -rss aux`"
        )
    for disk in pressure.disks:
        yield from _disk(disk, warn_percent, fail_percent)
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
        f"{_size(pressure.memory_total_bytes)}, disk {disks}"
    )


def _disk(disk: DiskUse, warn_percent: float, fail_percent: float) -> Iterator[Finding]:
    if disk.problem:
        evidence = f"disk behind {disk.path} cannot be read: {disk.problem}"
        yield _found("disk_unreadable", Verdict.UNKNOWN, evidence, f"stat -f {disk.path}")
        return
    if verdict := _level(disk.used_percent, warn_percent, fail_percent):
        evidence = f"disk of {disk.path} {disk.used_percent:.0f} % full, {_size(disk.free_bytes)} free"
        yield _found("disk_full", verdict, evidence, f"find what fills it with `du -xhd1 {disk.path}`")
    if verdict := _level(disk.inodes_percent, warn_percent, fail_percent):
        evidence = f"disk of {disk.path}: {disk.inodes_percent:.0f} % of the inodes in use"
        yield _found(
            "inodes_short", verdict, evidence, f"find small files with `du --inodes -xd1 {disk.path}`"
        )


def _level(percent: float, warn_percent: float, fail_percent: float) -> Verdict | None:
    if percent >= fail_percent:
        return Verdict.DRAIN
    return Verdict.DEGRADED if percent >= warn_percent else None


def _found(reason: str, verdict: Verdict, evidence: str, action: str) -> Finding:
    return Finding(reason, verdict, HOST, _SOURCE, evidence, action)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
