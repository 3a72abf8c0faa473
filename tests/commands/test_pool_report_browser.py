"""Reports in a real browser: something is seen, nothing is complained of, nothing else is asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from commands.test_pool_report import starts, tables
from conftest import Coldstart

pytestmark = pytest.mark.full
pytest.importorskip("ortools")
pytest.importorskip("matplotlib")
_LIGHT, _DARK = "1", "0"


@dataclass(frozen=True)
class Visit:
    """What a browser saw of a page."""

    console: tuple[str, ...]
    asked_of_us: tuple[str, ...]
    """Paths that our own server was asked for."""
    asked_elsewhere: tuple[str, ...]
    """URLs that the page had the browser ask for and that are not ours."""
    different_rows: int
    """Rows of the picture that differ: an empty one has a handful."""
    background: tuple[int, int, int]


class Site:
    """One page on a loopback port, and what is asked of it."""

    def __init__(self) -> None:
        self.page = b""
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                self.send_response(200 if self.path == "/report.html" else 404)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(site.page if self.path == "/report.html" else b"")

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/report.html"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()
    site.thread.join(60)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    return found


def visit(chromium: str, site: Site, page: bytes, folder: Path, *, scheme: str = _LIGHT) -> Visit:
    """Load the page headless; every other host is unreachable and asking for it is recorded."""
    site.page, site.asked = page, []
    folder.mkdir()
    picture, log = folder / "page.png", folder / "net.json"
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-extensions", "--disable-dev-shm-usage", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={log}", "--window-size=1100,3000", f"--screenshot={picture}", site.url,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        _, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("chromium did not end within 120 s")
    assert picture.is_file(), stderr.decode(errors="replace")[-2000:]
    different_rows, background = _picture(picture.read_bytes())
    return Visit(
        tuple(line for line in stderr.decode(errors="replace").splitlines() if "CONSOLE" in line),
        tuple(site.asked),
        tuple(_asked_by_pages(log, site.url)),
        different_rows,
        background,
    )


def _asked_by_pages(log: Path, own: str) -> Iterator[str]:
    """URLs whose asking began in a page; what the browser asks for itself has no such origin."""
    events = json.loads(log.read_text())["events"]
    origin = own.removesuffix("/report.html")
    for event in events:
        parameters = event.get("params", {})
        if str(parameters.get("initiator", "")).startswith(origin) and parameters.get("url") != own:
            yield parameters["url"]


def _picture(png: bytes) -> tuple[int, tuple[int, int, int]]:
    """How many different rows there are, and the colour in the first corner."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width = int.from_bytes(png[16:20])
    depth, kind = png[24], png[25]
    assert (depth, kind) in {(8, 2), (8, 6)}
    pixel = 3 if kind == 2 else 4
    data, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += size + 12
    rows = zlib.decompress(data)
    line = width * pixel + 1
    different = {rows[start : start + line] for start in range(0, len(rows), line)}
    return len(different), (rows[1], rows[2], rows[3])


@pytest.fixture
def reports(coldstart: Coldstart, tmp_path: Path) -> dict[str, bytes]:
    """The pages of the three commands."""
    plan, unseen = tmp_path / "plan.toml", starts(tmp_path / "unseen.csv", 2)
    pages = {name: tmp_path / f"{name}.html" for name in ("plan", "simulate", "need")}
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("plan", *tables(tmp_path), "--verify", unseen, "--verify-margin", "0.2", "--output", plan),
        ("simulate", plan, "--trace", unseen, "--walk-forward", "2"),
        (
            "need",
            "--demand",
            unseen,
            "--lead-time",
            "600",
            "--lead-time",
            "60",
            "--idle-price",
            "2",
            "--by-hour",
        ),
    )
    for command in commands:
        result = coldstart("pool", *command, "--report", pages[str(command[0])])
        assert result.status == 0, result.stderr
    return {name: path.read_bytes() for name, path in pages.items()}


def test_a_browser_shows_every_report_in_light_and_dark_and_asks_for_nothing_else(
    chromium: str, site: Site, reports: dict[str, bytes], tmp_path: Path
) -> None:
    for name, page in reports.items():
        for scheme, is_dark in ((_LIGHT, False), (_DARK, True)):
            seen = visit(chromium, site, page, tmp_path / f"{name}-{scheme}", scheme=scheme)
            assert seen.console == (), name
            assert seen.asked_of_us == ("/report.html",), name
            assert seen.asked_elsewhere == (), name
            assert seen.different_rows > 300, name
            assert (max(seen.background) < 64) is is_dark, name


def test_a_page_that_asks_and_complains_is_found_out(chromium: str, site: Site, tmp_path: Path) -> None:
    page = (
        b"<!DOCTYPE html><title>x</title><img src='/other.png'><img src='http://elsewhere.invalid/a.png'>"
        b"<script>console.error('a complaint')</script>"
    )
    seen = visit(chromium, site, page, tmp_path / "bad")
    assert any("a complaint" in line for line in seen.console)
    assert "/other.png" in seen.asked_of_us
    assert any("elsewhere.invalid" in url for url in seen.asked_elsewhere)
    assert seen.different_rows < 300
