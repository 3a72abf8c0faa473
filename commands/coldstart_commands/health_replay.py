"""The answer of `health quick --replay`: another host's verdict, marked as such."""

from __future__ import annotations

from pathlib import Path

from coldstart_commands.health_answer import answer
from coldstart_commands.shell import Shell


def answer_with_replay(shell: Shell, source: Path) -> None:
    """Judge a collection; exit status and document are those of a run on that host."""
    from coldstart_health.replay import replay

    found = replay(shell.config, source)
    parts = [
        f"recorded {found.recorded}" if found.recorded else "from files saved by hand",
        f"by coldstart {found.coldstart}" if found.coldstart else None,
        f"on {found.kernel}" if found.kernel else None,
    ]
    shell.printer.answer(f"replay of {source}, not this host: {', '.join(part for part in parts if part)}")
    if found.told is not None and found.told != found.report.overall.word:
        shell.printer.warning(f"the coldstart that recorded it came to another verdict: {found.told}")
    marked = {
        "source": str(source),
        "recorded": found.recorded,
        "coldstart": found.coldstart,
        "kernel": found.kernel,
        "verdict_then": found.told,
    }
    answer(shell, found.report, "health.quick", {"replay": marked})
