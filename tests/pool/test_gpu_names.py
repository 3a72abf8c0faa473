"""One name for each GPU."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coldstart_pool.inputs.gpu_names import UnclearGpuError, canonical_gpu


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("H100", "H100-80GB"),
        ("h100 80gb sxm", "H100-80GB"),
        ("nvidia-h100-80gb", "H100-80GB"),
        ("H100 HGX (80GB)", "H100-80GB"),
        ("H100 PCIe (80GB)", "H100-PCIe-80GB"),
        ("H100 NVL", "H100-NVL-94GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("Tesla-V100 32GB", "V100-32GB"),
        ("T4 (16)", "T4-16GB"),
        ("RTX A6000 (48 GB)", "A6000-48GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("3080Ti (12 GB)", "RTX3080TI-12GB"),
        ("L40S", "L40S-48GB"),
        ("B200 180GB", "B200-192GB"),
        ("Quadro RTX 6000 (24 GB)", "RTX6000-24GB"),
        ("Gaudi 2", "GAUDI2-96GB"),
    ],
)
def test_spellings_of_one_card_get_one_name(name: str, canonical: str) -> None:
    assert canonical_gpu(name) == canonical
    assert canonical_gpu(canonical) == canonical


def test_the_memory_of_all_cards_glued_to_a_name_is_taken_apart() -> None:
    assert canonical_gpu("A100-80GB-640GB", gpu_count=8) == "A100-80GB"
    with pytest.raises(UnclearGpuError, match="contradicts itself"):
        canonical_gpu("A100-80GB-640GB", gpu_count=4)


def test_a_bare_name_with_several_sizes_is_refused_with_the_candidates() -> None:
    with pytest.raises(UnclearGpuError, match="A100-40GB or A100-80GB"):
        canonical_gpu("A100")


def test_a_memory_column_settles_a_bare_name_for_one_card_or_for_all() -> None:
    assert canonical_gpu("A100", memory_gb=Fraction(640), gpu_count=8) == "A100-80GB"
    assert canonical_gpu("A100", memory_gb=Fraction(40), gpu_count=8) == "A100-40GB"
    with pytest.raises(UnclearGpuError):  # two cards of 40 GB, or one of 80?
        canonical_gpu("A100", memory_gb=Fraction(80), gpu_count=2)


def test_a_size_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnclearGpuError, match="no A100 has 20 GB"):
        canonical_gpu("A100 (20 GB)")
