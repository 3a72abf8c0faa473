"""What the kernel knows of a file system without touching it: read-only, and why; errors it met."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.files import mountinfo, unescape_mountinfo

_EXT4 = Path("/sys/fs/ext4")


@dataclass(frozen=True)
class MountFacts:
    """`stopped_by_kernel`: the mount is writable and its file system is not, as after `errors=remount-ro`."""

    point: str
    device: str
    kind: str
    read_only: bool
    stopped_by_kernel: bool
    errors: int


def mount_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> MountFacts | None:
    """The mount that holds an absolute path; None where the table does not tell."""
    best: MountFacts | None = None
    for fields in mountinfo(table):
        point = unescape_mountinfo(fields[4])
        if point != "/" and path != Path(point) and Path(point) not in path.parents:
            continue
        # a later mount on the same point covers the earlier one
        if best is None or len(point) >= len(best.point):
            best = _facts(fields, point)
    return best


def _facts(fields: list[str], point: str) -> MountFacts:
    separator = fields.index("-")
    kind, source, options = fields[separator + 1 : separator + 4]
    mount_read_only = "ro" in fields[5].split(",")
    system_read_only = "ro" in options.split(",")
    return MountFacts(
        point=point,
        device=unescape_mountinfo(source),
        kind=kind,
        read_only=mount_read_only or system_read_only,
        stopped_by_kernel=system_read_only and not mount_read_only,
        errors=_ext4_errors(source) if kind == "ext4" else 0,
    )


def _ext4_errors(source: str) -> int:
    """Errors since the last repair; the kernel counts them for ext4 alone."""
    try:
        return int((_EXT4 / Path(source).name / "errors_count").read_text("ascii"))
    except (OSError, ValueError):
        return 0
