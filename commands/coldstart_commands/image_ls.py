"""coldstart image ls: the images of a store."""

from __future__ import annotations

from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command("store")
def command(shell: Shell) -> None:
    """List the images of a store with their entries and sizes."""
    from coldstart_fs.images import list_images
    from coldstart_fs.names import digest_text
    from coldstart_fs.store import open_store

    store = open_store(shell.config.store)
    inventory = list_images(store)
    for problem in inventory.problems:
        shell.printer.warning(problem)
    shell.printer.table(
        ("NAME", "IMAGE", "ENTRIES", "CONTENT", "CREATED"),
        [
            (
                image.name,
                image.digest.hex()[:12],
                str(image.entries),
                f"{image.content_bytes / 1e6:.1f} MB",
                image.created,
            )
            for image in inventory.images
        ],
        right=(2, 3),
    )
    documents = [
        {
            "name": image.name,
            "digest": digest_text(image.digest),
            "entries": image.entries,
            "content_bytes": image.content_bytes,
            "index_bytes": image.index_bytes,
            "created": image.created,
        }
        for image in inventory.images
    ]
    shell.printer.document("image.ls", 1, {"store": store.url, "images": documents})
