"""Where the program begins: Ctrl-C is quiet from here on, before the rest is imported."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line; an interruption before it has handlers of its own has nothing to clean up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from coldstart_cli import app

    app.main()
