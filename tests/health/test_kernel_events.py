"""Every shape of line that the kernel and NVIDIA's driver print, and what they print that is no event."""

from __future__ import annotations

import pytest

from coldstart_health.kernel_events import KernelEvent, Kind, bare, decode, device_address, fold
from coldstart_health.kernel_reading import KernelRecord
from conftest import shared_data

PREFIXES = {
    "none": "",
    "dmesg": "[2397166.923949] ",
    "dmesg with caller": "[  114.859956][ T1234] ",
    "dmesg -T": "[Tue Jan  7 12:00:01 2025] ",
    "dmesg --time-format iso": "2025-01-07T12:00:01,923949+00:00 ",
    "journalctl -o short-iso": "2025-01-07T12:00:01+0000 gpu-host-7 kernel: ",
    "syslog": "Jan  7 12:00:01 gpu-host-7 kernel: [  17.1] ",
    "journalctl": "Jan 17 12:00:01 gpu-host-7 kernel: ",
    "kmsg": "4,1227,437812449,-;",
    "kmsg with caller": "4,1227,437812449,-,caller=T1234;",
    "raw syslog": "<4>[   17.1] ",
}


def events(*lines: str) -> list[KernelEvent]:
    return list(decode(KernelRecord(number, number, line) for number, line in enumerate(lines)))


def found(*lines: str) -> list[tuple[str, int, str | None, str]]:
    return [event.key for event in events(*lines)]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize(
    ("line", "key"),
    [
        (
            "NVRM: Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008",
            (Kind.XID, 94, "0000:0f:00", ""),
        ),
        (
            "NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus",
            (Kind.XID, 79, "0000:2a:00", ""),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", (Kind.XID, 14, "0000:03:00", "")),
        ("NVRM: Xid (PCI:0009:01:00.0): 31, pid=7, name=a, b", (Kind.XID, 31, "0009:01:00", "")),
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:02): 43, pid=7", (Kind.XID, 43, "0000:41:00", "")),
        ("NVRM: Xid (PCI:0000:41:00): 62", (Kind.XID, 62, "0000:41:00", "")),
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 01 caused by previous Xid 149",
            (Kind.XID, 45, "0000:dc:00", "149"),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            (Kind.SXID, 20034, "0000:00:00", "fatal"),
        ),
        (
            "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
            (Kind.BUS_LOSS, 0, "0000:29:00", ""),
        ),
    ],
)
def test_the_prefix_does_not_matter(prefix: str, line: str, key: tuple[object, ...]) -> None:
    assert found(prefix + line) == [key]


def test_the_recorded_xid_lines() -> None:
    lines = shared_data("health/kernel-log/xid-lines.txt").read_text().splitlines()
    assert [(event.code, event.address, event.detail) for event in events(*lines)] == [
        (64, "0000:0f:00", ""),
        (94, "0000:0f:00", ""),
        (79, "0000:01:00", ""),
        (14, "0000:03:00", ""),
        (149, "0009:01:00", "NETIR_LINK_EVT fatal 0x021425c6 0x00000000"),
        (154, "0009:01:00", "4"),
        (154, "0019:01:00", "1"),
        (145, "0018:01:00", "RLW_RXPIPE nonfatal 0x0409a0c2 0x00000008"),
        (119, "0000:00:16", ""),
        (79, "0000:2a:00", ""),
        (45, "0000:dc:00", "149"),
    ]


def test_the_recorded_kmsg_records() -> None:
    lines = shared_data("health/kernel-log/kmsg-records.txt").read_text().splitlines()
    assert [(event.code, event.pids) for event in events(*lines)] == [(43, (1814139,))] * 2


def test_the_recorded_switch_lines_and_their_continuation() -> None:
    lines = shared_data("health/kernel-log/sxid-lines.txt").read_text().splitlines()
    assert found(*lines) == [
        (Kind.SXID, 12028, "0000:05:00", "non-fatal"),
        (Kind.SXID, 20034, "0000:00:00", "fatal"),
    ]


def test_the_recorded_bus_losses_without_an_xid() -> None:
    lines = shared_data("health/kernel-log/fallen-off-bus-no-xid.txt").read_text().splitlines()
    assert found(*lines) == [
        (Kind.BUS_LOSS, 0, "0000:18:00", ""),
        (Kind.BUS_LOSS, 0, "0000:29:00", ""),
    ]


def test_three_lines_of_one_record_are_one_bus_loss_of_the_gpu_they_name() -> None:
    record = (
        "NVRM: The NVIDIA GPU 0000:18:00.0\n"
        "NVRM: (PCI ID: 10de:2901) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    assert found("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", record) == [
        (Kind.BUS_LOSS, 0, "0000:18:00", "")
    ]


def test_the_recorded_gsp_time_out_is_five_events_of_one_gpu_with_its_uuid() -> None:
    lines = shared_data("health/kernel-log/dmesg-T-xid-119-gsp-timeout.log").read_text().splitlines()
    name, gsp = fold((), decode(KernelRecord(number, number, line) for number, line in enumerate(lines)))
    assert name.key == (Kind.GPU, 0, "0000:9b:00", "GPU-509665ad-b600-ac93-3616-d754b23d636d")
    assert (gsp.code, gsp.count, gsp.pids) == (119, 5, (2024380, 1263500, 1240590))


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    [
        ("NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)", Kind.INIT_FAILED, ""),
        ("NVRM: GPU 0000:98:00.0: rm_init_adapter failed, device minor number 0", Kind.INIT_FAILED, ""),
        (
            "nvidia 0000:98:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            Kind.PCIE,
            "",
        ),
        ("nvidia 0000:98:00.0: AER: can't recover (no error_detected callback)", Kind.PCIE, ""),
        (
            "Out of memory: Killed process 4321 (python3) total-vm:1kB, anon-rss:1kB",
            Kind.OOM,
            "host",
        ),
        ("Memory cgroup out of memory: Killed process 4321 (python3)", Kind.OOM, "cgroup"),
        ("INFO: task kworker/u8:2:77 blocked for more than 120 seconds.", Kind.HUNG_TASK, ""),
        ("INFO: task nvidia-smi:778 blocked for more than 241 seconds.", Kind.HUNG_TASK, "nvidia"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 5 op 0x0:(READ)", Kind.DISK, "nvme0n1"),
        ("I/O error, dev sdb, sector 1336320 op 0x0:(READ) flags 0x80700", Kind.DISK, "sdb"),
        ("critical medium error, dev sda, sector 8 op 0x0:(READ)", Kind.DISK, "sda"),
        ("Buffer I/O error on dev dm-0, logical block 62514752, async page read", Kind.DISK, "dm-0"),
        ("nvme nvme1: I/O 900 (I/O Cmd) QID 2 timeout, aborting", Kind.DISK, "nvme1"),
        ("nvme nvme1: I/O tag 3 (2003) QID 5 timeout, reset controller", Kind.DISK, "nvme1"),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", Kind.DISK, "nvme1"),
        ("nvme nvme1: Removing after probe failure status: -19", Kind.DISK, "nvme1"),
        ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", Kind.READ_ONLY, "nvme0n1p2"),
        ("XFS (sda1): Log I/O Error Detected.  Shutting down filesystem", Kind.READ_ONLY, "sda1"),
        ("XFS (sda1): Filesystem has been shut down due to log error (0x2).", Kind.READ_ONLY, "sda1"),
        (
            "BTRFS info (device sda2: state EA): forced readonly",
            Kind.READ_ONLY,
            "sda2",
        ),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", Kind.MEMORY, ""),
        ("Memory failure: 0x1234567: recovery action for dirty LRU page: Recovered", Kind.MEMORY, ""),
        ("{1}[Hardware Error]: event severity: recoverable", Kind.MEMORY, ""),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 8: be00", Kind.MEMORY, ""),
    ],
)
def test_other_faults_that_the_kernel_reports(line: str, kind: Kind, detail: str) -> None:
    (event,) = events(f"[  12.5] {line}")
    assert (event.kind, event.detail) == (kind, detail)


@pytest.mark.parametrize(
    "line",
    [
        'audit: type=1107 msg="NVRM: Xid (PCI:0000:01:00): 79, forged"',
        "traps: NVRM: Xid (PCI[77] trap int3",
        "python3[12]: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00. It likely needs a reset.",
        "NVRM: Xid (PCI:nonsense): 79, GPU",
        "nvidia 0000:07:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal)",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "{1}[Hardware Error]: event severity: corrected",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
        "blk_update_request: I/O error, dev sr0, sector 0",
        "EXT4-fs (nvme0n1p2): mounted filesystem ro with ordered data mode",
        "nvme nvme0: missing or invalid SUBNQN field.",
        "",
    ],
)
def test_lines_that_only_look_like_events(line: str) -> None:
    assert found(line) == []


def test_a_name_with_a_line_end_in_another_message_is_no_line_of_the_driver() -> None:
    assert [
        event.kind for event in events("Out of memory: Killed process 12 (a\nNVRM: Xid (0000:01:00): 79)")
    ] == [Kind.OOM]


def test_events_are_counted_by_device_and_parted_by_what_must_be_judged_apart() -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 31, pid={}, name=a"
    before = fold((), events(*(line.format(pid) for pid in (5, 5, 6))))
    (event,) = fold(before, events("x", "x", "x", line.format(7)))
    assert (event.count, event.pids) == (4, (5, 6, 7))
    assert (event.first_sequence, event.last_sequence) == (0, 3)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:0F:00.0", "0000:0f:00"),
        ("0000:0f:00", "0000:0f:00"),
        ("0f:00.1", "0000:0f:00"),
        ("0009:01:00.0", "0009:01:00"),
        ("00010000:01:00.0", "10000:01:00"),
    ],
)
def test_an_address_is_compared_by_domain_bus_and_device(text: str, address: str) -> None:
    assert device_address(text) == address


def test_a_message_that_begins_with_brackets_of_its_own_keeps_its_words() -> None:
    assert bare("[  1.5] [drm] [nvidia-drm] loading").endswith("loading")
