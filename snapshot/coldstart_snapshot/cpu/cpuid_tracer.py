"""A process that answers CPUID for a container that starts, as a CPU of one level would.

Linux makes CPUID fault where the CPU can (`cpuid_fault` in /proc/cpuinfo; not on AMD with Linux 6.18).
The fault is switched on at each exec, before the program's first instruction, and inherited by what it
starts. The tracer runs as a program of its own: ptrace belongs to one thread, and waits for all children.
It says `{"traced": true}`. On the line `hold` it stops everything, undoes the fault, and says what it has
seen; on the line `release` it lets go.
When it ends otherwise, the kernel ends what it traced.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from coldstart_host.cpu_levels import XFEATURES
from coldstart_host.cpuid import read_cpuid
from coldstart_snapshot.cpu import ptrace
from coldstart_snapshot.cpu.caps import broken_caps
from coldstart_snapshot.cpu.cpuid_mask import Registers, masked
from coldstart_snapshot.cpu.mapped import environment

_CPUID_INSTRUCTION = b"\x0f\xa2"
_FAULT_OF_THE_KERNEL = 0x80  # SI_KERNEL
_CODE_64_BIT = 0x33
# these differ from CPU to CPU of one host
_TOPOLOGY_LEAVES = frozenset({0x1, 0x4, 0xB, 0x1F, 0x8000001E})
_STOPPING_SIGNALS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_WORDS = 0xFFFFFFFF
# components of XSAVE
_STATES = ((1 << 2, "AVX"), (7 << 5, "AVX-512"), (3 << 17, "AMX"))
# a process that was killed meanwhile, to ptrace and in /proc
_GONE = (ProcessLookupError, FileNotFoundError)


@dataclass
class _Tracer:
    level: str
    threads: set[int] = field(default_factory=set)
    stopped: dict[int, int] = field(default_factory=dict)
    """Threads that wait for their release, with the signal each is to get then."""
    releasing: bool = False
    programs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    questions: Counter[str] = field(default_factory=Counter)
    uncapped: dict[int, list[str]] = field(default_factory=dict)
    """Variables that processes were started without: many servers write over their environment later."""

    def attach(self, pid: int) -> None:
        """Trace every thread of a process; what they start is traced by itself."""
        found = True
        while found:
            found = False
            for name in os.listdir(f"/proc/{pid}/task"):
                if (tid := int(name)) not in self.threads:
                    with suppress(*_GONE):
                        ptrace.seize(tid)
                        self.threads.add(tid)
                        found = True

    def drain(self) -> None:
        """Attend to every thread that stopped or ended."""
        while self.threads:
            try:
                tid, status = os.waitpid(-1, ptrace.WAIT_ALL | os.WNOHANG)
            except ChildProcessError:
                self.threads.clear()
                return
            if tid == 0:
                return
            # killed meanwhile: its end is reported too
            with suppress(*_GONE):
                self._changed(tid, status)

    def hold(self) -> None:
        """Begin to bring every thread to a stop that is ours."""
        self.releasing = True
        for tid in list(self.threads):
            with suppress(*_GONE):
                ptrace.interrupt(tid)

    def undo(self) -> None:
        """Switch the fault off in every thread that stands still."""
        for tid in self.stopped:
            with suppress(*_GONE):
                self._look_at_state(tid)
                self._set_fault(tid, on=False)

    def release(self) -> None:
        for tid, signal_number in self.stopped.items():
            with suppress(*_GONE):
                ptrace.detach(tid, signal_number)

    @property
    def all_stopped(self) -> bool:
        return self.releasing and self.threads <= set(self.stopped)

    def _changed(self, tid: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self.threads.discard(tid)
            self.stopped.pop(tid, None)
            return
        self.threads.add(tid)
        number, event = os.WSTOPSIG(status), status >> 16
        if event == ptrace.EVENT_EXEC:
            self._began(tid)
        elif event in {ptrace.EVENT_FORK, ptrace.EVENT_VFORK, ptrace.EVENT_CLONE}:
            made = ptrace.event_message(tid)
            self.threads.add(made)
            self.uncapped[made] = self.uncapped.get(ptrace.process_of(tid), [])
        elif event == ptrace.EVENT_STOP and number in _STOPPING_SIGNALS and not self.releasing:
            ptrace.listen(tid)
            return
        given = 0 if event or self._answered(tid, number) else number
        if self.releasing and (event in {0, ptrace.EVENT_STOP} or event == ptrace.EVENT_EXEC):
            self.stopped[tid] = given
        else:
            ptrace.go_on(tid, given)
            if self.releasing:  # the interruption is still to come
                with suppress(*_GONE):
                    ptrace.interrupt(tid)

    def _began(self, tid: int) -> None:
        """A new program is about to run its first instruction."""
        # a thread that calls exec takes the number of the first one; the others are gone without a word
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self.threads = {each for each in self.threads if each in present or os.path.exists(f"/proc/{each}")}
        program = os.readlink(f"/proc/{tid}/exe")
        self.programs.append(program)
        self.uncapped[tid] = broken_caps(self.level, environment(tid))
        if ptrace.get_registers(tid).cs != _CODE_64_BIT:
            self.problems.append(f"{program} is a 32-bit program: it could not be kept from asking the CPU")
            return
        self._set_fault(tid, on=True)

    def _look_at_state(self, tid: int) -> None:
        """Registers above the level that a thread has something in: its own code was compiled for more."""
        try:
            in_use = ptrace.state_in_use(tid)
        except _GONE:
            raise
        except OSError as error:
            self.problems.append(f"registers of thread {tid} could not be read: {error.strerror}")
            return
        above = [name for mask, name in _STATES if in_use & mask & ~XFEATURES[self.level]]
        if above:
            program = os.path.basename(os.readlink(f"/proc/{tid}/exe"))
            self.problems.append(f"thread {tid} ({program}) has {' and '.join(above)} registers in use")

    def _set_fault(self, tid: int, *, on: bool) -> None:
        verb = "capped" if on else "let go"
        try:
            result = ptrace.system_call(tid, ptrace.SYSCALL_ARCH_PRCTL, ptrace.ARCH_SET_CPUID, 0 if on else 1)
        except _GONE:
            raise
        except OSError as error:
            self.problems.append(f"thread {tid} could not be {verb}: {error.strerror}")
            return
        if result != 0:
            self.problems.append(f"thread {tid} could not be {verb}: {os.strerror(-result)}")

    def _answered(self, tid: int, signal_number: int) -> bool:
        """Whether a thread stood at CPUID; it has its answer then, and goes on behind it."""
        if signal_number != signal.SIGSEGV or ptrace.signal_code(tid) != _FAULT_OF_THE_KERNEL:
            return False
        registers = ptrace.get_registers(tid)
        try:
            instruction = ptrace.read_memory(tid, registers.rip, len(_CPUID_INSTRUCTION))
        except OSError:
            return False
        if instruction != _CPUID_INSTRUCTION:
            return False
        leaf, subleaf = registers.rax & _WORDS, registers.rcx & _WORDS
        answer = self._answer(tid, leaf, subleaf)
        registers.rax, registers.rbx, registers.rcx, registers.rdx = answer
        registers.rip += len(_CPUID_INSTRUCTION)
        ptrace.set_registers(tid, registers)
        self.questions[f"{leaf:#x}"] += 1
        return True

    def _answer(self, tid: int, leaf: int, subleaf: int) -> Registers:
        if leaf not in _TOPOLOGY_LEAVES:
            return masked(leaf, subleaf, self.level, _cached_cpuid)
        everywhere = os.sched_getaffinity(0)
        try:
            with open(f"/proc/{tid}/stat") as stream:
                cpu = int(stream.read().rpartition(")")[2].split()[36])
            os.sched_setaffinity(0, {cpu})
            return masked(leaf, subleaf, self.level, read_cpuid)
        except (OSError, ValueError):
            return masked(leaf, subleaf, self.level, read_cpuid)
        finally:
            os.sched_setaffinity(0, everywhere)


@cache
def _cached_cpuid(leaf: int, subleaf: int) -> Registers:
    return read_cpuid(leaf, subleaf)


def main(level: str, pid: int) -> int:
    """Trace until the line `hold` comes, or the end of the input, or of what is traced."""
    watched = {signal.SIGCHLD, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    tracer = _Tracer(level)
    tracer.attach(pid)
    _say({"traced": True})
    orders: list[str] = []

    def listen() -> None:
        while not orders or orders[-1] in {"hold", "release"}:
            orders.append(sys.stdin.readline().strip())
            os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=listen, daemon=True).start()
    while tracer.threads and not tracer.all_stopped:
        tracer.drain()
        if orders and not tracer.releasing:
            if orders[0] != "hold":
                return 1  # whoever wanted the capped start is gone; the kernel ends what we trace
            tracer.hold()
        if not tracer.all_stopped:
            signal.sigwait(watched)
    tracer.undo()
    _say(
        {
            "alive": bool(tracer.threads),
            "programs": tracer.programs,
            "problems": tracer.problems,
            "questions": dict(tracer.questions),
            "uncapped": {pid: names for pid, names in tracer.uncapped.items() if names},
        }
    )
    while len(orders) < 2:
        signal.sigwait(watched)
    if orders[-1] != "release":
        return 1
    tracer.release()
    _say({"released": True})
    return 0


def _say(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
