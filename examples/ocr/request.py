"""Sends a picture to the server and prints the text it reads: request.py [PICTURE] [--url URL]."""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

_PAGE = Path(__file__).resolve().parent / "page.png"


def read_picture(url: str, picture: bytes, timeout_seconds: float = 60) -> list[str]:
    """The text lines that the server at `url` finds in a picture."""
    request = urllib.request.Request(url, data=picture, headers={"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
        lines: list[str] = json.load(answer)["lines"]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path, default=_PAGE)
    parser.add_argument("--url", default="http://127.0.0.1:18230/ocr")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        lines = read_picture(arguments.url, arguments.picture.read_bytes())
    except (OSError, urllib.error.URLError) as error:
        print(f"no answer from {arguments.url}: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    print(f"read in {time.monotonic() - started:.2f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
