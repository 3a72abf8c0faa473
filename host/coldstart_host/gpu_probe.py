"""NVML asked in a process that can be killed: a hung driver costs one deadline, never the caller."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import ColdstartError
from coldstart_cli.process import Completed, ProgramTimeoutError, run
from coldstart_host.gpu import GpuFacts, NvmlFault, NvmlReading, gpu_from_json, gpu_to_json
from coldstart_host.gpu_module import module_version

if TYPE_CHECKING:
    from coldstart_host.gpu_asking import GpuQuestions
    from coldstart_host.gpu_nvml import NvmlSession

PROBE_DEADLINE_SECONDS = 4.0
# the probe has nothing to clean up, and `health quick` promises an answer within five seconds
_GRACE_SECONDS = 0.1
_KILL_WAIT_SECONDS = 0.2
# the probe itself gives up this much earlier, to say which call hangs on which GPU
_REPORT_SECONDS = 0.3
# less is not enough to start a probe
_LEAST_SECONDS = 0.6


class ProbeFailedError(ColdstartError):
    """The probe itself died, for instance inside the driver's library."""


def read_gpus(*, deadline_seconds: float = PROBE_DEADLINE_SECONDS, thorough: bool = False) -> NvmlReading:
    """All GPUs that NVML knows; what was read before a hang or a crash is kept, with the call that did it."""
    end = time.monotonic() + deadline_seconds
    reading, death = _probe(deadline_seconds, thorough=thorough)
    if death is None:
        return reading
    if reading.count is None:
        raise ProbeFailedError(death)
    return _one_by_one(reading, end, thorough=thorough)


def _one_by_one(reading: NvmlReading, end: float, *, thorough: bool) -> NvmlReading:
    """After a crash, which ends the questions to all: those without an answer again, one after the other."""
    gpus = {gpu.index: gpu for gpu in reading.gpus}
    while missing := [index for index in range(reading.count or 0) if index not in gpus]:
        left = end - time.monotonic()
        if left < _LEAST_SECONDS:
            break
        try:
            again, _ = _probe(left, thorough=thorough, only=missing)
        except ProbeFailedError:
            break
        if not again.gpus:
            break
        gpus |= {gpu.index: gpu for gpu in again.gpus}
    for index in range(reading.count or 0):
        gpus.setdefault(index, GpuFacts(index, hung="the time that a crash of NVML left", died=True))
    crashes = [f"GPU {gpu.index} in {gpu.hung}" for gpu in gpus.values() if gpu.hung is not None]
    return replace(
        reading,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        hung=", ".join(crashes) or "a call that is not known",
        died=True,
    )


def _probe(
    deadline_seconds: float, *, thorough: bool, only: Sequence[int] = ()
) -> tuple[NvmlReading, str | None]:
    """One process: what it said, and why it died, None where it did not."""
    # -P keeps the working folder out of the module path
    command = [sys.executable, "-P", "-m", __name__, str(max(deadline_seconds - _REPORT_SECONDS, 0.1))]
    command += ["--thorough"] if thorough else []
    command += ["--only", ",".join(map(str, only))] if only else []
    try:
        completed = run(
            command,
            deadline_seconds=deadline_seconds,
            purpose="NVML probe",
            check=False,
            grace_seconds=_GRACE_SECONDS,
            kill_wait_seconds=_KILL_WAIT_SECONDS,
        )
    except ProgramTimeoutError as error:
        return _assemble(error.stdout, killed=True), None
    if completed.status != 0:
        return _before_death(completed.stdout), _death(completed)
    return _assemble(completed.stdout, killed=False), None


def _death(completed: Completed) -> str:
    """Why a probe died: its last words, or the signal that ended it."""
    words = completed.error_text or "no message"
    return f"NVML probe died (status {completed.status}): {words}"


def _assemble(output: bytes, *, killed: bool) -> NvmlReading:
    reading = NvmlReading(module_version=module_version())
    asked: set[int] = set()
    gpus: dict[int, GpuFacts] = {}
    step, ended = "start of NVML", False
    for event in map(_event, output.splitlines()):
        kind = event.pop("event", None)
        if kind == "driver":
            reading, step = replace(reading, **event), "the GPUs"
        elif kind == "begin":
            asked.add(event["index"])
        elif kind == "gpu":
            facts = gpu_from_json(event["facts"])
            gpus[facts.index] = facts
        elif kind == "fault":
            fault = NvmlFault(**event["fault"])
            return replace(reading, fault=fault, library_version=event["library_version"])
        elif kind == "hung":
            step, killed = event["call"], True
        elif kind == "end":
            ended = True
    if not ended and not killed:
        raise ProbeFailedError(f"NVML probe ended early, at: {step}")
    silent = [f"GPU {index}" for index in sorted(asked - gpus.keys())]
    hanging = [f"GPU {facts.index} in {facts.hung}" for facts in gpus.values() if facts.hung]
    return replace(
        reading,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        # all was read when only the end is missing: the shutdown hung, which is a hang all the same
        hung=", ".join(hanging + silent) or step if killed else None,
    )


def _before_death(output: bytes) -> NvmlReading:
    """What a probe said that died: whole GPUs, and the one at which it did where it announced its calls."""
    reading = NvmlReading(module_version=module_version())
    gpus: dict[int, GpuFacts] = {}
    for event in map(_event, output.splitlines()):
        kind = event.pop("event", None)
        if kind == "driver":
            reading = replace(reading, **event)
        elif kind in {"call", "gpu"}:
            facts = gpu_from_json(event["facts"])
            gpus[facts.index] = replace(facts, died=kind == "call")
    return replace(reading, gpus=tuple(gpus[index] for index in sorted(gpus)))


def _event(line: bytes) -> dict[str, Any]:
    """One line of the probe; the driver's library may print lines of its own, and the last may be cut."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


# --- the probe itself ---

_saying = threading.Lock()


def _say(event: str, **content: Any) -> None:
    with _saying:
        sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
        sys.stdout.flush()


class _Deadline:
    """Work in threads of their own: a call that hangs is left behind, and the process ends without it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def ended(self, thread: threading.Thread) -> bool:
        thread.join(max(self._end - time.monotonic(), 0.0))
        return not thread.is_alive()


def main() -> None:
    """One JSON line a step; every GPU is asked beside the others, so that one hang costs one deadline."""
    deadline = _Deadline(float(sys.argv[1]))
    failures: list[BaseException] = []
    work = _Probe(deadline, failures, thorough="--thorough" in sys.argv)
    if not deadline.ended(deadline.start(work.guarded(work.open))):
        _leave("start of NVML")
    if work.session is not None:
        if "--only" in sys.argv:
            work.ask_in_turn([int(index) for index in sys.argv[sys.argv.index("--only") + 1].split(",")])
        else:
            work.ask_all()
        if not deadline.ended(deadline.start(work.guarded(work.session.close))):
            _leave("shutdown of NVML")
    if failures:
        raise failures[0]


class _Probe:
    def __init__(self, deadline: _Deadline, failures: list[BaseException], *, thorough: bool) -> None:
        # imported here, in the main thread: the threads must not wait for each other's imports
        from coldstart_host.gpu_nvml import NvmlSession, NvmlUnusableError, library_version

        self._kind, self._unusable, self._library = NvmlSession, NvmlUnusableError, library_version
        self._deadline = deadline
        self._failures = failures
        self._thorough = thorough
        self.session: NvmlSession | None = None

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run_it() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._failures.append(error)

        return run_it

    def open(self) -> None:
        try:
            session = self._kind()
        except self._unusable as error:
            _say("fault", fault=vars(error.fault), library_version=self._library())
            _say("end")
            return
        _say(
            "driver",
            driver_version=session.driver_version,
            cuda_version=session.cuda_version,
            count=session.count,
            library_version=self._library(),
        )
        self.session = session

    def ask_all(self) -> None:
        assert self.session is not None
        session = self.session
        started = []
        for index in range(session.count):
            questions = session.questions(index)
            _say("begin", index=index)
            started.append((questions, self._deadline.start(self.guarded(partial(self._ask, questions)))))
        late = [questions for questions, thread in started if not self._deadline.ended(thread)]
        for questions in late:
            _say("gpu", facts=gpu_to_json(questions.facts(hung=questions.call)))
        if late:
            _leave("the GPUs")
        if not self._failures:
            _say("end")

    def ask_in_turn(self, indexes: Sequence[int]) -> None:
        """One GPU after the other, each call announced: whoever ends this process is known."""
        assert self.session is not None
        for index in indexes:
            questions = self.session.questions(index)
            questions.announce = lambda facts: _say("call", facts=gpu_to_json(facts))
            if not self._deadline.ended(self._deadline.start(self.guarded(partial(self._ask, questions)))):
                _say("gpu", facts=gpu_to_json(questions.facts(hung=questions.call)))
                _leave("the GPUs")
            if self._failures:
                return
        _say("end")

    def _ask(self, questions: GpuQuestions) -> None:
        assert self.session is not None
        _say("gpu", facts=gpu_to_json(self.session.read(questions, thorough=self._thorough)))


def _leave(call: str) -> None:
    """End without the threads that hang; the kernel may keep the process, and never its caller."""
    _say("hung", call=call)
    os._exit(0)


if __name__ == "__main__":
    main()
