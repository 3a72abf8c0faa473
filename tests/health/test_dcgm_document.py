"""The reader of `dcgmi diag -j` on recorded and hand-written output of every DCGM release."""

from __future__ import annotations

import json

import pytest

from coldstart_health.dcgm_document import Status, parse
from conftest import shared_data


def read(name: str) -> str:
    return shared_data(f"health/{name}").read_text()


def test_the_version_is_found_wherever_a_release_puts_it() -> None:
    for name, version in {
        "dcgmi-handwritten/v3.1.7-root-version-keys.json": "3.1.7",
        "dcgmi-handwritten/v4.1-isolate-one-of-two.json": "4.1.1",
        "dcgmi-handwritten/v3.2.5-runtime-error-with-version.json": "3.2.5",
        "dcgmi-real/nvvs-v3.1.0-stdout-with-prefix-and-nulls.txt": "3.1.0",
        "dcgmi-handwritten/v2.4-r1-l1-fail-string-warning.json": None,
    }.items():
        document = parse(read(name))
        assert document is not None
        assert document.version == version


def test_serial_numbers_come_from_both_layouts_and_blanks_do_not() -> None:
    new = parse(read("dcgmi-handwritten/v4.1-isolate-one-of-two.json"))
    old = parse(read("dcgmi-handwritten/v3.3.9-mixed-keys-null.json"))
    blank = parse(read("dcgmi-real/v4.2.3-r1-gb10-persistence-off.json"))
    assert new is not None
    assert old is not None
    assert blank is not None
    assert new.serials == {0: "1650000000001", 1: "1650000000002"}
    assert old.serials == {0: "1650000000001", 2: "1650000000003"}
    assert blank.serials == {}


def test_each_error_keeps_the_gpu_of_its_text_where_the_result_names_only_the_last() -> None:
    document = parse(read("dcgmi-handwritten/v3.3.9-mixed-keys-null.json"))
    assert document is not None
    (persistence,) = [result for result in document.results if result.test == "Persistence Mode"]
    assert [(error.error_id, error.gpu) for error in persistence.errors] == [(29, 0), (29, 2)]


def test_a_result_without_a_status_that_has_an_error_has_failed() -> None:
    document = parse(read("dcgmi-handwritten/v3.3.1-l1-result-per-error.json"))
    assert document is not None
    failed = [result for result in document.results if result.status is Status.FAIL]
    assert [error.gpu for result in failed for error in result.errors] == [0, 1]


def test_a_summary_that_repeats_its_entities_adds_nothing() -> None:
    document = parse(read("dcgmi-handwritten/v4.5-isolate-summary-repeats.json"))
    assert document is not None
    assert [error.error_id for result in document.results for error in result.errors] == [52]


def test_lines_before_and_after_the_document_are_no_part_of_it() -> None:
    name = "dcgmi-handwritten/v4.1-isolate-one-of-two.json"
    plain = parse(read(name))
    noisy = parse("warning: {odd} text\nanother { line\n" + read(name) + "\nbye }\n")
    assert plain is not None
    assert noisy is not None
    assert noisy.results == plain.results
    assert noisy.preamble.startswith("warning:")


@pytest.mark.parametrize(
    "name",
    [
        "dcgmi-handwritten/v4.1-iterations-overall-fail.json",
        "dcgmi-handwritten/v4.1-isolate-one-of-two.json",
        "dcgmi-real/v3.1-r3-t4-pass.json",
    ],
)
def test_a_document_cut_anywhere_is_no_document(name: str) -> None:
    text = json.dumps(json.loads(read(name)))
    assert parse(text) is not None
    assert [length for length in range(len(text)) if parse(text[:length]) is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no braces",
        "{",
        "{}",
        "[]",
        "null",
        '{"DCGM Diagnostic": 3}',
        '{"DCGM Diagnostic": null}',
        "{" * 5000,
    ],
)
def test_what_is_no_diagnosis_is_no_document(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    "content",
    [
        {"test_categories": None},
        {"test_categories": [None, 3, {"tests": [None, {"results": None}]}]},
        {"test_categories": [{"tests": [{"name": 3, "results": [{"status": None, "gpu_id": []}]}]}]},
        {"test_categories": [{"tests": [{"results": [{"entity_id": "x", "warnings": [None, 3]}]}]}]},
        {"test_categories": [{"tests": [{"results": [{"warnings": {"a": 1}, "gpu_ids": "a,b"}]}]}]},
    ],
)
def test_odd_values_are_no_crash(content: object) -> None:
    document = parse(json.dumps({"DCGM Diagnostic": content, "entity_groups": 3, "metadata": []}))
    assert document is not None
    assert all(result.status is not Status.PASS for result in document.results)


def test_the_health_monitor_s_answer_is_no_diagnosis() -> None:
    assert parse(read("dcgmi-real/health-check-healthy.json")) is None


def test_a_schema_is_no_diagnosis() -> None:
    assert parse(read("dcgmi-real/nvidia-dcgm_diag_schema-v4.6.0.json")) is None
