"""The coldstart that is measured: that of this checkout, with folders of its own."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
COLDSTART = str(CHECKOUT / ".venv" / "bin" / "coldstart")
PYTHON = str(CHECKOUT / ".venv" / "bin" / "python")


def own_environment(folder: Path, run_folder: Path) -> dict[str, str]:
    """Ours, less what was set for coldstart; what it keeps goes below `folder` and to `run_folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDSTART_")}
    return kept | {
        "COLDSTART_STATE_DIR": str(folder / "state"),
        "COLDSTART_CACHE_DIR": str(folder / "cache"),
        "COLDSTART_RUN_DIR": str(run_folder),
        "CONFIGURATION_DIRECTORY": str(folder / "etc"),
    }
