"""The loaded NVIDIA kernel module, as the kernel tells it: asking the driver itself might hang."""

from __future__ import annotations

import re
from pathlib import Path

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def module_version() -> str | None:
    """Version of the kernel module; None where none is loaded, `unknown` where its text says nothing."""
    try:
        text = _DRIVER_VERSION.read_text("utf-8", "replace")
    except OSError:
        return None
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else "unknown"
