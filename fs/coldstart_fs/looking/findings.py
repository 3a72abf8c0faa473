"""What lint can find: stable codes, what each costs, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`meaning` continues "N files ..."; `cost` is what a replica pays."""

    meaning: str
    cost: str
    remedy: str


# codes are a promise: scripts filter by them. In the order they are reported
RULES: dict[str, Rule] = {
    "writable-setuid": Rule(
        "set-user-ID or set-group-ID programs that everybody may write to",
        "whoever gets into the container becomes their owner",
        "chmod o-w in the image's build",
    ),
    "writable-directory": Rule(
        "folders that everybody may write to, without the sticky bit",
        "users of the container can replace each other's files",
        "chmod +t, or o-w, in the image's build",
    ),
    "stale-bytecode": Rule(
        "byte code that does not match its source",
        "Python compiles the source again in every replica",
        "run `python -m compileall -q -f --invalidation-mode unchecked-hash` last: builders change times",
    ),
    "missing-bytecode": Rule(
        "modules of installed packages without byte code",
        "Python compiles them in every replica that imports them",
        "run `python -m compileall -q` in the image's build, and leave PYTHONDONTWRITEBYTECODE unset in it",
    ),
    "hashed-bytecode": Rule(
        "byte code that is checked by the hash of its source",
        "Python reads and hashes the source at every import",
        "compile with `--invalidation-mode unchecked-hash`: the source in an image does not change",
    ),
    "unused-bytecode": Rule(
        "byte code that Python never reads, since its source is gone or it stands beside it",
        "space",
        "remove it in the image's build",
    ),
    "duplicate-tree": Rule(
        "trees with the same names and contents in several places",
        "stored once, but read and kept in the page cache once for each place",
        "keep one, and let symlinks stand for the others",
    ),
    "large-file": Rule(
        "very large files",
        "a host without them waits for them; weights change less often than the code around them",
        "keep weights in an image or a mount of their own",
    ),
    "dangling-symlink": Rule(
        "absolute symlinks to what the image does not have",
        "open fails, unless something is mounted there",
        "remove them, or make them relative",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One place where a rule applies; `files` and `size_bytes` say how much it concerns."""

    code: str
    path: bytes
    detail: str
    size_bytes: int
    files: int = 1
    other_paths: tuple[bytes, ...] = ()
    """The other places of a duplicate; the target of a dangling symlink."""

    @property
    def rule(self) -> Rule:
        return RULES[self.code]
