"""External programs: a deadline for the whole family, bounded output, errors that say which program."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import (
    INSTALL_HINTS,
    ProgramFailedError,
    ProgramTimeoutError,
    child_environment,
    find_program,
    kill_group,
    last_lines,
    run,
    start,
)
from conftest import wait_until


def _alive(pid: int) -> bool:
    """Running, and not a zombie that only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _gone(*pids: int) -> None:
    wait_until(lambda: not any(_alive(pid) for pid in pids), f"processes {pids} to be gone", 10)


# --- results ---


def test_status_output_and_time_come_back_apart() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline_seconds=20, check=False)
    assert (done.status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert done.text == "out\n"
    assert done.error_text == "err"
    assert not done.truncated
    assert 0 < done.duration_seconds < 20


def test_a_failure_carries_the_purpose_and_the_last_lines_of_stderr() -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; exit 4"
    with pytest.raises(ProgramFailedError) as caught:
        run(["sh", "-c", script], deadline_seconds=20, purpose="dump of process 7")
    assert caught.value.message == (
        "dump of process 7 failed (status 4): line 4; line 5; line 6; line 7; line 8; line 9"
    )
    assert caught.value.completed.status == 4


def test_stdout_explains_where_stderr_is_silent() -> None:
    with pytest.raises(ProgramFailedError, match=r"sh failed \(status 1\): said on stdout"):
        run(["sh", "-c", "echo said on stdout; exit 1"], deadline_seconds=20)


def test_a_signal_is_status_128_and_its_number() -> None:
    done = run(["sh", "-c", "kill -SEGV $$"], deadline_seconds=20, check=False)
    assert done.status == 128 + signal.SIGSEGV


def test_binary_output_comes_back_byte_by_byte() -> None:
    everything = bytes(range(256)) * 2000
    done = run(["cat"], deadline_seconds=20, stdin=everything)
    assert done.stdout == everything
    assert run(["printf", r"\377\n"], deadline_seconds=20).text == "\ufffd\n"


def test_a_large_stdin_does_not_block_a_program_that_writes_before_it_reads() -> None:
    megabyte = b"x" * (1 << 20)
    script = "import sys; sys.stdout.write('y' * 1000000); sys.stdout.flush(); print(len(sys.stdin.read()))"
    done = run([sys.executable, "-c", script], deadline_seconds=30, stdin=megabyte)
    assert done.stdout.endswith(b"y1048576\n")


def test_a_program_that_does_not_read_its_stdin_is_no_error() -> None:
    assert run(["true"], deadline_seconds=20, stdin=b"x" * (1 << 20)).status == 0


def test_the_deadline_counts_from_the_last_progress(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()

    def size() -> int:
        return log.stat().st_size

    moving = ["sh", "-c", f"for i in 1 2 3 4 5 6; do echo >>{log}; sleep 1; done"]
    assert run(moving, deadline_seconds=5, activity=size).duration_seconds > 5
    with pytest.raises(ProgramTimeoutError, match=r"^transfer: no progress for 0\.2 s, killed$"):
        run(["sleep", "60"], deadline_seconds=0.2, activity=size, purpose="transfer")


def test_without_stdin_a_program_reads_nothing() -> None:
    assert run(["cat"], deadline_seconds=20).stdout == b""


def test_the_working_directory_and_descriptors_are_handed_over(tmp_path: Path) -> None:
    assert run(["pwd"], deadline_seconds=20, working_directory=tmp_path).text == f"{tmp_path}\n"
    reader, writer = os.pipe()
    try:
        os.write(writer, b"through")
        os.close(writer)
        done = run(["sh", "-c", f"cat /dev/fd/{reader}"], deadline_seconds=20, pass_descriptors=[reader])
        assert done.stdout == b"through"
    finally:
        os.close(reader)


def test_output_can_go_to_a_descriptor_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        done = run(["sh", "-c", "echo out; echo err >&2"], deadline_seconds=20, output=log.fileno())
        log.seek(0)
        assert log.read() == b"out\nerr\n"
    assert (done.status, done.stdout, done.stderr) == (0, b"", b"")


# --- bounds ---


def test_output_past_the_limit_is_read_and_dropped_the_beginning_kept() -> None:
    done = run(
        ["sh", "-c", "echo first; yes | head -c 3000000"], deadline_seconds=30, output_limit_bytes=1000
    )
    assert done.status == 0
    assert done.truncated
    assert len(done.stdout) == 1000
    assert done.stdout.startswith(b"first\n")


def test_of_a_long_stderr_the_end_is_kept() -> None:
    script = "yes | head -c 3000000 >&2; echo the reason >&2; exit 1"
    done = run(["sh", "-c", script], deadline_seconds=30, output_limit_bytes=1000, check=False)
    assert done.truncated
    assert len(done.stderr) == 1000
    assert done.error_text.endswith("the reason")


def test_a_log_that_grows_past_its_limit_ends_the_program(tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    script = f"yes Error | head -c 5000000 > {log}; exec sleep 300"
    with pytest.raises(ProgramTimeoutError, match=r"log passed 1000000 bytes, killed: .*/restore.log"):
        run(["sh", "-c", script], deadline_seconds=60, watched_logs=[log], log_limit_bytes=1_000_000)


def test_the_last_lines_of_anything_are_text() -> None:
    assert last_lines(b"") == ""
    assert last_lines(b"a\n\n  b  \n", 1) == "b"
    assert last_lines(b"x" * 100_000 + b"\nend\xff\n", 1) == "end\ufffd"


# --- deadlines ---


def test_the_deadline_ends_children_and_grandchildren(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 301 & echo $! > {pids}; (sleep 302 & echo $! >> {pids}; wait) & echo $! >> {pids}; wait"
    started = time.monotonic()
    with pytest.raises(ProgramTimeoutError, match=r"probing: no end after 5 s, killed"):
        run(["sh", "-c", script], deadline_seconds=5, purpose="probing")
    assert time.monotonic() - started < 60
    found = [int(line) for line in pids.read_text().split()]
    assert len(found) == 3
    _gone(*found)


def test_a_program_that_ignores_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {mark}; while :; do sleep 1; done"
    started = time.monotonic()
    with pytest.raises(ProgramTimeoutError):
        run(["sh", "-c", script], deadline_seconds=4, grace_seconds=0.3)
    assert time.monotonic() - started < 60
    _gone(int(mark.read_text()))


def test_a_program_may_clean_up_when_term_comes(tmp_path: Path) -> None:
    mark = tmp_path / "clean"
    script = f"trap 'touch {mark}; exit' TERM; echo ready; while :; do sleep 0.05; done"
    with pytest.raises(ProgramTimeoutError) as caught:
        run(["sh", "-c", script], deadline_seconds=4, grace_seconds=60)
    assert mark.exists()
    assert caught.value.stdout == b"ready\n"


def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_us(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    started = time.monotonic()
    done = run(["sh", "-c", f"sleep 303 & echo $! > {mark}; echo done"], deadline_seconds=60)
    assert done.stdout == b"done\n"
    assert time.monotonic() - started < 60
    _gone(int(mark.read_text()))


def test_an_interrupt_ends_the_program_too(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    def interrupt() -> None:
        wait_until(lambda: mark.exists() and mark.read_text() != "", "the program to run")
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"echo $$ > {mark}; exec sleep 304"], deadline_seconds=60)
    thread.join()
    _gone(int(mark.read_text()))


# --- programs that are not there ---


def test_a_missing_program_is_named_with_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        run([tmp_path / "criu", "check"], deadline_seconds=5)
    assert caught.value.message == f"program is not installed: {tmp_path}/criu"
    assert caught.value.hint == INSTALL_HINTS["criu"]


def test_what_cannot_be_executed_is_said_to_be_so(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    with pytest.raises(UnavailableError, match=r"cannot be executed: .*/plain"):
        run([plain], deadline_seconds=5)
    plain.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"cannot be executed: .*/plain: Exec format error"):
        run([plain], deadline_seconds=5)
    with pytest.raises(UnavailableError, match="cannot be executed"):
        run([plain / "below"], deadline_seconds=5)


def test_a_missing_working_directory_is_not_blamed_on_the_program(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"cannot be executed in .*/absent: true: No such file"):
        run(["true"], deadline_seconds=5, working_directory=tmp_path / "absent")


def test_programs_are_found_on_path_in_sbin_and_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "criu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("criu") == str(program)
    assert find_program("criu", "sh") in {"/bin/sh", "/usr/bin/sh"}
    with pytest.raises(UnavailableError) as caught:
        find_program("criu", f"{tmp_path}/other")
    assert caught.value.message == f"program is not installed: {tmp_path}/other"
    assert caught.value.hint == INSTALL_HINTS["criu"]
    program.chmod(stat.S_IRUSR)
    monkeypatch.setattr("coldstart_cli.process._EXTRA_PATH", ())
    with pytest.raises(UnavailableError, match="program is not installed: criu"):
        find_program("criu")


# --- environment and programs that stay ---


def test_a_child_speaks_c_and_cannot_declare_us_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    environment = child_environment({"EXTRA": "1"})
    assert "NOTIFY_SOCKET" not in environment
    assert environment["LC_ALL"] == "C.UTF-8"
    assert environment["EXTRA"] == "1"
    # its own programs are found too, whatever PATH we were given
    monkeypatch.setenv("PATH", "/nowhere:/usr/bin")
    folders = child_environment()["PATH"].split(":")
    assert folders[:2] == ["/nowhere", "/usr/bin"]
    assert "/usr/sbin" in folders
    assert folders.count("/usr/bin") == 1


def test_a_started_program_has_a_session_of_its_own_and_stays(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        child = start(["sh", "-c", "echo out; echo err >&2; sleep 305 & wait"], log=log)
        try:
            wait_until(lambda: (tmp_path / "log").read_bytes() == b"out\nerr\n", "its output")
            assert os.getsid(child.pid) == child.pid
            assert os.getsid(child.pid) != os.getsid(0)
        finally:
            kill_group(child)
        kill_group(child)  # a second time is harmless
    assert child.returncode == -signal.SIGTERM


def test_a_missing_program_cannot_be_started_either(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        with pytest.raises(UnavailableError, match="program is not installed"):
            start([tmp_path / "runc"], log=log)
        (tmp_path / "runc").touch()
        with pytest.raises(UnavailableError, match="cannot be executed"):
            start([tmp_path / "runc"], log=log)
