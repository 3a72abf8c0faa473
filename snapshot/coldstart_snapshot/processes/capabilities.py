"""Capabilities by their names, as the kernel has them of each process."""

from __future__ import annotations

from pathlib import Path

# the order is the kernel's: include/uapi/linux/capability.h
_CAPABILITY_NAMES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)


def capability_names(mask: int) -> frozenset[str]:
    """The names of the bits that are set; a later kernel's stay numbers."""
    known = _CAPABILITY_NAMES.split()
    names = [*known, *map(str, range(len(known), 64))]
    return frozenset(f"CAP_{name}" for number, name in enumerate(names) if mask >> number & 1)


def read_capabilities(pid: int, kind: str) -> frozenset[str]:
    """One set of a process: `CapEff`, `CapPrm`, `CapInh`, `CapBnd` or `CapAmb`. Raises `OSError`."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            return capability_names(int(value, 16))
    return frozenset()
