"""Entry point of an image server's process: one request in, one answer out, then service until SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import sys

from coldstart_cli.errors import ColdstartError, ExitCode, UnavailableError
from coldstart_fs.server_request import ServerRequest, answer

INSTALL_HINT = (
    "apt-get install fuse3 libfuse3-dev pkg-config gcc python3-dev && pip install 'coldstart[image]'"
)


def main() -> int:
    """Serve until SIGTERM; the answer on the ready descriptor is one JSON line."""
    request = ServerRequest(**json.loads(sys.argv[1]))
    os.set_inheritable(request.ready_descriptor, False)
    for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
        # a terminal's Ctrl-C is for the command that waits for us, which ends us in order
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    try:
        _serve(request)
    except ColdstartError as error:
        refusal = {"error": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}
        answer(request, refusal)
        return error.exit_code
    return ExitCode.OK


def _serve(request: ServerRequest) -> None:
    try:
        from coldstart_fs.image_process import serve_image
    except ImportError as error:  # not installed, or built against a libfuse3 that is gone
        text = f"Python package cannot be used: {error.name or 'pyfuse3'}: {error}"
        raise UnavailableError(text, hint=INSTALL_HINT) from error
    serve_image(request)


if __name__ == "__main__":
    sys.exit(main())
