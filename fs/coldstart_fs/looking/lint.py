"""What makes an image slow or unsafe: one pass over its tree, and the headers of its byte code."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass

from coldstart_fs.format.index import Index
from coldstart_fs.looking.bytecode import BytecodeCheck
from coldstart_fs.looking.contents import Contents
from coldstart_fs.looking.duplicates import duplicate_trees
from coldstart_fs.looking.findings import RULES, Finding
from coldstart_fs.looking.tree import Node, resolve, walk_directories
from coldstart_fs.looking.usage import hole_bytes

DEFAULT_LARGE_BYTES = 1 << 30
# what a container mounts or makes at its start may be pointed to beforehand
_MADE_AT_START = (b"proc", b"sys", b"dev", b"run", b"tmp", b"var/run", b"var/lock", b"var/tmp")


@dataclass(frozen=True)
class LintReport:
    """Findings in the order of the rules, the largest first; a sentence for what could not be checked."""

    findings: tuple[Finding, ...]
    problems: tuple[str, ...]


def lint_image(index: Index, contents: Contents, *, large_bytes: int = DEFAULT_LARGE_BYTES) -> LintReport:
    """Look for everything in `RULES`. Never fails an image: it only says what was found."""
    bytecode = BytecodeCheck(index)
    findings: list[Finding] = []
    for directory, entries in walk_directories(index):
        bytecode.visit(directory, entries)
        for node in (*entries, directory) if not directory.path else entries:
            findings += _mode_findings(node)
            if node.inode.is_file and node.inode.size >= large_bytes:
                data_bytes = node.inode.size - hole_bytes(index, node.inode)
                if data_bytes >= large_bytes:
                    findings.append(Finding("large-file", node.path, "", data_bytes))
            elif node.inode.is_symlink:
                findings += _symlink_findings(index, node)
    found, problems = bytecode.findings(contents)
    findings += found
    findings += duplicate_trees(index)
    order = {code: number for number, code in enumerate(RULES)}
    findings.sort(
        key=lambda finding: (order[finding.code], -finding.files, -finding.size_bytes, finding.path)
    )
    return LintReport(tuple(findings), tuple(problems))


def _mode_findings(node: Node) -> Iterator[Finding]:
    mode = node.inode.mode
    if not mode & stat.S_IWOTH:
        return
    if node.inode.is_file and mode & (stat.S_ISUID | stat.S_ISGID):
        yield Finding("writable-setuid", node.path, f"mode {stat.S_IMODE(mode):04o}", node.inode.size)
    elif node.inode.is_directory and not mode & stat.S_ISVTX:
        yield Finding("writable-directory", node.path, f"mode {stat.S_IMODE(mode):04o}", 0, files=0)


def _symlink_findings(index: Index, node: Node) -> Iterator[Finding]:
    target = index.symlink_target(node.inode.number)
    if not target.startswith(b"/"):
        return
    path = target.strip(b"/")
    if any(path == made or path.startswith(made + b"/") for made in _MADE_AT_START):
        return
    if resolve(index, target) is None:
        yield Finding("dangling-symlink", node.path, "", 0, other_paths=(path,))
