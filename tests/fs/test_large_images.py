"""Memory stays bounded, however many files an image has and however large they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from large_images import index_in_child, large_files, layout_of, many_files_layout

GIBIBYTE = 1 << 30


def test_memory_and_index_grow_by_few_bytes_an_entry(tmp_path: Path) -> None:
    # the second one differs by the entries alone: interpreter and libraries are taken out
    small = index_in_child(
        f"oci:{many_files_layout(tmp_path / 'small', 10_000)}", tmp_path / "one", timeout_seconds=60
    )
    large = index_in_child(
        f"oci:{many_files_layout(tmp_path / 'large', 100_000)}", tmp_path / "two", timeout_seconds=120
    )
    entries = large.entries - small.entries
    assert entries == 90_090
    assert (large.peak_bytes - small.peak_bytes) / entries < 900
    assert (large.index_bytes - small.index_bytes) / entries < 120


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_million_files_are_indexed_in_under_a_gibibyte(tmp_path: Path) -> None:
    layout = many_files_layout(tmp_path / "layout", 1_000_000)
    first = index_in_child(f"oci:{layout}", tmp_path / "store", timeout_seconds=280)
    assert first.entries == 1_001_002
    assert first.peak_bytes < GIBIBYTE
    assert first.index_bytes / first.entries < 120


@pytest.mark.full
@pytest.mark.timeout(600)
def test_indexing_a_million_known_files_again_takes_no_more(tmp_path: Path) -> None:
    layout = many_files_layout(tmp_path / "layout", 1_000_000)
    for _ in range(2):
        report = index_in_child(f"oci:{layout}", tmp_path / "store", timeout_seconds=280)
    assert report.new_bytes == 0
    assert report.peak_bytes < GIBIBYTE


@pytest.mark.full
@pytest.mark.timeout(900)
def test_fifty_gigabytes_are_indexed_in_a_fraction_of_a_gibibyte(tmp_path: Path) -> None:
    layout = layout_of(tmp_path / "layout", large_files(50, 1_000_013_824))
    report = index_in_child(f"oci:{layout}", tmp_path / "store", timeout_seconds=800)
    assert report.content_bytes > 50_000_000_000
    assert report.new_bytes < 1_000_000
    assert report.peak_bytes < GIBIBYTE // 4
