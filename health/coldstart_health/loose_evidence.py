"""Evidence from what somebody saved by hand: a dmesg, what dcgmi printed. What is absent was not checked."""

from __future__ import annotations

from collections.abc import Mapping

from coldstart_cli.errors import NotFoundError
from coldstart_health.dcgm_document import parse
from coldstart_health.dcgm_run import DcgmOutput
from coldstart_health.evidence import Evidence
from coldstart_health.kernel_checks import KernelLog
from coldstart_health.kernel_events import decode, fold
from coldstart_health.kernel_reading import KernelRecord
from coldstart_health.verdict import CheckRun

KERNEL_LOG_NAMES = ("kernel-log.txt", "dmesg.txt", "dmesg", "dmesg.log", "kern.log", "journal.txt")
_ENDED_WELL = 0


def loose_evidence(files: Mapping[str, bytes]) -> Evidence:
    """NVML's word cannot be saved by hand, so such a host is never more than unknown."""
    outputs = [output for _, content in sorted(files.items()) if (output := _dcgm(content)) is not None]
    logs = [files[name] for name in KERNEL_LOG_NAMES if name in files]
    log = next((content for content in logs if _dcgm(content) is None), None)
    absent = {"nvml": True, "kernel_log": log is None}
    return Evidence(
        checks=tuple(
            CheckRun(name, 0.0, NotFoundError("not in what was saved") if missing else None)
            for name, missing in absent.items()
        ),
        kernel_log=None if log is None else _kernel_log(log),
        dcgm=tuple(outputs),
    )


def _kernel_log(content: bytes) -> KernelLog:
    """Lines of any tool; without their clock, for each prints another one."""
    lines = content.decode("utf-8", "replace").splitlines()
    records = (KernelRecord(number, 0, line) for number, line in enumerate(lines))
    return KernelLog(boot_id="", source="file", events=fold((), decode(records)))


def _dcgm(content: bytes) -> DcgmOutput | None:
    text = content.decode("utf-8", "replace")
    document = parse(text)
    if document is None:
        return None
    # saved without its exit status and level: what failed says so itself
    level = 1 if all(result.software for result in document.results) else 2
    return DcgmOutput(level, _ENDED_WELL, text, "", 0.0)
