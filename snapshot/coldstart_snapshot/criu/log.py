"""What a criu log means: the error that matters, in words, with a remedy. The noise is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coldstart_snapshot.criu.errors import CATALOGUE, VAGUE
from coldstart_snapshot.criu.reasons import reason

READ_LIMIT_BYTES = 4 << 20
UNRECOGNISED = "unrecognised"
_BLOCK_BYTES = 1 << 20
# also behind what a journal, docker or a test writes before criu's own line
_LINE = re.compile(r"\b(?:pie: )?(?:\d+: )?Error +\((?P<place>[^()]*:\d+)\): (?P<text>.*)$")
_OTHER_LOG = re.compile(r"(?:log file|path)[:=] ?(\S+\.log)")


@dataclass(frozen=True)
class Explanation:
    """One sentence and one remedy; `line` is criu's own."""

    code: str
    message: str
    hint: str
    line: str


# lines that successful runs have too, and lines that only say that an earlier one happened
_NOISE_PATTERNS = (
    "RLIMIT_NOFILE",
    "Can't get pidfd",
    "binfmt_misc",
    "cg: cgroupd: recv req error",
    "Dumping FAILED",
    "Restoring FAILED",
    r"Dump .*\(pid: \d+\) failed",
    r"Collect .*\(pid: \d+\) failed",
    r"Can't dump (task|pstree)",
    r"\d+ (killed|stopped) by signal",
    r"exited, status=(?!127)",
    r"Can't open file .*/\.criu",
    "Failed to wait inprogress tasks",
    "Killing processes because of failure",
    "Can't switch to the parasite",
    "Could not process rule",
    "No CUDA|cuda_plugin: .*(?:disabled|not found|no GPU)",
    "kerndat_",
    "Namespaces dumping finished with error",
)
_NOISE = re.compile("|".join(_NOISE_PATTERNS))


def explain_log(log: Path) -> Explanation | None:
    """The error that matters in a criu log; None where there is no log or no error in it."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - READ_LIMIT_BYTES))
            text = stream.read(READ_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return explain_text(text)


def read_end(stream: IO[bytes]) -> str:
    """The end of what comes through a pipe, however much that is."""
    kept = b""
    while block := stream.read(_BLOCK_BYTES):
        kept = (kept + block)[-READ_LIMIT_BYTES:]
    return kept.decode("utf-8", "replace")


def explain_text(text: str) -> Explanation | None:
    """The first error that has a meaning here, else the last one that is no noise.

    What criu says after its first error are consequences: the cause is what comes first.
    """
    meaningful = [error for error in _errors(text) if not _NOISE.search(error)]
    for catalogue in (CATALOGUE, VAGUE):
        for error in meaningful:
            for entry in catalogue:
                if match := entry.pattern.search(error):
                    hint = _fill(entry.hint or reason(entry.code).remedy, match)
                    return Explanation(entry.code, _fill(entry.message, match), hint, error)
    if meaningful:
        last = meaningful[-1]
        return Explanation(UNRECOGNISED, f"criu: {last}", reason(UNRECOGNISED).remedy, last)
    return None


def mentioned_log(text: str) -> str | None:
    """The log that a container engine names instead of telling what is in it."""
    found = _OTHER_LOG.findall(text)
    return found[-1] if found else None


def _errors(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if "Error" in line and (match := _LINE.search(line)):
            yield match["text"].rstrip()


def _fill(message: str, match: re.Match[str]) -> str:
    """Put the groups in; where alternatives have groups of their own, the ones that matched come first."""
    groups = [group.strip() for group in match.groups() if group is not None]
    for number in (1, 2):
        value = groups[number - 1] if number <= len(groups) else "?"
        message = message.replace(f"{{{number}}}", value)
    return message
