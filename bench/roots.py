"""Running a workload in a root folder as a container would: its own mounts, /proc, /sys and /dev there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from installed import CHECKOUT

IMPORT = "import numpy, cv2"
"""Small: where the fixed costs show."""
SERVER = "import rapidocr_onnxruntime; rapidocr_onnxruntime.RapidOCR()"
"""What the demo server does before it is ready: libraries, byte code, and three models."""
TIMEOUT_SECONDS = 600
_INSIDE = (
    'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" &&'
    ' exec chroot "$0" /usr/bin/python3 -B -c "$1"'
)


def peer_program(name: str) -> str | None:
    """That of `.bench/bin`, or of PATH."""
    own = CHECKOUT / ".bench" / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


def command_in(root: Path, code: str) -> list[str]:
    return ["unshare", "--mount", "--pid", "--fork", "sh", "-c", _INSIDE, str(root), code]


def run_in(root: Path, code: str) -> None:
    run(command_in(root, code))


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed: {done.stderr[-2000:]}")


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
