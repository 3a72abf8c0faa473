"""What plain criu says when its options or the world do not fit, told by `snap explain`'s catalogue."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli import process
from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.criu.log import Explanation, explain_log
from coldstart_snapshot.criu.program import Criu, find_criu
from coldstart_snapshot.processes.tree import end_tree, is_alive
from conftest import wait_until
from snapshot.servers import require_engine
from snapshot.troubles import follower_with, process_with

_SECONDS = 20.0
_LOG_LIMIT_BYTES = 1 << 20
_PAIR = (
    "listener = socket.create_server(('127.0.0.1', 0))\n"
    "one = socket.create_connection(listener.getsockname()); other, _ = listener.accept()"
)
_LOG = "made = open(f'{folder}/server.log', 'w'); made.write('x' * 100); made.flush()"


class PlainCriu:
    """criu as people call it, with a deadline and a bounded log."""

    def __init__(self, criu: Criu, folder: Path) -> None:
        self.images = folder / "images"
        self._criu = criu.program
        self.images.mkdir()
        self._restored: list[int] = []
        self._pid = 0
        self.deadline_seconds = _SECONDS

    def dump(self, pid: int, *options: str) -> Explanation | None:
        """What the log of a dump means; None when it succeeded."""
        self._pid = pid
        return self._run("dump", "--tree", str(pid), "--leave-running", *options)

    def restore(self, *options: str) -> Explanation | None:
        """What the log of a restore means; None when it succeeded."""
        (self.images / "pid").unlink(missing_ok=True)
        was_free = not os.path.exists(f"/proc/{self._pid}")
        try:
            found = self._run("restore", "--restore-detached", "--pidfile", "pid", *options)
        except ColdstartError:
            # criu was killed, and what it had begun is in a session of its own
            if was_free and os.path.exists(f"/proc/{self._pid}"):
                os.kill(self._pid, signal.SIGKILL)
            raise
        if found is None:
            self._restored.append(int((self.images / "pid").read_text()))
        elif was_free:
            # what was restored in part ends a little later than criu
            wait_until(lambda: not os.path.exists(f"/proc/{self._pid}"), "what was restored in part is gone")
        return found

    def image(self, pattern: str) -> Path:
        return next(iter(self.images.glob(pattern)))

    def close(self) -> None:
        for pid in self._restored:
            end_tree(pid, grace_seconds=0.2)

    def _run(self, verb: str, *options: str) -> Explanation | None:
        log = self.images / f"{verb}.log"
        null = os.open(os.devnull, os.O_RDWR)
        try:
            completed = process.run(
                [self._criu, verb, "--images-dir", self.images, "--log-file", log.name, "-v2",
                 "--no-default-config", *options],
                deadline_seconds=self.deadline_seconds, check=False,
                watched_logs=(log,), log_limit_bytes=_LOG_LIMIT_BYTES,
                output=null,
            )  # fmt: skip
        finally:
            os.close(null)
        if completed.status == 0:
            return None
        found = explain_log(log)
        assert found is not None, log.read_text()
        return found


@pytest.fixture
def criu(tmp_path: Path) -> Iterator[PlainCriu]:
    require_engine()
    plain = PlainCriu(find_criu(), tmp_path)
    yield plain
    plain.close()


def _code(explanation: Explanation | None) -> str | None:
    return explanation.code if explanation else None


@pytest.mark.parametrize(
    ("trouble", "options", "code", "enough"),
    [
        (_PAIR, (), "tcp-connected", ("--tcp-established",)),
        ("made = file('large', 3 << 20)", (), "deleted-file", ("--ghost-limit", "64M")),
        (
            "made = file('first', 10, delete=False); os.link(f'{folder}/first', f'{folder}/second')\n"
            "os.unlink(f'{folder}/first')",
            (),
            "deleted-link",
            ("--link-remap",),
        ),
        (
            "made = open(f'{folder}/lock', 'w'); fcntl.flock(made, fcntl.LOCK_EX)",
            (),
            "file-lock",
            ("--file-locks",),
        ),
    ],
)
def test_an_option_that_is_missing_at_the_dump_is_told(
    criu: PlainCriu,
    tmp_path: Path,
    trouble: str,
    options: tuple[str, ...],
    code: str,
    enough: tuple[str, ...],
) -> None:
    with process_with(tmp_path, trouble) as pid:
        assert _code(criu.dump(pid, *options)) == code
        assert is_alive(pid)
        assert criu.dump(pid, *options, *enough) is None


def test_a_process_that_leads_no_session_is_told_and_can_be_dumped_as_a_job_of_the_shell(
    criu: PlainCriu, tmp_path: Path
) -> None:
    with follower_with(tmp_path, "") as pid:
        assert _code(criu.dump(pid)) == "not-session-leader"
        assert criu.dump(pid, "--shell-job") is None


def test_a_number_that_is_taken_is_told(criu: PlainCriu, tmp_path: Path) -> None:
    with process_with(tmp_path, "") as pid:
        assert criu.dump(pid) is None
        found = criu.restore()
        assert found is not None
        assert (found.code, str(pid) in found.message) == ("pid-taken", True)


def test_a_port_that_is_taken_is_told(criu: PlainCriu, tmp_path: Path) -> None:
    trouble = (
        "made = socket.create_server(('127.0.0.1', 0))\n"
        "open(f'{folder}/port', 'w').write(str(made.getsockname()[1]))"
    )
    with process_with(tmp_path, trouble) as pid:
        assert criu.dump(pid) is None
    with socket.create_server(("127.0.0.1", int((tmp_path / "port").read_text()))):
        assert _code(criu.restore()) == "port-taken"
    assert criu.restore() is None


@pytest.mark.parametrize("change", ["grown", "replaced by one as large"])
def test_a_log_that_went_on_is_no_obstacle_when_it_is_only_appended_to(
    criu: PlainCriu, tmp_path: Path, change: str
) -> None:
    with process_with(tmp_path, _LOG.replace("'w')", "'a')")) as pid:
        assert criu.dump(pid) is None
    log = tmp_path / "server.log"
    if change == "grown":
        log.write_text("x" * 200)
    else:
        log.unlink()
        log.write_text("y" * 100)
    assert criu.restore() is None


def test_a_file_that_is_gone_or_has_another_size_is_told_by_name(criu: PlainCriu, tmp_path: Path) -> None:
    with process_with(tmp_path, _LOG) as pid:
        assert criu.dump(pid) is None
    log = tmp_path / "server.log"
    log.write_text("x" * 200)
    found = criu.restore()
    assert found is not None
    assert (found.code, "server.log" in found.message) == ("file-changed", True)
    log.unlink()
    found = criu.restore()
    assert found is not None
    assert (found.code, "server.log" in found.message) == ("file-missing", True)


@pytest.mark.parametrize(
    ("image", "harm"),
    [
        ("core-*.img", "removed"),
        ("core-*.img", "cut"),
        ("inventory.img", "removed"),
        ("files.img", "cut"),
        ("pages-*.img", "removed"),
    ],
)
def test_images_that_are_incomplete_are_told(criu: PlainCriu, tmp_path: Path, image: str, harm: str) -> None:
    with process_with(tmp_path, "") as pid:
        assert criu.dump(pid) is None
    path = criu.image(image)
    if harm == "removed":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 20)
    assert _code(criu.restore()) == "images-incomplete"


def test_pages_that_are_cut_make_criu_hang_which_is_why_it_has_a_deadline(
    criu: PlainCriu, tmp_path: Path
) -> None:
    with process_with(tmp_path, "memory = os.urandom(4 << 20)") as pid:
        assert criu.dump(pid) is None
    pages = criu.image("pages-*.img")
    os.truncate(pages, pages.stat().st_size // 2)
    criu.deadline_seconds = 4.0
    with pytest.raises(ColdstartError, match="killed"):
        criu.restore()


def test_a_pager_that_does_not_run_is_told(criu: PlainCriu, tmp_path: Path) -> None:
    with process_with(tmp_path, "memory = os.urandom(1 << 20)") as pid:
        assert criu.dump(pid) is None
    assert _code(criu.restore("--lazy-pages")) == "lazy-pages"


def test_memory_in_steps_needs_a_kernel_that_tracks_it(criu: PlainCriu, tmp_path: Path) -> None:
    with process_with(tmp_path, "") as pid:
        found = criu.dump(pid, "--track-mem")
        if found is None:
            pytest.skip("this kernel tracks changed memory")
        assert found.code == "kernel-feature"


def test_a_process_inside_a_namespace_of_processes_is_told(criu: PlainCriu, tmp_path: Path) -> None:
    trouble = "open(f'{folder}/inner', 'w').write(nested('--pid', '--fork'))"
    with process_with(tmp_path, trouble):
        assert _code(criu.dump(int((tmp_path / "inner").read_text()))) == "inside-container"
