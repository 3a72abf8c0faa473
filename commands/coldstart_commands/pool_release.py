"""coldstart pool release: the GPUs of a holder are free again."""

from __future__ import annotations

from coldstart_commands.pool_take import HolderArgument
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command


@coldstart_command()
def command(shell: Shell, holder: HolderArgument, dry_run: DryRunOption = False) -> None:
    """Give back all GPUs that HOLDER took. Ends no process; a GPU still in use is for health to find."""
    from coldstart_pool.live.state import release, require_holder

    folder = shell.config.state_folder
    released = require_holder(folder, holder) if dry_run else release(folder, holder)
    uuids = [holding.uuid for holding in released]
    shell.printer.answer(f"{'would release' if dry_run else 'released'}: {', '.join(uuids)}")
    shell.printer.document("pool.release", 1, {"holder": holder, "gpus": uuids})
