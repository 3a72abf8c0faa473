"""`pool plan --report`: the plan as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.printer import Printer

if TYPE_CHECKING:
    from coldstart_commands.pool_plan_verify import Verified
    from coldstart_pool.planning.plan import Plan


def write_report(printer: Printer, plan: Plan, verified: Verified | None, path: Path) -> None:
    """Written for a plan that is refused, too: it shows why."""
    from coldstart_pool.report.page import write_page
    from coldstart_pool.report.plan_page import plan_page

    page = (
        plan_page(plan)
        if verified is None
        else plan_page(
            plan, verified.verdict, verified_on=str(verified.trace), since_1970=verified.since_1970
        )
    )
    write_page(page, path)
    printer.note(f"report written to {path}")
