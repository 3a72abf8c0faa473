"""ptrace through ctypes: the few requests that a tracer of CPUID needs; x86-64 only."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
from functools import cache
from pathlib import Path
from typing import Any

_POKEUSER, _CONT, _SINGLESTEP = 6, 7, 9
_GETREGS, _SETREGS, _DETACH = 12, 13, 17
_GETEVENTMSG, _GETSIGINFO = 0x4201, 0x4202
_GETREGSET = 0x4204
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208

EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
_OPTIONS = 1 << EVENT_FORK | 1 << EVENT_VFORK | 1 << EVENT_CLONE | 1 << EVENT_EXEC
_EXITKILL = 1 << 20

WAIT_ALL = 0x40000000  # __WALL: threads too
SYSCALL_ARCH_PRCTL = 158
ARCH_SET_CPUID = 0x1012
_SYSCALL_INSTRUCTION = b"\x0f\x05"
_NO_SYSCALL = (1 << 64) - 1
_MAX_STEPS = 16
_SYSCALL_TGKILL = 234
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSYS})

_NT_X86_XSTATE = 0x202
_XSAVE_HEADER_AT, _XSAVE_HEADER_END = 512, 576

_REGISTER_NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss"
    " fs_base gs_base ds es fs gs"
)


class Registers(ctypes.Structure):
    """`user_regs_struct` of x86-64."""

    _fields_ = [(name, ctypes.c_uint64) for name in _REGISTER_NAMES.split()]


@cache
def _ptrace() -> Any:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return call


def _request(number: int, tid: int, address: int = 0, data: object = 0) -> None:
    ctypes.set_errno(0)
    if _ptrace()(number, tid, address, data) == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace request {number:#x} on {tid}")


def seize(tid: int) -> None:
    """Trace a thread with all it will start; they die with the tracer."""
    _request(_SEIZE, tid, 0, _OPTIONS | _EXITKILL)


def interrupt(tid: int) -> None:
    _request(_INTERRUPT, tid)


def go_on(tid: int, signal_number: int = 0) -> None:
    _request(_CONT, tid, 0, signal_number)


def listen(tid: int) -> None:
    """Leave a thread stopped by SIGSTOP as it is, and hear of its going on."""
    _request(_LISTEN, tid)


def detach(tid: int, signal_number: int = 0) -> None:
    _request(_DETACH, tid, 0, signal_number)


def get_registers(tid: int) -> Registers:
    registers = Registers()
    _request(_GETREGS, tid, 0, ctypes.byref(registers))
    return registers


def set_registers(tid: int, registers: Registers) -> None:
    _request(_SETREGS, tid, 0, ctypes.byref(registers))


class _Vector(ctypes.Structure):
    """`iovec`."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def state_in_use(tid: int) -> int:
    """The components of XSAVE, by bit, that a stopped thread has in use: XSTATE_BV."""
    area = ctypes.create_string_buffer(_XSAVE_HEADER_END)
    vector = _Vector(ctypes.addressof(area), len(area))
    _request(_GETREGSET, tid, _NT_X86_XSTATE, ctypes.byref(vector))
    if vector.length < _XSAVE_HEADER_END:
        raise OSError(0, f"thread {tid} has no XSAVE area")
    in_use: int = struct.unpack_from("<Q", area, _XSAVE_HEADER_AT)[0]
    return in_use


def event_message(tid: int) -> int:
    """Of a fork or clone: the number of what was made."""
    value = ctypes.c_ulong()
    _request(_GETEVENTMSG, tid, 0, ctypes.byref(value))
    return value.value


def signal_code(tid: int) -> int:
    """`si_code` of the signal that a thread is stopped by."""
    information = (ctypes.c_int * 32)()
    _request(_GETSIGINFO, tid, 0, ctypes.byref(information))
    return information[2]


def read_memory(tid: int, address: int, length: int) -> bytes:
    descriptor = os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, length, address)
    finally:
        os.close(descriptor)


def system_call(tid: int, number: int, *arguments: int) -> int:
    """Have a stopped thread make a system call, and be what it was before; the call's own result.

    The instruction is one of the vDSO: nothing of the process's memory changes.
    """
    saved = get_registers(tid)
    working = Registers.from_buffer_copy(saved)
    at = _vdso_syscall(tid)
    for name, value in zip(("rdi", "rsi", "rdx"), arguments, strict=False):
        setattr(working, name, value)
    working.rax, working.orig_rax, working.rip = number, _NO_SYSCALL, at
    set_registers(tid, working)
    waiting: list[int] = []
    try:
        # a thread that stands in a system call (exec) leaves it with the first step, which sets RAX
        for _ in range(_MAX_STEPS):
            _request(_SINGLESTEP, tid)
            _, status = os.waitpid(tid, WAIT_ALL)
            if not os.WIFSTOPPED(status):
                raise ProcessLookupError(0, f"thread {tid} ended")
            number, event = os.WSTOPSIG(status), status >> 16
            if event == EVENT_STOP:  # an interruption that was asked for before
                continue
            if number in _FAULTS:
                raise OSError(0, f"thread {tid} could not execute a system call: signal {number}")
            if number != signal.SIGTRAP:
                waiting.append(number)  # its handler must not run here
                continue
            now = get_registers(tid)
            if now.rip == at + len(_SYSCALL_INSTRUCTION):
                return ctypes.c_int64(now.rax).value
            set_registers(tid, working)
        raise OSError(0, f"thread {tid} did not make its system call")
    finally:
        set_registers(tid, saved)
        for number in waiting:
            _send_again(tid, number)


def process_of(tid: int) -> int:
    """The process that a thread belongs to."""
    status = Path(f"/proc/{tid}/status").read_text("utf-8", "replace")
    found = re.search(r"^Tgid:\s*(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def _send_again(tid: int, number: int) -> None:
    ctypes.CDLL(None, use_errno=True).syscall(_SYSCALL_TGKILL, process_of(tid), tid, number)


def _vdso_syscall(tid: int) -> int:
    maps = Path(f"/proc/{tid}/maps").read_text("utf-8", "replace")
    found = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]$", maps, re.MULTILINE)
    if found is None:
        raise OSError(0, f"process {tid} has no vDSO")
    start, end = int(found[1], 16), int(found[2], 16)
    place = read_memory(tid, start, end - start).find(_SYSCALL_INSTRUCTION)
    if place < 0:
        raise OSError(0, f"the vDSO of process {tid} has no system call in it")
    return start + place
