"""coldstart image status: live mounts of this host, and what crashed servers left."""

from __future__ import annotations

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.image_mount import describe
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command()
def command(shell: Shell) -> None:
    """List the images mounted on this host; exit status 3 when a server died and left its mount."""
    from coldstart_fs.records import all_records

    records = [record for _, record in all_records(shell.config.run_folder)]
    rows = [
        [
            str(record.mountpoint),
            record.name,
            record.image[:19],
            "serving" if record.server_lives() else "dead",
            str(record.server_pid),
        ]
        for record in records
    ]
    if rows:
        shell.printer.table(["mount point", "image", "digest", "state", "pid"], rows, right=[4])
    else:
        shell.printer.answer("no image is mounted")
    mounts = [{**describe(record), "serving": record.server_lives()} for record in records]
    shell.printer.document("image.status", 1, {"mounts": mounts})
    dead = [str(record.mountpoint) for record in records if not record.server_lives()]
    if dead:
        raise NegativeAnswer(f"image server died: {dead[0]}", hint=f"coldstart image unmount {dead[0]}")
