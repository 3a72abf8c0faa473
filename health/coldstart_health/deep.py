"""`health deep`: DCGM's long diagnosis, only on GPUs that are whole and idle, one run at a time."""

from __future__ import annotations

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, UnavailableError
from coldstart_cli.files import exclusive_lock
from coldstart_cli.process import find_program
from coldstart_health.checks import HealthRun
from coldstart_health.dcgm import LEVEL_DEADLINES_SECONDS, read_output, run_dcgmi
from coldstart_health.judgement import judge
from coldstart_health.moment import now
from coldstart_health.remember import Run, with_memory
from coldstart_health.verdict import HealthReport
from coldstart_host.gpu import NvmlReading


def deep_check(config: Config, *, level: int = 3, deadline_seconds: float | None = None) -> HealthReport:
    """NVML's word on every GPU, then DCGM's. Raises where DCGM is absent or a GPU is in use or split."""
    find_program("dcgmi", config.text("programs.dcgmi"))
    lock = config.run_folder / "health-deep.lock"
    with exclusive_lock(lock, wait_seconds=config.number("lock_wait_seconds")):
        this = Run("deep", now())
        run = HealthRun(config)
        run.expectation()
        reading = run.read_gpus()
        if level > 1:
            refuse_unless_idle(reading)
        output = run_dcgmi(
            config, level=level, deadline_seconds=deadline_seconds or LEVEL_DEADLINES_SECONDS[level]
        )
        read_output(output, reading.gpus)  # raises where DCGM could not run at all
        run.add_diagnosis(output)
        run.record()
        evidence = run.evidence()
        return with_memory(config, evidence, judge(evidence), this)


def refuse_unless_idle(reading: NvmlReading) -> None:
    """DCGM's load tests fail on a GPU in use, slow its user down, and need the whole GPU."""
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
