"""One tolerant reader for what `dcgmi diag -j` prints, DCGM 2.1 to 4.6. The JSON has no published schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # 4.x, and all before
_CANDIDATES = 64
# these beside an object mean that it stands inside another one, whose end is missing
_INSIDE_BEFORE = re.compile(r'([\[,]|"\s*:)\s*\Z')
_INSIDE_AFTER = {",", "]", "}"}
_BLANK = re.compile(r"9223372036854775794|<<<NOT_SUPPORTED>>>")  # DCGM's "no value", as it leaks into texts
_GPU_IN_TEXT = re.compile(r"\bGPU (\d+)\b")
_EVIDENCE_LENGTH = 400


class Status(StrEnum):
    PASS = "pass"  # noqa: S105 - a test result, no secret
    FAIL = "fail"
    SKIP = "skip"
    OTHER = "other"


@dataclass(frozen=True)
class DcgmError:
    text: str
    error_id: int | None = None
    severity: int | None = None
    gpu: int | None = None


@dataclass(frozen=True)
class TestResult:
    """One test on some GPUs; `gpus` is empty where DCGM does not say which (level 1 before 3.3)."""

    __test__ = False  # pytest, please

    test: str
    software: bool
    status: Status
    gpus: tuple[int, ...]
    errors: tuple[DcgmError, ...]
    info: tuple[str, ...] = ()


@dataclass(frozen=True)
class DcgmDocument:
    """`preamble` is what stood on stdout before the JSON."""

    results: tuple[TestResult, ...]
    version: str | None = None
    runtime_error: str | None = None
    overall_failed: bool = False
    serials: Mapping[int, str] | None = None
    gpus: tuple[int, ...] = ()
    device_ids: tuple[str, ...] = ()  # one per GPU of the group
    preamble: str = ""


def parse(output: str) -> DcgmDocument | None:
    """The document in `output`; None where there is none, or only the beginning of one."""
    decoder = json.JSONDecoder()
    for number, brace in enumerate(re.finditer(r"\{", output)):
        if number == _CANDIDATES:
            break
        try:
            found, end = decoder.raw_decode(output, brace.start())
        except ValueError:
            continue
        before, after = output[: brace.start()], output[end:].lstrip()[:1]
        if after in _INSIDE_AFTER or _INSIDE_BEFORE.search(before[-200:]):
            continue
        if isinstance(found, dict) and (document := _document(found)):
            return replace(document, preamble=before.strip())
    return None


def _document(found: dict[str, Any]) -> DcgmDocument | None:
    iterations = found.get("iterations")
    if isinstance(iterations, list):  # --iterations N: one whole document each
        return _joined([inner for item in _objects(iterations) if (inner := _document(item))], found)
    root = next((found[key] for key in _ROOTS if isinstance(found.get(key), dict)), None)
    if root is None:
        return None
    given = found.get("metadata")
    metadata: dict[str, Any] = given if isinstance(given, dict) else {}
    entities = list(_gpu_entities(found))
    serials = {gpu: serial for gpu, entity in entities if (serial := _value(entity.get("serial_num")))}
    serials |= {gpu: serial for gpu, serial in _old_serials(found) if serial}
    results = tuple(_results(root))
    devices = found.get("GPU Device IDs") or [entity.get("device_id") for _, entity in entities]
    return DcgmDocument(
        results=results,
        version=_first_text(metadata.get("version"), found.get("version"), root.get("version")),
        runtime_error=_first_text(root.get("runtime_error"), found.get("runtime_error")),
        serials=serials,
        gpus=tuple(sorted({gpu for gpu, _ in entities} | {gpu for result in results for gpu in result.gpus})),
        device_ids=tuple(str(device) for device in devices if device),
    )


def _joined(documents: list[DcgmDocument], wrapper: dict[str, Any]) -> DcgmDocument:
    first = documents[0] if documents else DcgmDocument(())
    return replace(
        first,
        results=tuple(result for document in documents for result in document.results),
        runtime_error=next(
            (document.runtime_error for document in documents if document.runtime_error), None
        ),
        overall_failed=_status(wrapper.get("Overall Result")) is Status.FAIL,
        gpus=tuple(sorted({gpu for document in documents for gpu in document.gpus})),
    )


def _gpu_entities(found: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    for group in _objects(found.get("entity_groups")):
        if group.get("entity_group") != "GPU":
            continue
        for entity in _objects(group.get("entities")):
            if (number := _integer(entity.get("entity_id"))) is not None:
                yield number, entity


def _old_serials(found: dict[str, Any]) -> Iterator[tuple[int, str | None]]:
    serials = found.get("GPU Device Serials")
    for gpu, serial in serials.items() if isinstance(serials, dict) else ():
        if (number := _integer(gpu)) is not None:
            yield number, _value(serial)


def _results(root: dict[str, Any]) -> Iterator[TestResult]:
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            name = str(test.get("name", "unnamed"))
            software = category.get("category") == "Deployment" or name == "software"
            entities = [_result(name, item, software=software) for item in _objects(test.get("results"))]
            yield from entities
            yield from _summary(name, test.get("test_summary"), entities, software=software)


def _result(test: str, item: dict[str, Any], *, software: bool) -> TestResult:
    by_entity = "entity_id" in item  # 4.x
    gpus = _gpus(item)
    errors = []
    for error in _errors(item):
        # before 4.0 a level-1 result names only the last error's GPU: the text knows better
        named = None if by_entity else _gpu_in(error.text)
        gpu = named if named is not None else gpus[0] if len(gpus) == 1 else None
        errors.append(replace(error, gpu=gpu))
    # 3.3.1 prints one result per error, and a status in the first alone
    status = _status(item.get("status")) if "status" in item else Status.FAIL if errors else Status.OTHER
    if software and not by_entity:
        gpus = ()
    return TestResult(test, software, status, gpus, tuple(errors), _info(item))


def _info(item: dict[str, Any]) -> tuple[str, ...]:
    """A text that joins all lines, or from 4.x on a list of them."""
    info = item.get("info")
    if isinstance(info, str):
        return (info,)
    return tuple(line for line in info if isinstance(line, str)) if isinstance(info, list) else ()


def _summary(
    test: str, summary: object, entities: list[TestResult], *, software: bool
) -> Iterator[TestResult]:
    """What a 4.x summary adds: from 4.5 on it repeats the errors of its entities."""
    if not isinstance(summary, dict):
        return
    known = {(error.error_id, error.text) for result in entities for error in result.errors}
    new = [error for error in _errors(summary) if (error.error_id, error.text) not in known]
    failed = _status(summary.get("status")) is Status.FAIL
    if new or (failed and not any(result.status is Status.FAIL for result in entities)):
        errors = tuple(replace(error, gpu=_gpu_in(error.text)) for error in new)
        yield TestResult(test, software, Status.FAIL if failed else Status.OTHER, (), errors)


def _errors(item: dict[str, Any]) -> Iterator[DcgmError]:
    """`warnings` as a text (with `error_id` beside it from 3.2.5 on), or as a list of objects or texts."""
    warnings = item.get("warnings")
    if isinstance(warnings, str):
        text, ids = warnings, item
        if text.strip():
            yield _error(text, ids)
    for warning in warnings if isinstance(warnings, list) else ():
        if isinstance(warning, dict):
            # 3.3.3 to 3.3.9 use the key `warnings` inside level-1 objects
            yield _error(str(warning.get("warning") or warning.get("warnings") or "no text"), warning)
        elif isinstance(warning, str) and warning.strip():
            yield _error(warning, {})


def _error(text: str, ids: Mapping[str, Any]) -> DcgmError:
    clean = " ".join(_BLANK.sub("no value", text).split())[:_EVIDENCE_LENGTH]
    return DcgmError(clean, _integer(ids.get("error_id")), _integer(ids.get("error_severity")))


def _gpus(item: dict[str, Any]) -> tuple[int, ...]:
    if "entity_id" in item:
        if item.get("entity_group", "GPU") != "GPU":
            return ()
        number = _integer(item["entity_id"])
        return () if number is None else (number,)
    given = item.get("gpu_id", item.get("gpu_ids"))
    parts = given.split(",") if isinstance(given, str) else [given]
    return tuple(number for part in parts if (number := _integer(part)) is not None)


def _status(word: object) -> Status:
    known = {"PASS": Status.PASS, "FAIL": Status.FAIL, "WARN": Status.FAIL}
    known |= {"SKIP": Status.SKIP, "NOT RUN": Status.SKIP, "NOTRUN": Status.SKIP}
    return known.get(str(word).strip().upper(), Status.OTHER)


def _gpu_in(text: str) -> int | None:
    match = _GPU_IN_TEXT.search(text)
    return int(match[1]) if match else None


def _objects(items: object) -> list[dict[str, Any]]:
    """The objects of a list: before 4.0, holes in the numbering of GPUs are nulls."""
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else None


def _value(value: object) -> str | None:
    return value if isinstance(value, str) and value and not _BLANK.search(value) else None


def _first_text(*values: object) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)
