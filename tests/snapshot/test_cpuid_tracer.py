"""The tracer that answers CPUID: real processes, threads and signals, and what remains when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import reaches
from coldstart_host.cpuid import read_cpuid
from coldstart_snapshot.cpu.caps import capped_environment
from coldstart_snapshot.cpu.cpuid_cap import CpuidCap, CpuidReport
from coldstart_snapshot.cpu.cpuid_mask import masked
from coldstart_snapshot.processes.tree import is_alive
from conftest import wait_until
from snapshot.servers import require_cpuid_faults, require_root

LEVEL = "x86-64-v3"
# says what CPUID says, each time a line comes in
ASKS = "from coldstart_host.cpuid import read_cpuid\n"
SAYS = "print(read_cpuid(7, 0), flush=True)\n"


@dataclass
class Traced:
    """A process under the tracer, which waits until it is let into its program."""

    cap: CpuidCap
    process: subprocess.Popen[str]

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> CpuidReport:
        report = self.cap.hold()
        self.cap.release()
        return report

    def tell(self, text: str = "x") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.line()


Start = Callable[..., Traced]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    require_root()
    require_cpuid_faults()
    made: list[Traced] = []

    def begin(program: str, environment: dict[str, str] | None = None) -> Traced:
        script = tmp_path / f"program{len(made)}.py"
        script.write_text(ASKS + program)
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"read go; exec {sys.executable} -u {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        traced = Traced(CpuidCap(LEVEL), process)
        made.append(traced)
        traced.cap.attach(process.pid)
        traced.begin()
        return traced

    yield begin
    for traced in made:
        traced.cap.close()
        traced.process.kill()
        traced.process.communicate(timeout=60)


def _shown() -> str:
    return str(masked(7, 0, LEVEL, read_cpuid))


def _real() -> str:
    return str(read_cpuid(7, 0))


def test_a_program_is_told_of_the_level_until_it_is_let_go(start: Start) -> None:
    traced = start(f"import sys\n{SAYS}for line in sys.stdin:\n    {SAYS}")
    assert traced.line() == _shown()
    assert traced.tell() == _shown()
    report = traced.let_go()
    assert report.problems == ()
    assert report.programs == (os.path.realpath(sys.executable),)
    assert report.questions["0x7"] >= 2
    assert traced.tell() == _real()


def test_registers_above_the_level_that_a_thread_has_in_use_are_named(start: Start) -> None:
    if not reaches("x86-64-v4", read_cpu_facts().level):
        pytest.skip("this CPU has nothing above the level")
    # vpternlogd $255, %zmm17, %zmm17, %zmm17; ret
    traced = start(
        "import ctypes, mmap, threading\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('62a3754025c9ffc3'))\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "def use():\n"
        "    ctypes.CFUNCTYPE(None)(at)(); print(threading.get_native_id(), flush=True); input()\n"
        "threading.Thread(target=use).start()"
    )
    thread = traced.line()
    (problem,) = traced.let_go().problems
    assert problem.startswith(f"thread {thread} (python")
    assert problem.endswith("has AVX-512 registers in use")
    assert traced.process.stdin is not None
    traced.process.stdin.write("x\n")
    traced.process.stdin.flush()
    assert traced.process.wait(60) == 0


def test_what_is_held_stands_still_until_it_is_released(start: Start) -> None:
    traced = start(f"import sys\n{SAYS}for line in sys.stdin:\n    {SAYS}")
    assert traced.line() == _shown()
    assert traced.cap.hold().problems == ()
    assert _state(traced.process.pid) == "t"
    assert traced.process.stdin is not None
    traced.process.stdin.write("x\n")
    traced.process.stdin.flush()
    assert _state(traced.process.pid) == "t"
    traced.cap.release()
    assert traced.line() == _real()


def test_children_threads_and_other_programs_are_told_the_same(start: Start) -> None:
    traced = start(
        "import os, subprocess, sys, threading\n"
        "def say(): print(read_cpuid(7, 0), flush=True)\n"
        "thread = threading.Thread(target=say); thread.start(); thread.join()\n"
        "if os.fork() == 0:\n    say(); os._exit(0)\n"
        "os.wait()\n"
        "subprocess.run([sys.executable, '-c', "
        "'from coldstart_host.cpuid import read_cpuid; print(read_cpuid(7, 0), flush=True)'], env={})\n"
        "print('done', flush=True)\nsys.stdin.readline()\nsay()\n"
    )
    assert [traced.line() for _ in range(4)] == [_shown()] * 3 + ["done"]
    report = traced.let_go()
    assert (len(report.programs), report.problems) == (2, ())
    assert traced.tell() == _real()


# what setproctitle, nginx and PostgreSQL do
FORGETS = (
    "import ctypes\n"
    "fields = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
    "start, end = int(fields[47]), int(fields[48])\n"
    "ctypes.memset(start, 0, end - start)\n"
    "assert '=' not in open('/proc/self/environ').read()\n"
)


def test_the_environment_is_that_of_the_start_whatever_a_server_writes_over_it(start: Start) -> None:
    program = f"{FORGETS}import os\nif os.fork() == 0:\n    input()\nprint('up', flush=True)\ninput()\n"
    capped = start(program, capped_environment(LEVEL, dict(os.environ)))
    assert capped.line() == "up"
    assert capped.cap.hold().uncapped == {}
    bare = start(program)
    assert bare.line() == "up"
    children = Path(f"/proc/{bare.process.pid}/task/{bare.process.pid}/children").read_text().split()
    report = bare.cap.hold()
    assert set(report.uncapped) >= {bare.process.pid, *map(int, children)}
    assert "GLIBC_TUNABLES" in report.uncapped[bare.process.pid]


def test_threads_that_wait_in_the_kernel_are_let_go_and_go_on_waiting(start: Start) -> None:
    traced = start(
        "import sys, threading, time, select, os\n"
        "read, write = os.pipe()\n"
        "results = []\n"
        "def wait(what):\n    results.append(what()); results.append(read_cpuid(7, 0))\n"
        "event = threading.Event()\n"
        "waits = [lambda: event.wait(), lambda: os.read(read, 1), lambda: time.sleep(2),\n"
        "         lambda: select.select([read], [], [], 2) and None]\n"
        "threads = [threading.Thread(target=wait, args=(each,)) for each in waits]\n"
        "[thread.start() for thread in threads]\n"
        "print('waiting', flush=True)\nsys.stdin.readline()\n"
        "event.set(); os.write(write, b'xx')\n"
        "[thread.join() for thread in threads]\n"
        "print(sorted(map(str, results)), flush=True)\n"
    )
    assert traced.line() == "waiting"
    assert traced.let_go().problems == ()
    expected = sorted([*map(str, [True, b"x", None, None]), *[_real()] * 4])
    assert traced.tell() == str(expected)


def test_signals_of_the_program_are_its_own(start: Start) -> None:
    traced = start(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
        "signal.signal(signal.SIGSEGV, lambda *_: print('segv', flush=True))\n"
        f"{SAYS}"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
        "while True: signal.pause()\n"
    )
    assert [traced.line(), traced.line()] == [_shown(), "segv"]
    traced.process.send_signal(signal.SIGUSR1)
    assert traced.line() == "usr1"
    traced.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: _state(traced.process.pid) in "tT", "the program to stop")
    traced.process.send_signal(signal.SIGCONT)
    traced.process.send_signal(signal.SIGUSR1)
    assert traced.line() == "usr1"
    assert traced.let_go().problems == ()
    traced.process.send_signal(signal.SIGUSR1)
    assert traced.line() == "usr1"


def test_a_program_that_ended_is_no_failure_of_the_tracer(start: Start) -> None:
    traced = start(SAYS)
    assert traced.line() == _shown()
    traced.process.wait(60)
    assert traced.let_go().problems == ()


def test_what_was_not_let_go_ends_with_the_tracer(start: Start) -> None:
    traced = start(
        "import subprocess, sys\nsubprocess.Popen(['sleep', '600'])\nprint('up', flush=True)\ninput()\n"
    )
    assert traced.line() == "up"
    pid = traced.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    traced.cap.close()
    assert traced.process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(int(child)) for child in children), "the child to end")


def test_a_tracer_that_dies_is_a_failure_in_words(start: Start) -> None:
    traced = start("input()\n")
    tracer = int(
        next(
            line.split()[1]
            for line in Path(f"/proc/{traced.process.pid}/status").read_text().splitlines()
            if line.startswith("TracerPid:")
        )
    )
    os.kill(tracer, signal.SIGKILL)
    with pytest.raises(ColdstartError, match="tracer of CPUID failed"):
        traced.let_go()


def test_a_process_that_is_gone_cannot_be_taken_hold_of() -> None:
    require_root()
    process = subprocess.Popen(["true"])
    process.wait()
    cap = CpuidCap(LEVEL)
    with pytest.raises(ColdstartError, match="tracer of CPUID failed"):
        cap.attach(process.pid)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
