"""Writes `completions/`, `man/` and the pages of reason codes from the program, or checks them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generators import completions, health_reasons, manual, snapshot_reasons
from generators.command_tree import all_commands

REPOSITORY = Path(__file__).resolve().parent.parent


def generated_files() -> dict[str, str]:
    """Every generated file, by its path in the repository."""
    commands = all_commands()
    return {
        **completions.files(commands),
        **manual.files(commands),
        **health_reasons.files(),
        **snapshot_reasons.files(),
    }


def write(files: dict[str, str]) -> None:
    for name in _strangers(files):
        (REPOSITORY / name).unlink()
    for name, content in files.items():
        path = REPOSITORY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def differences(files: dict[str, str]) -> list[str]:
    """One sentence for each file that is absent, stale, or written by hand."""
    found = []
    for name, content in sorted(files.items()):
        path = REPOSITORY / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif path.read_text(encoding="utf-8") != content:
            found.append(f"{name} does not match the commands")
    return found + [f"{name} belongs to no command" for name in _strangers(files)]


def _strangers(files: dict[str, str]) -> list[str]:
    present = [path for folder in ("man", "completions") for path in sorted((REPOSITORY / folder).rglob("*"))]
    names = [str(path.relative_to(REPOSITORY)) for path in present if path.is_file()]
    return [name for name in names if name not in files]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; status 1 on a difference")
    files = generated_files()
    if not parser.parse_args().check:
        write(files)
        return 0
    found = differences(files)
    for sentence in found:
        print(sentence, file=sys.stderr)
    if found:
        print("run `make generate` and commit the result", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
