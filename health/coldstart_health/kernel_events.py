"""Decodes kernel messages into events. Anchored: a message that merely quotes another is no event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from coldstart_health.kernel_reading import KernelRecord

_PIDS_KEPT = 8
_TEXT_KEPT = 200


class Kind(StrEnum):
    """What happened: to a GPU or a switch, or to the host. GPU only names one, by address and UUID."""

    GPU = "gpu"
    XID = "xid"
    SXID = "sxid"
    BUS_LOSS = "bus_loss"
    INIT_FAILED = "init_failed"
    PCIE = "pcie"
    OOM = "oom"
    HUNG_TASK = "hung_task"
    DISK = "disk"
    READ_ONLY = "read_only"
    MEMORY = "memory"


@dataclass(frozen=True)
class KernelEvent:
    """One kind of event on one device, however often it came: numbers count, texts repeat.

    `detail` parts what must be judged apart: the new action of XID 154, the cause of a 45, words of an
    NVLink error, a disk. Sequences and microseconds are those of the first and the last record.
    """

    kind: Kind
    code: int = 0
    address: str | None = None
    detail: str = ""
    count: int = 1
    first_sequence: int = 0
    last_sequence: int = 0
    first_usec: int = 0
    last_usec: int = 0
    pids: tuple[int, ...] = ()
    text: str = ""

    @property
    def key(self) -> tuple[str, int, str | None, str]:
        return self.kind, self.code, self.address, self.detail


def fold(known: Iterable[KernelEvent], new: Iterable[KernelEvent]) -> tuple[KernelEvent, ...]:
    """Each event once, with its count. Both are in the order of the log."""
    same: dict[tuple[str, int, str | None, str], list[KernelEvent]] = {}
    for event in (*known, *new):
        same.setdefault(event.key, []).append(event)
    return tuple(_together(events) for events in same.values())


def _together(events: list[KernelEvent]) -> KernelEvent:
    if len(events) == 1:
        return events[0]
    pids = dict.fromkeys(pid for event in events for pid in event.pids)
    return replace(
        events[-1],
        count=sum(event.count for event in events),
        first_sequence=events[0].first_sequence,
        first_usec=events[0].first_usec,
        pids=tuple(pids)[:_PIDS_KEPT],
    )


def decode(records: Iterable[KernelRecord]) -> Iterator[KernelEvent]:
    """The events among the records; lines that continue another are none."""
    losing: str | None = None  # address from the first line of "The NVIDIA GPU ... fallen off the bus"
    for record in records:
        # the driver prints some messages of several lines at once; others' line ends are not trusted
        lines = record.text.split("\n") if record.text.startswith("NVRM:") else [record.text.split("\n")[0]]
        for line in lines:
            message = bare(line)
            if match := _LOSS_FIRST.match(message):
                losing = device_address(match[1])
            elif losing and _LOSS_LAST.match(message):
                yield _event(record, message, Kind.BUS_LOSS, address=losing)
                losing = None
            elif losing and not message.startswith("NVRM:"):
                continue
            elif event := _decoded(record, message):
                yield event


def bare(line: str) -> str:
    """A message without what dmesg, journalctl, syslog or /dev/kmsg put before it."""
    # as /dev/kmsg and the journal have it, without any
    return line.rstrip() if line.startswith("NVRM:") else _PREFIX.sub("", line, count=1).rstrip()


def device_address(text: str) -> str:
    """`00000000:0F:00.0`, `0000:0f:00` and `0f:00.0` as `0000:0f:00`: one GPU is one PCI device."""
    parts = text.partition(".")[0].lower().split(":")
    domain = int(parts[0], 16) if len(parts) > 2 else 0
    return f"{domain:04x}:{parts[-2]}:{parts[-1]}"


# dmesg `[ 1.5]`, also with `[T7]` of CONFIG_PRINTK_CALLER; dmesg -T; ISO times; syslog; /dev/kmsg; `<4>`
_PREFIX = re.compile(
    r"""
    ^(?:
        \d+,\d+,\d+,[^;]*;
      | (?:<\d+>)?\s*
        (?:
            [A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S+\s kernel:\s*
          | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*\s+ (?:\S+\s+kernel:\s*)?
        )?
        (?:\[[^\]]{1,40}\]\s*){0,2}
    )
    """,
    re.VERBOSE,
)
_ADDRESS = r"((?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)]*\): (\d{{1,4}})(?:, (.*))?$")
_SXID = re.compile(
    rf"nvidia-nvswitch\d+: SXid \(PCI:{_ADDRESS}\): (\d{{1,6}}), (Fatal|Non-fatal)\b", re.IGNORECASE
)
_PID = re.compile(r"pid='?(\d+)")
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+)", re.IGNORECASE)
_CAUSED = re.compile(r"caused by previous Xid (\d+)")
_NVLINK = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{2,})\s+(?:(?P<severity>Fatal|Nonfatal|Non-fatal)\b)?"
    r".*?\((?P<info>0x[0-9a-f]+)\s+(?P<status>0x[0-9a-f]+)",
    re.IGNORECASE,
)
_LOSS_FIRST = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}(?!.*fallen off)")
_LOSS_LAST = re.compile(r"NVRM: fallen off the bus")
_LOSS = re.compile(rf"NVRM: (?:GPU|The NVIDIA GPU) (?:at )?(?:PCI:)?{_ADDRESS}\b.*fallen off the bus")
_INIT = re.compile(rf"NVRM: GPU {_ADDRESS}: (?:RmInitAdapter failed|rm_init_adapter failed)")
_PCIE = re.compile(
    rf"nvidia {_ADDRESS}: (?:AER: )?(?:PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?:Non-)?Fatal\)"
    r"|can't recover)"
)
_NAMED = re.compile(rf"NVRM: GPU at PCI:{_ADDRESS}: (GPU-[0-9a-f-]{{36}})$")
_OOM = re.compile(r"(Memory cgroup o|O)ut of memory: Kill(?:ed)? process (\d+)")
_HUNG = re.compile(r"INFO: task (.{1,40}):(\d+) blocked for more than \d+ seconds")
_DISK = re.compile(
    r"(?:blk_update_request: |Buffer |print_req_error: )?(?:critical (?:medium|target) |I/O )error"
    r"(?:,? on)?,? dev (?P<disk>[\w-]+)",
    re.IGNORECASE,
)
_NVME = re.compile(
    r"nvme (?P<disk>nvme\d+): (?:I/O .*timeout|controller is down|Removing after probe failure"
    r"|Device not ready; aborting)"
)
_READ_ONLY = re.compile(
    r"(?:EXT4-fs|EXT3-fs) \((?P<ext>[\w-]+)\): Remounting filesystem read-only"
    r"|XFS \((?P<xfs>[\w-]+)\): .*(?:has been shut down|Shutting down filesystem)"
    r"|BTRFS(?: \w+)? \(device (?P<btrfs>[\w-]+)[^)]*\).*forced readonly"
)
# uncorrected only: what the memory corrected by itself is no event
_MEMORY = re.compile(
    r"EDAC \w+: \d+ UE\b|Memory failure: 0x[0-9a-f]+: "
    r"|(?:\{\d+\})?\[Hardware Error\]: event severity: (?:recoverable|fatal)"
    r"|mce: \[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: \d+ Bank",
    re.IGNORECASE,
)
# floppies and CD drives of virtual machines fail whenever somebody looks; loops only pass on
_NO_DISKS = re.compile(r"(?:fd|sr|loop|zram|ram)\d+$")
_LINK_ERRORS = range(144, 151)
_RECOVERY_CHANGED = 154
_CLEANUP = 45


def _event(record: KernelRecord, message: str, kind: Kind, **values: object) -> KernelEvent:
    return KernelEvent(
        kind,
        first_sequence=record.sequence,
        last_sequence=record.sequence,
        first_usec=record.usec,
        last_usec=record.usec,
        text=message[:_TEXT_KEPT],
        **values,  # type: ignore[arg-type]
    )


def _decoded(record: KernelRecord, message: str) -> KernelEvent | None:
    if message.startswith("NVRM: "):
        return _driver(record, message)
    if match := _SXID.match(message):
        fatal = "fatal" if match[3].lower() == "fatal" else "non-fatal"
        address = device_address(match[1])
        return _event(record, message, Kind.SXID, code=int(match[2]), address=address, detail=fatal)
    if match := _PCIE.match(message):
        return _event(record, message, Kind.PCIE, address=device_address(match[1]))
    return _host(record, message)


def _driver(record: KernelRecord, message: str) -> KernelEvent | None:
    if match := _XID.match(message):
        code, rest = int(match[2]), match[3] or ""
        pid = _PID.search(rest)
        return _event(
            record,
            message,
            Kind.XID,
            code=code,
            address=device_address(match[1]),
            detail=_detail(code, rest),
            pids=(int(pid[1]),) if pid else (),
        )
    if match := _NAMED.match(message):
        return _event(record, message, Kind.GPU, address=device_address(match[1]), detail=match[2])
    for pattern, kind in ((_LOSS, Kind.BUS_LOSS), (_INIT, Kind.INIT_FAILED)):
        if match := pattern.match(message):
            return _event(record, message, kind, address=device_address(match[1]))
    return None


def _detail(code: int, rest: str) -> str:
    if code in _LINK_ERRORS:
        match = _NVLINK.search(rest)
        if match is None:
            return ""
        severity = (match["severity"] or "").lower().replace("-", "")
        return " ".join((match["unit"], severity or "unknown", match["info"], match["status"]))
    if code == _RECOVERY_CHANGED:
        match = _RECOVERY.search(rest)
        return str(int(match[1], 16)) if match else ""
    if code == _CLEANUP:
        match = _CAUSED.search(rest)
        return match[1] if match else ""
    return ""


def _host(record: KernelRecord, message: str) -> KernelEvent | None:
    if match := _OOM.match(message):
        where = "cgroup" if match[1].startswith("Memory") else "host"
        return _event(record, message, Kind.OOM, detail=where, pids=(int(match[2]),))
    if match := _HUNG.match(message):
        ours = "nvidia" if "nvidia" in match[1].lower() else ""
        return _event(record, message, Kind.HUNG_TASK, detail=ours, pids=(int(match[2]),))
    if match := _DISK.match(message) or _NVME.match(message):
        disk = match["disk"]
        return None if _NO_DISKS.match(disk) else _event(record, message, Kind.DISK, detail=disk)
    if match := _READ_ONLY.match(message):
        disk = match["ext"] or match["xfs"] or match["btrfs"]
        return _event(record, message, Kind.READ_ONLY, detail=disk)
    if _MEMORY.match(message):
        return _event(record, message, Kind.MEMORY)
    return None
