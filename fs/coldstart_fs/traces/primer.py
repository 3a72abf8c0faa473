"""A process of its own that asks a mount what a start will ask, so that the kernel knows the answers.

The server starts it and must never do this itself: it would wait for its own answers. Nothing of ours is
imported here, because the interpreter's start is most of what it costs.
"""

import os
import sys
from contextlib import suppress


def prime(mountpoint: bytes, listings: list[bytes], lookups: list[bytes], links: list[bytes]) -> int:
    """Ask for everything, in this order; what cannot be answered is passed over. How much was asked."""
    root = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    asked = 0
    for path in listings:
        try:
            directory = os.open(
                path.strip(b"/") or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root
            )
        except OSError:
            continue
        try:
            # reading it is enough: the answers carry the attributes of every entry
            with os.scandir(directory) as entries:
                for _ in entries:
                    asked += 1
        except OSError:
            pass
        finally:
            os.close(directory)
    for path in lookups:
        asked += 1
        with suppress(OSError):
            os.stat(path.strip(b"/") or b".", dir_fd=root, follow_symlinks=False)
    for path in links:
        asked += 1
        with suppress(OSError):
            os.stat(path.strip(b"/"), dir_fd=root, follow_symlinks=False)
            os.readlink(path.strip(b"/"), dir_fd=root)
    os.close(root)
    return asked


def main() -> None:
    """Arguments: the mount point, and a descriptor with three lists of paths.

    Each path ends in a zero byte, each list in an empty path.
    """
    with open(int(sys.argv[2]), "rb") as stream:
        content = stream.read()
    lists: list[list[bytes]] = [[]]
    for path in content.split(b"\0"):
        if path:
            lists[-1].append(path)
        else:
            lists.append([])
    prime(os.fsencode(sys.argv[1]), *lists[:3])


if __name__ == "__main__":
    main()
