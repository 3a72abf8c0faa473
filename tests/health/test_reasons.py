"""Every reason code of the sources is in the registry, and the registry has no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import coldstart_health
from coldstart_health.reasons import all_reasons, explain
from coldstart_health.verdict import Verdict

SOURCES = sorted(Path(coldstart_health.__file__).parent.glob("*.py"))
CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
# words of the same shape in the same places that are no reasons
NO_REASONS = {"clean_runs", "volatile_corrected"}
# calls and their argument that is a reason, where no verdict stands beside it
CALLS = {"_note": 0, "_not_recorded": 0, "Measure": 1}


def test_every_reason_in_the_sources_is_explained() -> None:
    known = {reason.code for reason in all_reasons()}
    assert sorted({code for code, _, _ in emitted()} - known) == []


def test_every_explained_reason_is_in_the_sources() -> None:
    text = "\n".join(path.read_text() for path in SOURCES)
    for reason in all_reasons():
        # `xid_N` and `dcgm_error_N` are completed by a number, `nvml_not_checked` by the check
        stem = reason.code.removesuffix("N").removesuffix("_not_checked")
        assert re.search(rf'"{stem}(?:"|\{{)', text), reason.code


def test_every_verdict_in_the_sources_is_one_that_the_registry_names() -> None:
    named = {reason.code: reason.verdicts for reason in all_reasons()}
    for code, verdict, path in emitted():
        if verdict is not None:
            assert verdict in named[code], f"{code} is {verdict.word} in {path.name}"


def test_every_reason_says_what_it_means_whence_it_comes_and_what_to_do() -> None:
    codes = [reason.code for reason in all_reasons()]
    assert len(codes) == len(set(codes))
    for reason in all_reasons():
        assert reason.verdicts, reason.code
        for text in (reason.meaning, reason.cause, reason.action):
            assert 2 < len(text) < 160, reason.code
            assert not text.endswith("."), reason.code


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("persistence_off", "persistence_off", "nvidia-persistenced"),
        ("Persistence-Off", "persistence_off", "nvidia-persistenced"),
        ("xid_79", "xid_79", "fallen off the bus"),
        ("79", "xid_79", "fallen off the bus"),
        ("XID 79", "xid_79", "fallen off the bus"),
        ("xid_16", "xid_16", "unused"),
        ("xid_4711", "xid_4711", "newer than"),
        ("xid_149", "xid_149", "NETIR"),
        ("sxid_20034", "sxid_20034", "NVSwitch"),
        ("dcgm_error_333", "dcgm_error_333", "DCGM"),
    ],
)
def test_a_code_is_explained_however_it_is_written(asked: str, code: str, words: str) -> None:
    reason = explain(asked)
    assert reason is not None
    assert reason.code == code
    assert words in f"{reason.meaning} {reason.action}"


def test_an_unknown_code_is_not_explained() -> None:
    assert explain("no_such_code") is None


def emitted() -> Iterator[tuple[str, Verdict | None, Path]]:
    """Reasons as literals, each with the verdict beside it where that is a literal too."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            for code, verdict in _in(node):
                if CODE.fullmatch(code) and code not in NO_REASONS:
                    yield code, verdict, path


def _in(node: ast.AST) -> Iterator[tuple[str, Verdict | None]]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        place = CALLS.get(name)
        if place is not None and len(node.args) > place:
            yield from ((code, None) for code in _text(node.args[place]))
        yield from _beside(node.args)
    elif isinstance(node, ast.Assign):
        # `reason = "a" if bad else "b"`
        if any(isinstance(target, ast.Name) and target.id == "reason" for target in node.targets):
            yield from ((code, None) for part in ast.walk(node.value) for code in _text(part))
    elif isinstance(node, ast.keyword):
        yield from ((code, None) for code in _text(node.value) if node.arg == "reason")
    elif isinstance(node, ast.Tuple):
        yield from _beside(node.elts)
        # DCGM's error ids: (verdict, action, {id: reason})
        for verdict in map(_verdict, node.elts[:1]):
            for table in node.elts[2:3]:
                if verdict is not None and isinstance(table, ast.Dict):
                    yield from ((code, verdict) for value in table.values for code in _text(value))


def _beside(elements: list[ast.expr]) -> Iterator[tuple[str, Verdict | None]]:
    for code in _text(elements[0]) if len(elements) > 1 else ():
        if (verdict := _verdict(elements[1])) is not None:
            yield code, verdict
        elif _is_clocks_event(code, elements):
            yield code, None


def _is_clocks_event(code: str, elements: list[ast.expr]) -> bool:
    """`(reason, words, action)`: one verdict for all of them stands elsewhere."""
    plain = len(elements) == 3 and all(isinstance(element, ast.Constant | ast.Name) for element in elements)
    return plain and "_" in code and any(" " in text for text in _text(elements[1]))


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _verdict(node: ast.expr) -> Verdict | None:
    if isinstance(node, ast.Name) and node.id == "_UNKNOWN":
        return Verdict.UNKNOWN
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Verdict":
        return Verdict.__members__.get(node.attr)
    return None
