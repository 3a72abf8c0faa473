"""Writes the tables of docs/conformance.md from the cases: `python -m fs.conformance.table` from the root."""

from __future__ import annotations

from pathlib import Path

from fs.conformance.cases import GROUPS
from fs.conformance.deviations import ACCEPTED, DEVIATIONS, REFUSED, Differing

BEGIN = "<!-- written by tests/fs/conformance/table.py from the tests; do not edit below -->\n"
_WORDS = {
    "missing": "not there",
    "extra": "there, not with us",
    "mtime_ns": "other time",
    "xattrs": "other xattrs",
    "links group": "linked otherwise",
    "mode uid gid": "other mode and owner",
    "mode uid mtime_ns": "other mode, owner and time",
    "uid mtime_ns": "other owner and time",
    "mode uid": "other mode and owner",
    "mode": "other mode",
}


def tables() -> str:
    parts = []
    for group, cases in GROUPS.items():
        same = [case.sentence for case in cases if case.sentence not in DEVIATIONS]
        odd = [case.sentence for case in cases if case.sentence in DEVIATIONS]
        refused = [sentence for sentence in odd if _all_refuse(sentence)]
        parts.append(f"\n### {group[0].upper()}{group[1:]}\n")
        for what, sentences in (("The same in all three", same), ("Refused by all three", refused)):
            if sentences:
                listed = "; ".join(_escaped(item.removesuffix(" is refused")) for item in sentences)
                parts.append(f"\n{what}: {listed}.\n")
        if disputed := [sentence for sentence in odd if sentence not in refused]:
            parts.append(
                "\n| case | coldstart | umoci | containerd | why |\n| --- | --- | --- | --- | --- |\n"
            )
            parts += [_row(sentence) for sentence in disputed]
    return "".join(parts)


def _all_refuse(sentence: str) -> bool:
    deviation = DEVIATIONS[sentence]
    return deviation.refused is not None and not deviation.umoci and not deviation.containerd


def _row(sentence: str) -> str:
    deviation = DEVIATIONS[sentence]
    ours = "refuses" if deviation.refused is not None else "accepts"
    cells = [
        sentence,
        ours,
        _words(deviation.umoci, ours),
        _words(deviation.containerd, ours),
        deviation.why,
    ]
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |\n"


def _words(theirs: Differing | str, ours: str) -> str:
    if not theirs:
        return "the same" if ours == "accepts" else "refuses"
    if isinstance(theirs, str):
        return {REFUSED: "refuses", ACCEPTED: "accepts"}[theirs]
    return "; ".join(f"`{path}` {_WORDS[what]}" for path, what in theirs.items())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\0", "\\0").replace("*", "\\*").replace("_", "\\_")


def with_tables(document: str) -> str:
    return document.partition(BEGIN)[0] + BEGIN + tables()


if __name__ == "__main__":
    path = Path("docs/conformance.md")
    path.write_text(with_tables(path.read_text()))
