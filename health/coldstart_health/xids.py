"""What each XID of NVIDIA's driver means for a GPU: our verdicts, from NVIDIA's catalogue of 2025-10.

A number that the catalogue calls unused, or does not have, is UNKNOWN: nobody can say that it is harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from coldstart_health.verdict import Verdict

LAST_KNOWN = 172


class Course(Enum):
    """What an XID asks for, with the verdict of one such event."""

    NOTE = (Verdict.OK, "nothing; it is counted")
    RESTART = (Verdict.OK, "restart the application that met it")
    CONTAINED = (Verdict.DEGRADED, "restart the application; reset the GPU at the next pause")
    FOLLOW = (
        Verdict.OK,
        "follow the XID before it; alone: see the application, and the fabric manager",
    )
    WATCH = (Verdict.DEGRADED, "plan its replacement")
    UNEXPLAINED = (Verdict.UNKNOWN, "look it up in NVIDIA's XID catalogue for this driver")
    LOOK = (Verdict.DRAIN, "drain it, and have a person look")
    POWER_CABLE = (Verdict.DRAIN, "drain it and check the GPU's power cables")
    SOFTWARE = (Verdict.DRAIN, "drain it and update driver and firmware")
    RESET = (Verdict.RESET, "drain it, then `nvidia-smi --gpu-reset -i {gpu}`")
    REBOOT = (Verdict.REBOOT, "drain and reboot the host; replace the GPU if it comes again")
    DECODE = (Verdict.RESET, "what its words say: see the NVLink rules")
    DRIVER_SAYS = (Verdict.UNKNOWN, "the recovery action that the driver names")

    def __init__(self, verdict: Verdict, action: str) -> None:
        self.verdict = verdict
        self.action = action


@dataclass(frozen=True)
class Xid:
    code: int
    meaning: str
    course: Course


# ranges of engines that come many times over: copy engines, video decoders and so on
_COPY_ENGINES = {39: 0, 40: 1, 41: 2, 70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9} | {
    code: code - 116 for code in range(126, 136)
}
_DECODERS = {68: 0, 83: 1, 84: 2, 88: 3, 89: 4, 96: 5, 97: 6, 98: 7}
_JPEG = {82: 0} | {code: code - 98 for code in range(99, 106)}

_MEANINGS: dict[Course, dict[int, str]] = {
    Course.NOTE: {
        14: "reserved for tests",
        37: "firmware of the front end met a method that it does not know",
        38: "watchdog of the front end's firmware",
        43: "a program's channel was stopped after its own fault",
        44: "fault while a graphics context was switched",
        63: "a memory row (or page) was marked for remapping; NVML tells whether a reset is due",
        66: "illegal register access by the driver",
        67: "illegal access by the driver",
        92: "many corrected single-bit memory errors",
        93: "the InfoROM is written more often than it was made for",
        106: "test message of the management bus",
        107: "silent test message of the management bus",
        108: "NVLink: address translation on the remote side",
        121: "corrected error on the link between CPU and GPU",
        137: "NVLink: access without privilege, the peer's program is at fault",
        141: "fast path of CUDA fell back",
        152: "memory unit of the deep learning accelerator",
        153: "time-out of the deep learning accelerator",
        157: "a resource could not be retired",
        160: "a memory channel was retired",
        161: "a memory channel could not be retired",
        162: "power smoothing is in use again",
        163: "power smoothing went out of use",
    },
    Course.RESTART: {
        8: "the GPU stopped working on a program's channel",
        11: "damaged command stream of a program",
        13: "exception in the graphics or compute engine: usually the program's own fault",
        25: "illegal command stream of a program",
        31: "a program touched memory that is not mapped",
        32: "damaged command stream of a program",
        60: "exception in the security engine for video",
        69: "class error in the graphics engine",
        80: "commands arrived damaged at the GPU",
        86: "exception in the optical flow engine",
        139: "exception in the second optical flow engine",
        **{code: f"fault in copy engine {number}" for code, number in _COPY_ENGINES.items()},
        **{code: f"fault in video decoder {number}" for code, number in _DECODERS.items()},
        **{code: f"fault in JPEG decoder {number}" for code, number in _JPEG.items()},
    },
    Course.CONTAINED: {94: "uncorrectable memory error, contained: only the program that met it is hurt"},
    Course.FOLLOW: {45: "a program's channels were removed, after another fault or because it was ended"},
    Course.WATCH: {
        164: "power smoothing hardware is near the end of its life",
        165: "power smoothing hardware is at the end of its life",
        168: "part of the memory is not used because of errors in it",
    },
    Course.POWER_CABLE: {54: "auxiliary power is not connected"},
    Course.SOFTWARE: {78: "a virtual GPU could not start"},
    Course.LOOK: {
        61: "breakpoint in the power management unit",
        122: "flash memory cannot be read by the power management unit",
        123: "flash memory cannot be written by the power management unit",
        124: "flash memory cannot be erased by the power management unit",
        125: "file system of the InfoROM",
        142: "fault in video encoder 3",
        159: "error on the coherent link that is not about data",
        166: "traffic before the link was set up for encryption",
        167: "fatal time-out on PCIe",
        169: "a micro-controller of the security engine halted",
        170: "unexpected interrupt on a secured NVLink",
    },
    Course.RESET: {
        46: "the GPU stopped working",
        48: "double-bit memory error, not correctable",
        62: "a micro-controller inside the GPU halted",
        64: "a memory row (or page) could not be remapped",
        74: "NVLink error",
        95: "uncorrectable memory error, not contained: every program on the GPU may be hurt",
        109: "a context switch timed out",
        110: "security fault",
        119: "the GPU's system processor (GSP) does not answer",
        120: "error in the GPU's system processor (GSP)",
        136: "an NVLink could not be trained",
        140: "memory error that was not recovered from",
        143: "the GPU could not be initialised",
        155: "NVLink: error defined by software",
        156: "a resource was retired",
        158: "fatal time-out inside the GPU",
        171: "uncorrectable error in DRAM (detail of 48)",
        172: "uncorrectable error in SRAM (detail of 48)",
    },
    Course.REBOOT: {
        79: "the GPU has fallen off the bus",
        151: "key rotation of confidential computing failed",
    },
    Course.DECODE: {
        144: "NVLink 5: error in unit SAW",
        145: "NVLink 5: error in unit RLW",
        146: "NVLink 5: error in unit TLW",
        147: "NVLink 5: error in unit TREX",
        148: "NVLink 5: error in the control of NVLPW",
        149: "NVLink 5: error or event in NETIR",
        150: "NVLink 5: error in MSE",
    },
    Course.DRIVER_SAYS: {154: "the driver changed what must be done to recover the GPU"},
}
_TABLE = {
    code: Xid(code, meaning, course) for course, codes in _MEANINGS.items() for code, meaning in codes.items()
}


def xid(code: int) -> Xid:
    """The entry of a number; never misses."""
    known = _TABLE.get(code)
    if known is not None:
        return known
    where = "unused in" if 0 < code <= LAST_KNOWN else "newer than"
    return Xid(code, f"number {where} NVIDIA's catalogue", Course.UNEXPLAINED)


def all_xids() -> Iterator[Xid]:
    """Every number with a meaning, in order."""
    return iter(sorted(_TABLE.values(), key=lambda entry: entry.code))
