"""What an image server is asked to serve, and the one line that it answers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerRequest:
    """What to serve where; handed over as JSON in the server's argument list."""

    image: str
    store: str
    cache: str
    mountpoint: str
    counters: str
    suid: bool
    dev: bool
    ready_descriptor: int


def answer(request: ServerRequest, content: dict[str, Any]) -> bool:
    """Tell whoever started us; false when nobody is there any more."""
    try:
        os.write(request.ready_descriptor, json.dumps(content).encode() + b"\n")
        os.close(request.ready_descriptor)
    except OSError:
        return False
    return True
