"""The CPUID instruction, without privileges: a dozen machine instructions in an executable mapping."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from coldstart_cli.errors import UnavailableError

_CPUID_DEVICE = Path("/dev/cpu/0/cpuid")
_PROT_READ_EXECUTE = 0x5
_MAP_PRIVATE = 0x2
_MAP_FAILED = 2**64 - 1

# void cpuid(uint32_t leaf /*edi*/, uint32_t subleaf /*esi*/, uint32_t out[4] /*rdx*/)
_CODE = bytes.fromhex(
    "f30f1efa"  # endbr64
    "53"  # push rbx, which cpuid overwrites and the caller owns
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8+4], ebx
    "41894808"  # mov [r8+8], ecx
    "4189500c"  # mov [r8+12], edx
    "5b"  # pop rbx
    "c3"  # ret
)


def read_cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    """EAX, EBX, ECX and EDX of one CPUID leaf; x86-64 only."""
    if os.uname().machine != "x86_64":
        raise UnavailableError(f"CPUID does not exist on {os.uname().machine}")
    reasons = []
    # the instruction itself needs no privileges; the device is for hosts that forbid new executable memory
    for source in (_by_instruction, _by_device):
        try:
            return source(leaf, subleaf)
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise UnavailableError(
        f"cannot read the CPU's XSAVE sizes: {'; '.join(reasons)}", hint="modprobe cpuid, and run as root"
    )


def _by_instruction(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    import ctypes

    # a file mapping that was never writable passes systemd's MemoryDenyWriteExecute=
    descriptor = os.memfd_create("coldstart-cpuid", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, _CODE)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        address = libc.mmap(None, len(_CODE), _PROT_READ_EXECUTE, _MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in {None, _MAP_FAILED}:
        number = ctypes.get_errno()
        raise OSError(number, f"executable mapping refused: {os.strerror(number)}")
    registers = (ctypes.c_uint32 * 4)()
    try:
        ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(address)(
            leaf, subleaf, ctypes.cast(registers, ctypes.c_void_p)
        )
    finally:
        libc.munmap(address, len(_CODE))
    eax, ebx, ecx, edx = registers
    return eax, ebx, ecx, edx


def _by_device(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    descriptor = os.open(_CPUID_DEVICE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # the cpuid driver takes the leaf from the low and the subleaf from the high half of the offset
        data = os.pread(descriptor, 16, subleaf << 32 | leaf)
    finally:
        os.close(descriptor)
    if len(data) != 16:
        raise OSError(0, f"{_CPUID_DEVICE} answered {len(data)} bytes")
    eax, ebx, ecx, edx = struct.unpack("<4I", data)
    return eax, ebx, ecx, edx
