"""Host pressure: what is measured, and what of it takes a host out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_health.evidence import Limits
from coldstart_health.host_checks import clock_findings, levels, pressure_findings, pressure_line
from coldstart_health.pressure import DiskUse, HostPressure, read_pressure
from coldstart_health.samples import Sample, load_sample, record_sample, sample_path
from coldstart_health.verdict import Verdict
from coldstart_host.cgroup import CgroupLimits
from coldstart_host.clock import ClockFacts
from coldstart_host.file_system import MountFacts, mount_of

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
    found = list(pressure_findings(seen, Limits()))
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


def sample(pressure_before: HostPressure, previous: Sample | None = None) -> Sample:
    return Sample(100.0, 1_000.0, True, levels(pressure_before, Limits(), previous))


@pytest.mark.parametrize(
    ("percents", "verdict"),
    [
        ([95], Verdict.DRAIN),  # nothing to compare with: judged by itself
        ([20, 95], Verdict.DEGRADED),  # one sample alone warns
        ([20, 95, 95], Verdict.DRAIN),
        ([20, 85], Verdict.OK),
        ([20, 85, 85], Verdict.DEGRADED),
        ([20, 85, 95], Verdict.DEGRADED),
        ([20, 85, 95, 91], Verdict.DRAIN),
        ([95, 86], Verdict.DRAIN),  # 5 points below before it ends
        ([95, 84], Verdict.DEGRADED),
        ([95, 84, 76], Verdict.DEGRADED),
        ([95, 84, 74], Verdict.OK),
        ([95, 60], Verdict.OK),
    ],
)
def test_two_samples_in_a_row_decide_and_a_level_ends_below_its_threshold(
    percents: list[float], verdict: Verdict
) -> None:
    previous = None
    for percent in percents:
        previous = sample(pressure(memory=percent), previous)
    assert previous is not None
    assert previous.levels["memory"].verdict is verdict


def test_a_sample_is_kept_for_the_next_run_and_a_damaged_one_counts_as_none(tmp_path: Path) -> None:
    path = sample_path(tmp_path)
    assert load_sample(path) is None
    kept = sample(pressure(memory=95))
    record_sample(path, kept)
    assert load_sample(path) == kept
    for content in (b"{", b"[]", b'{"schema": "coldstart.health.sample", "version": 2}', b"\xff"):
        path.write_bytes(content)
        assert load_sample(path) is None


def test_a_sample_of_long_ago_or_of_another_boot_is_no_neighbour() -> None:
    kept = sample(pressure())
    assert kept.before(200.0)
    assert not kept.before(100.0 + 3601)
    assert not kept.before(50.0)


def test_the_containers_own_limit_counts_where_it_is_tighter() -> None:
    seen = replace(pressure(memory=20), cgroup=CgroupLimits(10 * GIB, int(9.5 * GIB), 2.0))
    (finding,) = pressure_findings(seen, Limits())
    assert (finding.reason, finding.verdict) == ("memory_short", Verdict.DRAIN)
    assert finding.evidence == "memory 95 % used, 0.5 GiB left of the container's 10.0 GiB"


def mounts(tmp_path: Path, *lines: str) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"{line}\n" for line in lines))
    return table


ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("28 27 8:1 / /var rw,relatime - ext4 /dev/sda1 ro,errors=remount-ro", "disk_stopped", Verdict.DRAIN),
        ("28 27 8:1 / /var ro,relatime - ext4 /dev/sda1 ro", "disk_read_only", Verdict.DEGRADED),
        ("28 27 8:1 / /var ro,relatime - ext4 /dev/sda1 rw", "disk_read_only", Verdict.DEGRADED),
        ("28 27 8:1 / /var rw,relatime - ext4 /dev/sda1 rw", None, None),
        ("28 27 8:1 / /elsewhere ro,relatime - ext4 /dev/sda1 ro", None, None),
    ],
)
def test_a_file_system_that_the_kernel_stopped_is_told_from_one_mounted_read_only(
    tmp_path: Path, line: str, reason: str | None, verdict: Verdict | None
) -> None:
    mount = mount_of(Path("/var/lib/coldstart"), mounts(tmp_path, ROOT, line))
    disk = DiskUse(Path("/var/lib/coldstart"), 100 * GIB, 70 * GIB, 30.0, 1.0, mount=mount)
    found = [
        (finding.reason, finding.verdict) for finding in pressure_findings(pressure(disk=disk), Limits())
    ]
    assert found == ([(reason, verdict)] if reason else [])


def test_an_image_that_is_mounted_read_only_at_the_root_is_as_it_should_be() -> None:
    mount = MountFacts("/", "/dev/vda", "erofs", read_only=True, stopped_by_kernel=False, errors=0)
    disk = DiskUse(Path("/"), 1, 1, 30.0, 1.0, mount=mount)
    assert list(pressure_findings(pressure(disk=disk), Limits())) == []


def test_errors_that_the_file_system_counted_warn() -> None:
    mount = MountFacts("/", "/dev/vda", "ext4", read_only=False, stopped_by_kernel=False, errors=3)
    disk = DiskUse(Path("/"), 1, 1, 30.0, 1.0, mount=mount)
    (finding,) = pressure_findings(pressure(disk=disk), Limits())
    assert (finding.reason, finding.verdict) == ("disk_errors", Verdict.DEGRADED)
    assert "e2fsck -f /dev/vda" in (finding.action or "")


def clock(
    *,
    synchronised: bool | None = True,
    daemon: bool = False,
    container: bool = False,
    booted_at: float = 1_000.0,
    error: float | None = 0.1,
) -> ClockFacts:
    return ClockFacts(synchronised, daemon, container, error, booted_at, 200.0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (clock(), []),
        (clock(synchronised=None), [("clock_unreadable", Verdict.OK)]),
        (clock(synchronised=False), [("clock_unsynchronised", Verdict.DEGRADED)]),
        (
            clock(synchronised=False, daemon=True, container=True),
            [("clock_unsynchronised", Verdict.DEGRADED)],
        ),
        (clock(synchronised=False, container=True), [("clock_unsynchronised", Verdict.OK)]),
        (clock(error=2.0), [("clock_skewed", Verdict.DEGRADED)]),
        (clock(booted_at=1_004.0), []),
        (clock(booted_at=4_600.0), [("clock_jumped", Verdict.DEGRADED)]),
        (clock(booted_at=-86_400.0), [("clock_jumped", Verdict.DEGRADED)]),
    ],
)
def test_a_clock_without_a_source_or_one_that_jumps_warns(
    seen: ClockFacts, expected: list[tuple[str, Verdict]]
) -> None:
    found = list(clock_findings(seen, sample(pressure())))
    assert [(finding.reason, finding.verdict) for finding in found] == expected


def test_the_first_setting_of_the_clock_after_a_boot_is_no_fault() -> None:
    before = replace(sample(pressure()), synchronised=False)
    (finding,) = clock_findings(clock(booted_at=90_000.0), before)
    assert (finding.reason, finding.verdict) == ("clock_jumped", Verdict.OK)
    assert "89000 s ahead" in finding.evidence
