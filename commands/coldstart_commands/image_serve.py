"""coldstart image serve: a process of this host that forks image servers, so that mounts start at once."""

from __future__ import annotations

import os

from coldstart_cli.notify import notify
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command


@coldstart_command()
def command(shell: Shell, dry_run: DryRunOption = False) -> None:
    """Wait for `image mount` and fork its server in milliseconds; everything is imported already.

    Mounts do not depend on it: they work without, and go on when it ends. It holds in memory (120 MB) the
    programs and modules that mounts, launches and restores are made of, so that their own start needs no
    disk. At its start it frees what crashed mounts left, and gives mounts that a former version serves a
    server of this one, while they are in use. A service manager may pass the listening socket.
    """
    from coldstart_cli.held_files import files_of_commands, hold_files
    from coldstart_fs.mounts.image_host import host_socket, passed_socket, serve_host
    from coldstart_fs.mounts.upkeep import look_after

    printer, run_folder = shell.printer, shell.config.run_folder
    passed = passed_socket()
    socket = host_socket(run_folder)

    def ready() -> None:
        printer.document("image.serve", 1, {"socket": str(socket), "pid": os.getpid()})
        printer.note(f"image servers are forked for whoever asks at {socket}")
        notify("READY=1", f"STATUS=listening at {socket}", f"MAINPID={os.getpid()}")

    def upkeep() -> None:
        report = look_after(run_folder)
        for path in report.swept:
            printer.note(f"unmounted what a crash left: {path}")
        for path in report.renewed:
            printer.note(f"serving anew: {path}")
        for problem in report.problems:
            printer.warning(problem)

    if dry_run:
        printer.answer(f"would listen at {socket}")
        printer.document("image.serve", 1, {"socket": str(socket), "pid": None})
        return
    server_pid = os.getpid()

    def hold() -> None:
        hold_files(files_of_commands(), server_pid)

    try:
        serve_host(run_folder, passed=passed, on_ready=ready, beside=(upkeep, hold), log=printer.note)
    finally:
        notify("STOPPING=1")
