"""coldstart pool refill: order machines for those that were taken."""

from __future__ import annotations

from dataclasses import asdict

from coldstart_cli.errors import ConfigError, NegativeAnswer
from coldstart_cli.files import make_directory
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command
from coldstart_launch.host_pool import refill_offers


@coldstart_command("lock_wait_seconds")
def command(shell: Shell, dry_run: DryRunOption = False) -> None:
    """Work off the orders that `pool take` and `launch` left, offer by offer, until none waits.

    Those start it in the background; by hand or from a timer it goes on with what a killed one left. Each
    attempt is appended to the supply table. Exit status 3: an order was given up, every offer failed.
    """
    from coldstart_pool.live.refill import Supply, work_off_orders
    from coldstart_pool.live.state import load_state

    offers = refill_offers(shell.config)
    if not offers:
        raise ConfigError("no refill file is configured", hint="set `pool.refill_file`")
    waiting = [order for order in load_state(shell.config.state_folder).orders if order.in_flight]
    if dry_run:
        for offer in offers:
            shell.printer.answer(f"would try: {offer.label}")
        shell.printer.answer(f"{len(waiting)} orders wait")
        shell.printer.document("pool.refill", 1, {"orders": [asdict(order) for order in waiting]})
        return
    table = shell.config.pool_supply_table
    if table == shell.config.state_folder / "pool" / "supply.csv":
        make_directory(table.parent, mode=0o700)
    done = work_off_orders(
        shell.config.state_folder,
        offers,
        Supply(table, shell.printer.note),
        wait_seconds=shell.config.number("lock_wait_seconds"),
    )
    for order in done:
        shell.printer.answer(
            f"refill {order.number} for {order.taken_by}: "
            f"{order.obtained_gpus} of {order.gpus} GPUs, {order.state}"
        )
    if not done:
        shell.printer.answer("nothing is on order")
    shell.printer.document("pool.refill", 1, {"orders": [asdict(order) for order in done]})
    if failed := [order for order in done if order.missing_gpus]:
        missing = sum(order.missing_gpus for order in failed)
        raise NegativeAnswer(f"{missing} GPUs could not be obtained from any offer", hint=f"see {table}")
