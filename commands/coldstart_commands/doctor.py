"""coldstart doctor: what this host can and cannot do."""

from __future__ import annotations
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command("store")
def command(shell: Shell) -> None:
    """Show what this host can and cannot do, each gap with its remedy."""
    shell.printer.answer(shell.config.store)
