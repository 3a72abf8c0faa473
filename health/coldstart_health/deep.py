"""`health deep`: DCGM's long diagnosis, only on GPUs that are whole and idle, one run at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, Terminated, UnavailableError
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.process import find_program
from coldstart_health.checks import HealthRun
from coldstart_health.dcgm import read_output, wants_retest
from coldstart_health.dcgm_run import (
    LEVEL_DEADLINES_SECONDS,
    DcgmGpu,
    DcgmOutput,
    discover,
    interrupted_run,
    run_dcgmi,
)
from coldstart_health.diagnosing import announced, diagnosing_path, left_over
from coldstart_health.document import report_document
from coldstart_health.judgement import judge
from coldstart_health.moment import now
from coldstart_health.remember import Run, with_findings, with_memory
from coldstart_health.verdict import HOST, Finding, HealthReport, Verdict
from coldstart_host.gpu import GpuFacts, NvmlReading
from coldstart_host.processes import processes_named

Say = Callable[[str], None]
_USE_CALLS = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMigMode",
)


def deep_check(
    config: Config, *, level: int = 3, deadline_seconds: float | None = None, say: Say = lambda _: None
) -> HealthReport:
    """NVML's word on every GPU, then DCGM's. Raises where DCGM is absent or a GPU is in use or split.

    Interrupted, it saves what finished with the rest as unknown. The deadline is that of all runs together.
    """
    find_program("dcgmi", config.text("programs.dcgmi"))
    lock = config.run_folder / "health-deep.lock"
    with exclusive_lock(lock, wait_seconds=config.number("lock_wait_seconds")):
        this = Run("deep", now())
        run = HealthRun(config)
        run.expectation()
        run.read_host()
        gpus = _idle_gpus(run, level)
        runs = DeepRuns(config, level, deadline_seconds or LEVEL_DEADLINES_SECONDS[level], gpus, say)
        subjects = [gpu.subject for gpu in gpus] if level > 1 else []
        try:
            with announced(diagnosing_path(config.run_folder), level=level, gpus=subjects):
                # what came between the look and the announcement has been placed by now
                reading = run.read_gpus(thorough=True)
                if level > 1:
                    refuse_unless_idle(reading)
                runs.make()
        except (Terminated, KeyboardInterrupt):
            run.add_diagnosis(runs.cut())
            _finished(config, run, this)
            raise
        run.add_diagnosis(runs.outputs)
        run.take_kernel_log(run.kernel_log_in_background())
        run.record()
        return _finished(config, run, this)


def _finished(config: Config, run: HealthRun, this: Run) -> HealthReport:
    evidence = run.evidence()
    return _save(config, with_memory(config, evidence, judge(evidence), this))


def _idle_gpus(run: HealthRun, level: int) -> tuple[GpuFacts, ...]:
    reading = run.read_gpus()
    if level > 1:
        refuse_unless_idle(reading)
        at_work = sorted(set(processes_named("nvvs")) - set(left_over()))
        if at_work:
            raise BusyError(
                f"another diagnosis is running: pid {', '.join(map(str, at_work))}", hint="wait for it to end"
            )
    return tuple(gpu for gpu in reading.gpus if gpu.readable)


class DeepRuns:
    """One run of dcgmi for each GPU model, and one again where heat or power failed it."""

    def __init__(
        self, config: Config, level: int, deadline_seconds: float, gpus: Sequence[GpuFacts], say: Say
    ) -> None:
        self._config = config
        self._level = level
        self._end = time.monotonic() + deadline_seconds
        self._gpus = gpus
        self._say = say
        self._known: tuple[DcgmGpu, ...] = ()
        self._pending: list[tuple[int, ...]] = [()]
        self.outputs: list[DcgmOutput] = []

    def make(self) -> None:
        """Raises where DCGM says that it is not whole, or at work for somebody else."""
        self._known = discover(self._config)
        self._pending = _groups(self._known)
        while self._pending:
            wanted = self._pending[0]
            output = self._run(wanted)
            diagnosis = read_output(output, self._gpus)
            self.outputs.append(output)
            # interrupted from here on, the group has its first result
            del self._pending[0]
            if wants_retest(diagnosis) and self._left() > output.duration_seconds:
                self._say("once more: heat or power failed it")
                again = self._run(wanted, repeats=len(self.outputs) - 1)
                read_output(again, self._gpus)
                self.outputs.append(again)

    def cut(self) -> list[DcgmOutput]:
        """What finished, and for each group that did not a run that says so."""
        return [
            *self.outputs,
            *(interrupted_run(self._level, wanted, self._known) for wanted in self._pending),
        ]

    def _run(self, wanted: tuple[int, ...], repeats: int | None = None) -> DcgmOutput:
        names = f" -i {','.join(map(str, wanted))}" if wanted else ""
        self._say(f"dcgmi diag -r {self._level}{names}")
        return run_dcgmi(
            self._config,
            level=self._level,
            deadline_seconds=max(self._left(), 1.0),
            wanted=wanted,
            known=self._known,
            number=len(self.outputs),
            repeats=repeats,
        )

    def _left(self) -> float:
        return self._end - time.monotonic()


def _groups(known: Sequence[DcgmGpu]) -> list[tuple[int, ...]]:
    """DCGM refuses GPUs of several models in one run; of one model, it takes all without being told."""
    models: dict[str, list[int]] = {}
    for gpu in known:
        models.setdefault(gpu.name or "", []).append(gpu.number)
    return [tuple(numbers) for numbers in models.values()] if len(models) > 1 else [()]


def deep_report_path(state_folder: Path) -> Path:
    return state_folder / "health" / "deep.json"


def _save(config: Config, report: HealthReport) -> HealthReport:
    """Keep the answer, also of a run that had to end early; a disk that refuses it is said, and no fault."""
    document = {"schema": "coldstart.health.deep", "version": 1, **report_document(report)}
    try:
        path = deep_report_path(config.state_folder)
        atomic_write(path, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")
    except ColdstartError as error:
        note = Finding("report_not_saved", Verdict.OK, HOST, "deep", error.message, error.hint)
        return with_findings(report, [note])
    return report


def refuse_unless_idle(reading: NvmlReading) -> None:
    """DCGM's load tests fail on a GPU in use, slow its user down, and need the whole GPU.

    A GPU that does not say whether it is in use counts as in use.
    """
    if reading.fault is not None or reading.count is None or (reading.hung and not reading.gpus):
        why = reading.fault.text if reading.fault else f"NVML hangs, at: {reading.hung}"
        raise _unread("the GPUs of this host", why)
    if len(reading.gpus) < reading.count:
        raise _unread(f"all of {reading.count} GPUs", f"{len(reading.gpus)} answered")
    for gpu in reading.gpus:
        if gpu.mig_enabled:
            raise UnavailableError(
                f"cannot diagnose GPU {gpu.index} ({gpu.subject}): MIG is on",
                hint=f"nvidia-smi -i {gpu.subject} -mig 0",
            )
        if gpu.process_ids:
            pids = ", ".join(map(str, gpu.process_ids[:8]))
            raise BusyError(
                f"GPU {gpu.index} ({gpu.subject}) is in use: {len(gpu.process_ids)} processes, pid {pids}",
                hint="drain the host first, or look without load: `coldstart health quick --active`",
            )
        if why := _unread_use(gpu):
            raise _unread(f"GPU {gpu.index} ({gpu.subject})", why)


def _unread_use(gpu: GpuFacts) -> str:
    """Why it is not known who uses this GPU, or whether it is split; empty where both are known."""
    failed = next((fault for fault in gpu.faults if fault.call in _USE_CALLS), None)
    if failed is not None:
        return f"{failed.call}: {failed.text} (NVML {failed.code})"
    if gpu.hung is not None:
        if gpu.died:
            return f"NVML ended its process, in {gpu.hung}"
        return f"the driver did not answer in time, in {gpu.hung or 'the start of its thread'}"
    if gpu.process_ids is None or _USE_CALLS[1] in gpu.skipped:
        return "it does not tell of its processes"
    return ""


def _unread(what: str, why: str) -> BusyError:
    return BusyError(
        f"cannot tell whether {what} may be put to work: {why}",
        hint="look first: `coldstart health quick`",
    )
