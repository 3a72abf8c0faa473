"""A server that is killed while the kernel holds one of its threads: dead to its keeper at least."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from coldstart_fs.fuse.device import mount_fuse
from coldstart_fs.fuse.session import Session
from coldstart_fs.mounts.channel import Channel
from coldstart_fs.mounts.kernel_mounts import unmount_now
from coldstart_fs.mounts.processes import ProcessIdentity
from coldstart_fs.mounts.server_child import ServerChild
from conftest import wait_until
from fs.fuse.test_device import CONTENT, TwoFiles
from fs.mounts import require_fuse

# answers everything but reads; pushes the page that is being read, which waits for that read
_PUSHING = """
import sys, threading
from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.fuse.protocol import Opcode
from coldstart_fs.fuse.session import Session
from fs.fuse.test_device import CONTENT, TwoFiles
session, files = Session(int(sys.argv[1])), TwoFiles()
asked = threading.Event()
def push():
    asked.wait()
    print("pushing", flush=True)
    Session(int(sys.argv[1])).store(2, 0, CONTENT)  # that knows of no read
threading.Thread(target=push, daemon=True).start()
session.resume(Negotiated(41, 0, 131072, 256, 192, 256))
session.run({**files.handlers(), Opcode.READ: lambda request: asked.set()})
"""


def test_a_successor_can_answer_what_a_killed_server_still_waits_for(tmp_path: Path) -> None:
    require_fuse()
    root = tmp_path / "mnt"
    root.mkdir()
    descriptor = mount_fuse(str(root), source="coldstart:test")
    session = Session(descriptor)
    negotiated = session.negotiate()
    outcome: list[bytes] = []
    child = subprocess.Popen(
        [sys.executable, "-c", _PUSHING, str(descriptor)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    ours, theirs = Channel.pair()
    reader = Thread(target=lambda: outcome.append((root / "one").read_bytes()), daemon=True)
    files = TwoFiles()
    files.gate.set()
    loop = Thread(target=session.run, args=(files.handlers(),), daemon=True)
    try:
        if not negotiated.has_resend:
            pytest.skip("this kernel cannot send requests again: Linux 6.9")
        server = ServerChild(ProcessIdentity.of(child.pid), ours)
        assert server.has_ended() is None
        reader.start()
        assert child.stdout is not None
        assert child.stdout.readline() == b"pushing\n"
        wait_until(lambda: _waits_in_the_kernel(child.pid), "the push to wait for the page")
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: "kernel holds one of its threads" in (server.has_ended() or ""), "the death")
        loop.start()
        session.resume(negotiated)
        reader.join(60)
        assert outcome == [CONTENT]
        wait_until(lambda: server.has_ended() is not None and not _exists(child.pid), "the end of the dead")
    finally:
        unmount_now(root, detach=True)
        os.close(descriptor)
        session.stop()
        if loop.ident is not None:
            loop.join(60)
        session.close()
        child.kill()
        child.communicate(timeout=60)
        ours.close()
        theirs.close()


def _waits_in_the_kernel(pid: int) -> bool:
    return any(
        (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
