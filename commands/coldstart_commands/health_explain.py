"""What a reason code means: `health quick --explain`."""

from __future__ import annotations

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_commands.shell import Shell


def answer_with_meaning(shell: Shell, code: str) -> None:
    """Meaning, usual cause, what to do, and the verdicts that the code may carry."""
    from coldstart_health.reasons import all_reasons, explain

    reason = explain(code)
    if reason is None:
        known = [entry.code for entry in all_reasons()]
        hint = near_matches_hint(code.lower(), known, otherwise="all are in docs/health.md")
        raise UsageError(f"no such reason code: {code}", hint=hint)
    verdicts = [verdict.word for verdict in reason.verdicts]
    shell.printer.answer(f"{reason.code}: {reason.meaning}")
    shell.printer.answer(f"  verdict  {', '.join(verdicts)}")
    shell.printer.answer(f"  cause    {reason.cause}")
    shell.printer.answer(f"  action   {reason.action}")
    content = {
        "code": reason.code,
        "group": reason.group,
        "meaning": reason.meaning,
        "cause": reason.cause,
        "action": reason.action,
        "verdicts": verdicts,
    }
    shell.printer.document("health.explain", 1, content)
