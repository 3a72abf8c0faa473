"""Host pressure: what is measured, and what of it takes a host out."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_health.host_checks import pressure_findings, pressure_line
from coldstart_health.pressure import DiskUse, HostPressure, read_pressure
from coldstart_health.verdict import Verdict

GIB = 1 << 30


def pressure(
    *,
    cpu: float = 5,
    load: float = 0.9,
    memory: float = 20,
    disk: DiskUse | None = None,
    memory_stall: float | None = 0,
    io_stall: float | None = 0,
) -> HostPressure:
    return HostPressure(
        cpu_percent=cpu,
        cpu_count=2,
        load_per_cpu=load,
        memory_total_bytes=100 * GIB,
        memory_available_bytes=int((100 - memory) * GIB),
        disks=(disk or DiskUse(Path("/"), 100 * GIB, 70 * GIB, 30.0, 1.0),),
        memory_stall_percent=memory_stall,
        io_stall_percent=io_stall,
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pressure(), []),
        (pressure(cpu=79.9, memory=79.9), []),
        (pressure(cpu=80), [("cpu_busy", Verdict.DEGRADED)]),
        (pressure(cpu=100), [("cpu_busy", Verdict.DEGRADED)]),
        (pressure(cpu=100, load=0.79), []),
        (pressure(memory=85), [("memory_short", Verdict.DEGRADED)]),
        (pressure(memory=90), [("memory_short", Verdict.DRAIN)]),
        (pressure(disk=DiskUse(Path("/"), 1, 1, 80.0, 1.0)), [("disk_full", Verdict.DEGRADED)]),
        (pressure(disk=DiskUse(Path("/"), 1, 1, 95.0, 1.0)), [("disk_full", Verdict.DRAIN)]),
        (pressure(disk=DiskUse(Path("/"), 1, 1, 10.0, 91.0)), [("inodes_short", Verdict.DRAIN)]),
        (pressure(disk=DiskUse(Path("/x"), problem="Stale")), [("disk_unreadable", Verdict.UNKNOWN)]),
        (pressure(memory_stall=6), [("memory_stall", Verdict.DEGRADED)]),
        (pressure(io_stall=21), [("io_stall", Verdict.DEGRADED)]),
        (pressure(memory_stall=None, io_stall=None), []),
    ],
)
def test_warn_degrades_and_fail_drains_but_a_busy_cpu_never_does(
    seen: HostPressure, expected: list[tuple[str, Verdict]]
) -> None:
    found = list(pressure_findings(seen, warn_percent=80, fail_percent=90))
    assert [(finding.reason, finding.verdict) for finding in found] == expected
    assert all(finding.action for finding in found)


def test_this_host_is_measured(tmp_path: Path) -> None:
    seen = read_pressure([Path("/proc"), tmp_path / "not" / "there"], sample_seconds=0.05)
    assert 0 < seen.memory_available_bytes <= seen.memory_total_bytes
    assert 0 <= seen.cpu_percent <= 100
    assert seen.cpu_count >= 1
    assert [disk.path for disk in seen.disks] == [Path("/proc"), tmp_path]
    assert seen.disks[1].total_bytes > 0
    assert str(tmp_path) in pressure_line(seen)


def test_one_file_system_is_reported_once(tmp_path: Path) -> None:
    seen = read_pressure([tmp_path, tmp_path / "a", tmp_path / "b"], sample_seconds=0.05)
    assert [disk.path for disk in seen.disks] == [tmp_path]


def test_stalls_are_read_from_the_kernels_own_files(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text(
        "some avg10=9.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=7.25 avg60=0.00 avg300=0.00 total=1\n"
    )
    seen = read_pressure([], sample_seconds=0.05, psi=tmp_path)
    assert seen.memory_stall_percent == 7.25
    assert seen.io_stall_percent is None
