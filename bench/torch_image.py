"""The heavy image: the demo's with torch (CPU), 1.3 GB, whose import is the start that is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from roots import TIMEOUT_SECONDS, run

IMPORT_TORCH = "import torch"
# the one CPU build that is on the package index by itself; others bring gigabytes of CUDA
_REQUIREMENTS = ("torch==2.13.0", "numpy")
_PYTHON = "3.11"
_TARGET = f"usr/local/lib/python{_PYTHON}/dist-packages"


def torch_layout(demo: Path, layout: Path) -> Path:
    """Build it once from the demo's layout, or return what was built."""
    if (layout / "index.json").exists():
        return layout
    layout.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coldstart-torch-", dir="/var/tmp") as name:
        work = Path(name)
        run(["umoci", "unpack", "--image", f"{demo}:latest", str(work / "bundle")])
        root = work / "bundle" / "rootfs"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
        chosen = ["--only-binary=:all:", "--implementation", "cp", "--python-version", _PYTHON]
        shutil.rmtree(root / _TARGET)  # of the demo's own packages only the Debian root is needed
        run([*pip, *chosen, "--target", str(root / _TARGET), *_REQUIREMENTS])
        compiled = ["-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash"]
        # some packages carry files of other Python versions, which do not compile
        subprocess.run(
            ["chroot", str(root), "/usr/bin/python3", *compiled, f"/{_TARGET}"],
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        made = work / "layout"
        shutil.copytree(demo, made)
        run(["umoci", "insert", "--image", f"{made}:latest", str(root / _TARGET), f"/{_TARGET}"])
        run(["umoci", "gc", "--layout", str(made)])
        shutil.copytree(made, layout, dirs_exist_ok=True)
    return layout
