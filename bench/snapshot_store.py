"""Snapshots in a store: what versions share, by size of chunks, and a restore overlapped with its fetch.

bench/snapshot_store.py shared FOLDER FOLDER      # two variants' folders, the older one first
bench/snapshot_store.py fetch [--runs 3]          # root; a container with 256 MB of memory behind 1 Gbit/s
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from installed import CHECKOUT, COLDSTART, own_environment

_PAGE = 4096
_KIB = 1024
_PORT = 18260
_SERVER = """
import http.server, os
memory = os.urandom(256 << 20)
with open('/srv/written', 'wb') as stream: stream.write(os.urandom(32 << 20))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'ok')
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('127.0.0.1', PORT), Handler).serve_forever()
"""


def shared(older: Path, newer: Path) -> None:
    """How much of the newer variant's memory, zeros left out, the older one has too."""
    print(f"{'chunk':>10}  {'cut':8}  {'chunks':>7}  {'not zero':>9}  {'shared':>7}")
    for size in (4 * _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB, _KIB * _KIB):
        for by_address in (False, True):
            known = set(_chunks(older, size, by_address))
            found = list(_chunks(newer, size, by_address))
            total = sum(length for _, length in found)
            again = sum(length for digest, length in found if (digest, length) in known)
            cut = "address" if by_address else "offset"
            share = again / total if total else 0.0
            print(f"{size // _KIB:6} KiB  {cut:8}  {len(found):7}  {total / 1e6:6.1f} MB  {share:7.1%}")


def _chunks(folder: Path, size: int, by_address: bool) -> Iterator[tuple[bytes, int]]:
    from blake3 import blake3

    from coldstart_snapshot.criu.images import page_runs

    runs = page_runs(folder / "images")
    for path in sorted((folder / "images").glob("pages-*.img")):
        content = path.read_bytes()
        number = int(path.stem.removeprefix("pages-"))
        cuts = _by_address(runs[number], size) if by_address else _by_offset(len(content), size)
        offset = 0
        for length in cuts:
            data = content[offset : offset + length]
            offset += length
            if data.strip(b"\0"):
                yield blake3(data).digest(), length


def _by_offset(total: int, size: int) -> Iterator[int]:
    yield from (min(size, total - offset) for offset in range(0, total, size))


def _by_address(runs: Iterable[tuple[int, int]], size: int) -> Iterator[int]:
    for address, count in runs:
        begin, end = address, address + count * _PAGE
        while begin < end:
            cut = min(end, (begin // size + 1) * size)
            yield cut - begin
            begin = cut


def fetch(runs: int) -> None:
    """The same server from the same store: fetched, then restored; and both at once."""
    with (
        tempfile.TemporaryDirectory(prefix="coldstart-bench-", dir="/var/tmp") as folder,
        _stand(Path(folder)) as (home, url),
    ):
        seconds: dict[str, list[float]] = {"one after the other": [], "overlapped": []}
        for _ in range(runs):
            for way, taken in seconds.items():
                taken.append(_restored(home, url, overlapped=way == "overlapped"))
        for way, taken in seconds.items():
            shown = ", ".join(f"{one:.2f}" for one in taken)
            print(f"{way:20} {statistics.median(taken):6.2f} s  ({shown})")


class Home:
    """The folders of coldstart on the measured host."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.environment = own_environment(folder, folder / "run") | {
            "COLDSTART_STORE": store,
            "COLDSTART_HEALTH_FAIL_PERCENT": "101",
        }

    def __call__(self, *arguments: str, check: bool = True) -> str:
        command = [COLDSTART, *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"bench: {' '.join(command)} failed: {done.stderr}")
        return done.stdout

    def forget(self) -> None:
        """As a host that never had the image or the snapshot."""
        self("snap", "remove", "bench", check=False)
        shutil.rmtree(self.folder / "cache", ignore_errors=True)


@contextmanager
def _stand(folder: Path) -> Iterator[tuple[Home, str]]:
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from link import LAN, link

    from fs.servers import nginx
    from small_root import make_root

    with ExitStack() as stack:
        web = stack.enter_context(nginx(folder / "nginx", folder / "www"))
        address = stack.enter_context(link(web.url.removeprefix("http://"), LAN))
        root = make_root(folder / "root")
        (root / "srv/server.py").write_text(_SERVER.replace("PORT", str(_PORT)))
        local = Home(folder / "home", str(folder / "www/images"))
        local("image", "index", f"dir:{root}", "--name", "bench")
        spec = folder / "spec.toml"
        spec.write_text(
            'schema = "coldstart.spec"\nversion = 1\nname = "bench"\nimage = "bench"\n'
            'command = ["/usr/bin/python3", "/srv/server.py"]\n'
            f'[ready]\nurl = "http://127.0.0.1:{_PORT}/"\n'
        )
        local("launch", str(spec), "--detach", "--snapshot-when-ready")
        local("launch", str(spec), "--stop")
        local("snap", "copy", "bench", "--to", str(folder / "www/snaps"), "--compression", "none")
        yield Home(folder / "home", f"http://{address}/images"), f"http://{address}/snaps"


def _restored(home: Home, url: str, *, overlapped: bool) -> float:
    home.forget()
    started = time.monotonic()
    if overlapped:
        restored = home("snap", "restore", "bench", "--from", url, "--trust", "--detach", "--json")
    else:
        home("snap", "copy", "bench", "--from", url, "--trust")
        restored = home("snap", "restore", "bench", "--detach", "--json")
    seconds = time.monotonic() - started
    document = json.loads(restored)
    if document["method"] != "restore":
        raise SystemExit("bench: the replica was started cold")
    if overlapped:
        print("  " + ", ".join(f"{one['name']} {one['duration_seconds']:.2f}" for one in document["stages"]))
    home("snap", "restore", "bench", "--stop")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_two = verbs.add_parser("shared")
    of_two.add_argument("older", type=Path)
    of_two.add_argument("newer", type=Path)
    verbs.add_parser("fetch").add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.verb == "shared":
        shared(arguments.older, arguments.newer)
    else:
        fetch(arguments.runs)


if __name__ == "__main__":
    main()
