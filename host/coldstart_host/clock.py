"""Whether the kernel's clock is steered by a time source, and where it stands against the time since boot."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coldstart_host.processes import in_container, processes_named

_TIME_ERROR = 5  # adjtimex: the clock is not synchronised
_DAEMONS = ("chronyd", "systemd-timesyncd", "ntpd", "ptp4l", "phc2sys", "openntpd")


@dataclass(frozen=True)
class ClockFacts:
    """`synchronised` is None where the kernel does not say; `booted_at` is the wall clock's idea of the boot.

    The latter stays the same while a clock runs, and moves by as much as somebody sets the clock.
    """

    synchronised: bool | None
    daemon_running: bool
    in_container: bool
    max_error_seconds: float | None
    booted_at: float
    uptime_seconds: float


def _adjtimex() -> tuple[int, int]:
    """What adjtimex(2) returns, and its greatest error in microseconds."""
    import ctypes  # not for `--help`

    class Timex(ctypes.Structure):
        """`struct timex` of adjtimex(2)."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("constant", ctypes.c_long),
            ("precision", ctypes.c_long),
            ("tolerance", ctypes.c_long),
            ("time", ctypes.c_long * 2),
            ("tick", ctypes.c_long),
            ("ppsfreq", ctypes.c_long),
            ("jitter", ctypes.c_long),
            ("shift", ctypes.c_int),
            ("stabil", ctypes.c_long),
            ("jitcnt", ctypes.c_long),
            ("calcnt", ctypes.c_long),
            ("errcnt", ctypes.c_long),
            ("stbcnt", ctypes.c_long),
            ("tai", ctypes.c_int),
            ("reserved", ctypes.c_int * 11),
        )

    timex = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    return state, timex.maxerror


def read_clock() -> ClockFacts:
    state, max_error = _adjtimex()
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return ClockFacts(
        synchronised=None if state < 0 else state != _TIME_ERROR,
        daemon_running=bool(processes_named(*_DAEMONS)),
        in_container=in_container(),
        max_error_seconds=None if state < 0 else max_error / 1e6,
        booted_at=time.time() - uptime,
        uptime_seconds=uptime,
    )
