"""Unpack the wheels that fit the running Python, without pip: `unpack_wheels.py WHEELS TARGET`."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path


def fits(name: str) -> bool:
    """Whether a wheel's file name names this Python, or every Python 3."""
    _, *tags = name.removesuffix(".whl").rsplit("-", 3)
    python, abi, _ = tags
    this = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if abi == "abi3":
        oldest = [int(match) for match in re.findall(r"cp3(\d+)", python)]
        return any(minor <= sys.version_info.minor for minor in oldest)
    return "py3" in python.split(".") or this in python.split(".")


def main() -> None:
    wheels, target = map(Path, sys.argv[1:3])
    for wheel in sorted(wheels.glob("*.whl")):
        if fits(wheel.name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)


if __name__ == "__main__":
    main()
