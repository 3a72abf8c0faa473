"""What criu's log texts are told as. The texts are those of criu 4.1 and 4.2, recorded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.criu.calls import keep_log, kept_log
from coldstart_snapshot.criu.log import explain_log, explain_text, read_end
from coldstart_snapshot.criu.program import check_version

_NOISE = (
    "(00.01) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
)
_END = "(00.09) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "(00.05) Error (criu/sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported",
            "this criu is too old for this kernel: it asks sockets for options that"
            " Linux 6.16 and newer refuse",
            "criu 4.2",
        ),
        (
            "(00.00) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds",
            "this criu is too old for this kernel: it cannot read the vDSO of Linux 6.13 and newer",
            "criu",
        ),
        (
            "(00.02) Error (criu/cr-restore.c:1234): Can't fork for 4711: File exists",
            "a process number that the snapshot needs is taken: 4711",
            "container",
        ),
        (
            "(00.02)   4711: Error (criu/cr-restore.c:1700): Pid 4712 do not match expected 4711",
            "a process number that the snapshot needs is taken: 4712",
            "container",
        ),
        (
            "(00.04) Error (x.c:98): Can't dump file 9 of that type [600] (? /anon_inode:[io_uring])",
            "the server uses io_uring, which cannot be captured",
            "UV_USE_IO_URING=0",
        ),
        (
            "(00.04) Error (criu/sk-inet.c:200): inet: Can't bind inet socket (id 7): Address already in use",
            "a TCP port that the snapshot needs is in use on this host",
            "ss -ltnp",
        ),
        (
            "(00.04) Error (criu/x.c:900): Can't dump ghost file /srv/big of 3145728 size, increase limit",
            "a deleted file that is still open is too large: /srv/big (3145728 bytes)",
            "--ghost-limit 3145728",
        ),
        (
            "(00.04) Error (criu/files-reg.c:2175): File lib/libc.so.6 has bad size 12 (expect 13)",
            "a file has changed since the capture: lib/libc.so.6",
            "capture again",
        ),
        (
            "(00.04) Error (criu/files-reg.c:1792): Can't lookup mount=27 for fd=3 path=/var/log/x",
            "descriptor 3 is open on a file outside the container: /var/log/x",
            "inside the container",
        ),
        (
            "(00.04) Error (criu/sockets.c:800): sockets: BUG! Unknown socket collected (family 40)",
            "the server has a socket of a family that cannot be captured: 40",
            "close it",
        ),
        (
            "(00.00) Error (criu/protobuf.c:72): Unexpected EOF on (empty-image)",
            "the snapshot's images are incomplete",
            "coldstart snap verify",
        ),
        (
            "(00.00) Error (criu/files-ext.c:98): Can't dump file 36 of that type [20666] (chr 506:0)",
            "descriptor 36 is of a kind that cannot be captured: chr 506:0",
            "/sys/dev/char/506:0/uevent",
        ),
        (
            "(00.00) Error (criu/files-ext.c:98): Can't dump file 36 of that type [20666] (chr 195:255)",
            "a process still holds the GPU: its CUDA state was not suspended",
            "spawn",
        ),
        (
            "(00.00) Error (criu/something.c:1): nobody has seen this one",
            "criu: nobody has seen this one",
            "look at the whole log",
        ),
    ],
)
def test_the_error_that_matters_is_found_between_the_noise(line: str, message: str, hint: str) -> None:
    found = explain_text(f"(00.00) Version: 4.2.1\n{_NOISE}{line}\n(00.06) a line of no importance\n{_END}")
    assert found is not None
    assert found.message == message
    assert hint in found.hint


def test_a_cause_with_a_meaning_wins_over_a_later_consequence() -> None:
    text = (
        "(00.1) Error (criu/files-reg.c:2175): File fd/1 has bad size 0 (expect 10)\n"
        "(00.2) Error (criu/files.c:1221): Unable to open fd=1 id=0x11\n"
        "(00.3) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
    )
    found = explain_text(text)
    assert found is not None
    assert found.line == "File fd/1 has bad size 0 (expect 10)"


def test_the_log_of_a_good_run_explains_nothing(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text(f"{_NOISE}(00.10) Dumping finished successfully\n")
    assert explain_log(log) is None
    assert explain_log(tmp_path / "absent.log") is None


def test_only_the_end_of_an_enormous_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "restore.log"
    with log.open("wb") as stream:
        stream.write(b"(00.1) Error (criu/x.c:1): Can't fork for 1: File exists\n")
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write(b"\n(00.2) Error (criu/x.c:1): nobody has seen this one\n")
    found = explain_log(log)
    assert found is not None
    assert found.message == "criu: nobody has seen this one"


@pytest.mark.parametrize(
    ("version", "release", "fit"),
    [
        ("4.2.1", "6.18.44", True),
        ("4.1.1", "6.18.44", False),
        ("4.1.1", "6.14.0-amd64", True),
        ("3.17.1", "6.14.0", False),
    ],
)
def test_a_criu_is_judged_by_the_kernel_it_has_to_work_on(version: str, release: str, fit: bool) -> None:
    if fit:
        check_version(version, release)
        return
    with pytest.raises(UnavailableError, match=f"criu {version} is too old for Linux {release}"):
        check_version(version, release)


def test_a_log_is_kept_by_its_end_and_no_more_than_can_be_read(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    with log.open("wb") as stream:
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write(b"\n(00.2) Error (criu/x.c:1): Can't fork for 1: File exists\n")
    kept = kept_log(tmp_path / "run", "web", "dump.log")
    assert keep_log(log, kept)
    assert kept.stat().st_size == 1 << 20
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    found = explain_log(kept)
    assert found is not None
    assert found.code == "pid-taken"


def test_a_stream_without_end_takes_no_more_memory_than_its_end() -> None:
    class _Endless(io.RawIOBase):
        left = 64

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            self.left -= 1
            line = (
                b"(00.2) Error (criu/x.c:1): Can't fork for 1: File exists\n"
                if self.left == 0
                else b"x" * len(buffer)
            )
            buffer[: len(line)] = line
            return len(line) if self.left >= 0 else 0

    text = read_end(io.BufferedReader(_Endless(), 1 << 20))
    assert len(text) <= 4 << 20
    assert "Can't fork for 1" in text
