"""Odd images, one by one: what we make of them, and that umoci and containerd make the same, or what not."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import REPOSITORY
from fs.conformance.case import Case
from fs.conformance.cases import GROUPS
from fs.conformance.comparison import Outcome, Outcomes, Tree, differences, shown, unpack_all
from fs.conformance.deviations import ACCEPTED, DEVIATIONS, REFUSED, Deviation, Differing
from fs.conformance.references import Containerd, Umoci
from fs.conformance.table import with_tables

CASES = [(group, case) for group, cases in GROUPS.items() for case in cases]
SAME = Deviation("")


class Laboratory:
    """Unpacks a group of cases when the first of them is asked for."""

    def __init__(self, folder: Path, umoci: Umoci, containerd: Containerd) -> None:
        self._folder = folder
        self._umoci = umoci
        self._containerd = containerd
        self._known: dict[str, dict[str, Outcomes]] = {}

    def outcomes(self, group: str, case: Case) -> Outcomes:
        if group not in self._known:
            cases = GROUPS[group]
            got = unpack_all(
                self._folder / group.replace(" ", "-"),
                {f"case-{number}": each.layers for number, each in enumerate(cases)},
                self._umoci,
                self._containerd,
            )
            self._known[group] = {each.sentence: got[f"case-{number}"] for number, each in enumerate(cases)}
        return self._known[group][case.sentence]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    folder = tmp_path_factory.mktemp("hostile")
    with Containerd.running(folder / "c") as containerd:
        yield Laboratory(folder, Umoci(folder), containerd)


@pytest.mark.parametrize(("group", "case"), CASES, ids=[case.sentence for _, case in CASES])
def test_layers(group: str, case: Case, laboratory: Laboratory) -> None:
    outcomes = laboratory.outcomes(group, case)
    deviation = DEVIATIONS.get(case.sentence, SAME)
    ours = outcomes.coldstart
    if deviation.refused is not None:
        assert ours.tree is None
        assert _agrees(ours.refusal, deviation.refused), ours.refusal
    else:
        assert ours.tree is not None, ours.refusal
        found = {shown(path): _described(ours.tree, path) for path in ours.tree}
        assert {path: found.get(path) for path in deviation.holds} == deviation.holds
    assert _judged(ours, outcomes.umoci, outcomes.started_ns) == _expected(deviation, deviation.umoci)
    assert _judged(ours, outcomes.containerd, outcomes.started_ns) == _expected(
        deviation, deviation.containerd
    )


def test_overlayfs_of_containerd_sees_no_symlinks_of_lower_layers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = [
        "a file below a symlink to a folder",
        "a file below what is a file in a lower layer",
        "an opaque marker after the folder's files",
        "a whiteout hides a whole folder",
    ]
    images = {
        f"case-{number}": next(case.layers for _, case in CASES if case.sentence == name)
        for number, name in enumerate(names)
    }
    folder = tmp_path_factory.mktemp("overlay")
    with Containerd.running(folder / "c", "overlayfs") as containerd:
        outcomes = unpack_all(folder / "images", images, Umoci(folder), containerd)
    symlink, *same = outcomes.values()
    assert symlink.coldstart.tree is not None
    assert symlink.containerd.tree is not None
    assert stat.S_ISLNK(symlink.coldstart.tree[b"lib"].mode)
    assert stat.S_ISDIR(symlink.containerd.tree[b"lib"].mode)
    for outcome in same:
        assert _judged(outcome.coldstart, outcome.containerd, outcome.started_ns) == {}


def test_every_deviation_is_one_of_a_case() -> None:
    assert DEVIATIONS.keys() <= {case.sentence for _, case in CASES}
    assert len({case.sentence for _, case in CASES}) == len(CASES)
    accepted = [name for name, deviation in DEVIATIONS.items() if deviation.refused is None]
    unproved = [
        name
        for name in accepted
        if REFUSED in (DEVIATIONS[name].umoci, DEVIATIONS[name].containerd) and DEVIATIONS[name].umoci
        if DEVIATIONS[name].containerd and not DEVIATIONS[name].holds and "PAX" not in name
    ]
    assert not unproved, "no reference vouches for these"


def test_the_documented_table_is_what_was_tested() -> None:
    document = (REPOSITORY / "docs" / "conformance.md").read_text()
    assert with_tables(document) == document, "run `PYTHONPATH=tests python -m fs.conformance.table`"


def _judged(ours: Outcome, theirs: Outcome, started_ns: int) -> Differing | str:
    if theirs.tree is None:
        return REFUSED
    return ACCEPTED if ours.tree is None else differences(ours.tree, theirs.tree, started_ns)


def _expected(deviation: Deviation, theirs: Differing | str) -> Differing | str:
    """Where we refuse and nothing else is said, they do too."""
    return REFUSED if deviation.refused is not None and not theirs else theirs


def _agrees(message: str, expected: str) -> bool:
    """Layer, then the message; a letter and `+` stand for a run of that letter."""
    pattern = re.sub(r"(?<=[nd])\\\+(\\\.\\\.\\\.)?", r"+(\\.\\.\\.)?", re.escape(expected))
    return re.search(r"(layer |/)(sha256[:/])?[0-9a-f]{64}: " + pattern + "$", message) is not None


def _described(tree: Tree, path: bytes) -> str:
    facts = tree[path]
    if facts.group != path:
        return f"same as {shown(facts.group)}"
    if stat.S_ISDIR(facts.mode):
        return "folder"
    if stat.S_ISLNK(facts.mode):
        return f"-> {shown(facts.target)}"
    return facts.content.decode("utf-8", "backslashreplace")
