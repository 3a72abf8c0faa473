"""What a host can and cannot do: every check at once, each with a deadline, each gap with its remedy."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from coldstart_cli.errors import ColdstartError
from coldstart_host.doctor_finding import GRACE_SECONDS, Budget, Check, DoctorInput, Finding, Status

_DEADLINE_SECONDS = 2.0


def examine(
    configured: DoctorInput,
    checks: Sequence[tuple[str, Check]] | None = None,
    deadline_seconds: float = _DEADLINE_SECONDS,
) -> tuple[Finding, ...]:
    """Run all checks side by side; one that does not answer in time is a finding, not a wait."""
    chosen = standard_checks() if checks is None else checks
    results: dict[str, Finding] = {}
    # daemon threads: a stat of a dead network file system cannot be interrupted, only left behind
    threads = [
        threading.Thread(
            target=_examine_one, args=(name, check, configured, deadline_seconds, results), daemon=True
        )
        for name, check in chosen
    ]
    end = time.monotonic() + deadline_seconds + 3 * GRACE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return tuple(
        results.get(name)
        or Finding(
            name,
            Status.FAULT,
            f"no answer within {deadline_seconds:g} s",
            cost="commands that need it will hang too",
            remedy="look for a dead mount or a hung driver: `dmesg | tail`",
            seconds=deadline_seconds,
        )
        for name, _ in chosen
    )


def standard_checks() -> tuple[tuple[str, Check], ...]:
    """In the order in which they are shown."""
    from coldstart_host import doctor_gpu, doctor_programs, doctor_system

    return (
        ("kernel", doctor_system.kernel),
        ("cpu", doctor_system.cpu),
        ("user", doctor_system.user),
        ("fuse", doctor_system.fuse),
        ("fusermount3", doctor_programs.fusermount3),
        ("image packages", doctor_programs.image_packages),
        ("overlay", doctor_system.overlay),
        ("criu", doctor_programs.criu),
        ("runc", doctor_programs.runc),
        ("cgroup", doctor_system.cgroup),
        ("seccomp", doctor_system.seccomp),
        ("network lock", doctor_programs.network_lock),
        ("skopeo", doctor_programs.skopeo),
        ("ortools", doctor_programs.ortools),
        ("nvidia driver", doctor_gpu.driver),
        ("cuda-checkpoint", doctor_gpu.cuda_checkpoint),
        ("dcgm", doctor_gpu.dcgm),
        ("state folder", doctor_system.state_folder),
        ("cache folder", doctor_system.cache_folder),
    )


def _examine_one(
    name: str, check: Check, configured: DoctorInput, deadline_seconds: float, results: dict[str, Finding]
) -> None:
    started = time.monotonic()
    try:
        finding = check(configured, Budget(deadline_seconds))
    except ColdstartError as error:
        finding = Finding(name, Status.FAULT, error.message, remedy=error.hint or "run it by hand")
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        finding = Finding(name, Status.FAULT, f"the check failed: {error!r}", remedy="please report it")
    results[name] = replace(finding, check=name, seconds=time.monotonic() - started)
