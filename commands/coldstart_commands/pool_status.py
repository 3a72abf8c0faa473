"""coldstart pool status: who holds which GPU of this host, and what is on order."""

from __future__ import annotations

from dataclasses import asdict

from coldstart_commands.shell import Shell, coldstart_command
from coldstart_launch.host_pool import host_gpus, refill_log

_SHOWN_ENDED = 3


@coldstart_command()
def command(shell: Shell) -> None:
    """List the GPUs of this host: free, held and by whom, or kept out by health; then the refills.

    Asks the driver as `health quick` does, and records nothing.
    """
    from coldstart_health.checks import quick_check
    from coldstart_pool.live.refill import is_refilling
    from coldstart_pool.live.state import load_state, standings

    printer, folder = shell.printer, shell.config.state_folder
    state = load_state(folder)
    seen = standings(host_gpus(quick_check(shell.config, record=False)), state)
    rows = []
    for one in seen:
        holding = one.holding
        word = "held" if holding else f"kept out ({one.gpu.blocked_because})" if not one.is_free else "free"
        rows.append([one.gpu.uuid, one.gpu.model, word, holding.holder if holding else "-"])
        if holding and one.gpu.blocked_because:
            printer.warning(f"{holding.holder} holds a GPU that health keeps out: {one.gpu.uuid}")
    level = sum(one.is_free for one in seen)
    if rows:
        printer.table(["GPU", "MODEL", "STATE", "HOLDER"], rows)
    printer.answer(f"{level} of {len(seen)} GPUs are free")
    in_flight = [order for order in state.orders if order.in_flight]
    refilling = is_refilling(folder)
    ended = [order for order in state.orders if not order.in_flight]
    if len(ended) > _SHOWN_ENDED:
        printer.note(f"{len(ended) - _SHOWN_ENDED} earlier refills are in the document (--json)")
    for order in (*ended[-_SHOWN_ENDED:], *in_flight):
        where = f", {order.offer}, attempt {order.attempts}" if order.offer and order.in_flight else ""
        why = f": {order.reason}" if order.reason else ""
        printer.answer(
            f"refill {order.number} for {order.taken_by}: {order.obtained_gpus} of {order.gpus} GPUs, "
            f"{order.state}{where}{why}"
        )
    if in_flight and not refilling:
        printer.warning("refills wait and nobody works on them: coldstart pool refill")
    document = {
        "level": level,
        "gpus": [
            {
                "uuid": one.gpu.uuid,
                "model": one.gpu.model,
                "free": one.is_free,
                "kept_out_because": one.gpu.blocked_because or None,
                "holder": one.holding.holder if one.holding else None,
                "since": one.holding.since if one.holding else None,
                "pid": (one.holding.pid or None) if one.holding else None,
            }
            for one in seen
        ],
        "refills": [asdict(order) for order in state.orders],
        "gpus_in_flight": sum(order.missing_gpus for order in in_flight),
        "refilling": refilling,
        "surplus_gpus": state.surplus_gpus,
        "refill_log": str(refill_log(shell.config)),
    }
    printer.document("pool.status", 1, document)
