"""One name for each GPU model and memory size, whatever a provider calls it: `H100-80GB`."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction

# memory sizes of one card in GB; a bare name with several sizes is ambiguous and refused
_KNOWN_SIZES: dict[str, tuple[int, ...]] = {
    "A10": (24,),
    "A100": (40, 80),
    "A10G": (24,),
    "A10M": (24,),
    "A16": (16,),
    "A2": (16,),
    "A2000": (6, 12),
    "A30": (24,),
    "A40": (48,),
    "A4000": (16,),
    "A4500": (20,),
    "A5000": (24,),
    "A5500": (24,),
    "A6000": (48,),
    "A800": (40, 80),
    "B100": (192,),
    "B200": (192,),
    "B300": (288,),
    "GAUDI": (32,),
    "GAUDI2": (96,),
    "GAUDI3": (128,),
    "GB10": (128,),
    "GB200": (192,),
    "GB300": (288,),
    "GH200": (96, 144),
    "GTX1080TI": (11,),
    "H100": (80,),
    "H20": (96, 141),
    "H200": (141,),
    "H800": (80,),
    "K80": (12,),
    "L2": (24,),
    "L20": (48,),
    "L4": (24,),
    "L40": (48,),
    "L40S": (48,),
    "M40": (12, 24),
    "M4000": (8,),
    "M60": (8,),
    "MI100": (32,),
    "MI210": (64,),
    "MI250": (128,),
    "MI250X": (128,),
    "MI300A": (128,),
    "MI300X": (192,),
    "MI325X": (256,),
    "MI350X": (288,),
    "MI355X": (288,),
    "P100": (12, 16),
    "P4": (8,),
    "P40": (24,),
    "P5000": (16,),
    "P6000": (24,),
    "RTX2000ADA": (16,),
    "RTX2080TI": (11,),
    "RTX3060": (8, 12),
    "RTX3060TI": (8,),
    "RTX3070": (8,),
    "RTX3070TI": (8,),
    "RTX3080": (10, 12),
    "RTX3080TI": (12,),
    "RTX3090": (24,),
    "RTX4000": (8,),
    "RTX4000ADA": (20,),
    "RTX4060": (8,),
    "RTX4060TI": (8, 16),
    "RTX4070": (12,),
    "RTX4070SUPER": (12,),
    "RTX4070TI": (12,),
    "RTX4070TISUPER": (16,),
    "RTX4080": (16,),
    "RTX4080SUPER": (16,),
    "RTX4090": (24,),
    "RTX4090D": (24,),
    "RTX4500ADA": (24,),
    "RTX5000": (16,),
    "RTX5000ADA": (32,),
    "RTX5070": (12,),
    "RTX5070TI": (16,),
    "RTX5080": (16,),
    "RTX5090": (32,),
    "RTX5880ADA": (48,),
    "RTX6000": (24,),
    "RTX6000ADA": (48,),
    "RTX8000": (48,),
    "RTXPRO6000": (96,),
    "T4": (16,),
    "T4G": (16,),
    "TITANRTX": (24,),
    "TITANV": (12,),
    "TITANXP": (12,),
    "V100": (16, 32),
    "V100S": (32,),
}
# models sold on boards of quite different speed: the slower board is a model of its own
_BOARDS = {"A100", "H100", "H200", "H800", "A800", "V100"}
BARE_BOARD_MODELS = frozenset(_BOARDS)
_ALIASES = {
    "1080TI": "GTX1080TI",
    "2080TI": "RTX2080TI",
    "3060": "RTX3060",
    "3070": "RTX3070",
    "3080": "RTX3080",
    "3080TI": "RTX3080TI",
    "3090": "RTX3090",
    "4070TI": "RTX4070TI",
    "4080": "RTX4080",
    "4090": "RTX4090",
    "5080": "RTX5080",
    "5090": "RTX5090",
    "RTXA2000": "A2000",
    "RTXA4000": "A4000",
    "RTXA4500": "A4500",
    "RTXA5000": "A5000",
    "RTXA5500": "A5500",
    "RTXA6000": "A6000",
    "4000ADA": "RTX4000ADA",
    "5000ADA": "RTX5000ADA",
    "6000ADA": "RTX6000ADA",
    "RTXADA6000": "RTX6000ADA",
    "ADA6000": "RTX6000ADA",
    "RTX6000ADAGENERATION": "RTX6000ADA",
    "RTX4000ADAGENERATION": "RTX4000ADA",
    "PRO6000": "RTXPRO6000",
    "RTXPRO6000S": "RTXPRO6000",
    "RTXPRO6000BLACKWELL": "RTXPRO6000",
    "RTXPRO6000BLACKWELLSERVEREDITION": "RTXPRO6000",
    "GAUDIHL205": "GAUDI",
    "HABANAGAUDI": "GAUDI",
}
_NOISE = {
    "NVIDIA",
    "AMD",
    "INTEL",
    "TESLA",
    "GEFORCE",
    "QUADRO",
    "INSTINCT",
    "GPU",
    "SXM",
    "HGX",
    "DGX",
    "GRACE",
}
# form factors and kinds of memory that tell no cards apart
_FORM = re.compile(r"SXM\d?|HBM\dE?|GDDR\dX?")
_MEMORY = re.compile(r"(?<![A-Z0-9.])(\d{1,5})\s*G(?:I?B)?(?![A-Z0-9])|\(\s*(\d{1,5})\s*\)")
# a slice of a card, as MIG and its resources are called: never the card itself
_SLICE = re.compile(r"(?<![A-Z0-9])(\dG\.\d{1,3}GB|MIG|VGPU|FRACTION|\d/\d)(?![A-Z0-9])")
_SEPARATORS = re.compile(r"[\s\-/,()\[\]]+")
# a sign or a dot belongs to the name: `X1.5` is not `X15`, and `H100+` is not `H100`
_NAME = re.compile(r"[A-Z0-9]+(?:[.+][A-Z0-9]+)*\+?")
_NVL_SIZES = {"H100": 94, "H200": 141}


class UnclearGpuError(ValueError):
    """The name fits several cards, or none; the message says which."""


def canonical_gpu(
    name: str,
    *,
    memory_gb: Fraction | None = None,
    memories_gb: Collection[Fraction] = (),
    gpu_count: int | None = None,
    board: str = "",
) -> str:
    """The one name of a GPU; `memory_gb` is a memory column's value, for one card or for all of them.

    `memories_gb` are several readings of such a column; `board` counts where the name states none.
    """
    # brackets of any width in the name, such as those of `A100 (80 GB)`, hold memory
    text = name.upper().replace("_", " ").strip()
    if (part := _SLICE.search(text)) is not None:
        raise UnclearGpuError(f"a slice of a GPU (`{part.group()}`), not a whole one: `{name.strip()}`")
    sizes = [int(first or second) for first, second in _MEMORY.findall(text)]
    words = [word for word in _SEPARATORS.split(_MEMORY.sub(" ", text)) if word]
    if strange := [word for word in words if not _NAME.fullmatch(word)]:
        raise UnclearGpuError(f"GPU name has signs that no model has: `{name.strip()}`: `{strange[0]}`")
    words = [word for word in words if not _FORM.fullmatch(word)]
    board = "PCIe" if "PCIE" in words else "NVL" if "NVL" in words else board
    model = "".join(word for word in words if word not in _NOISE | {"PCIE", "NVL"})
    model = _ALIASES.get(model, model)
    if not model:
        raise UnclearGpuError(f"GPU name says no model: `{name.strip()}`")
    stated = memories_gb or (() if memory_gb is None else (memory_gb,))
    if model == "H100" and not board and not sizes and _fitting(stated, (80, 94), gpu_count) == {94}:
        board = "NVL"  # the only H100 of that size
    board = board if model in _BOARDS else ""
    size = _card_size(name, model, board, sizes, stated, gpu_count)
    return "-".join(part for part in (model, board, f"{size}GB" if size else "") if part)


def board_in(instance_type: str) -> str:
    """The board that a type's name states, such as `8x-H100_NVL`."""
    words = set(re.split(r"[^A-Z0-9]+", instance_type.upper()))
    return "PCIe" if "PCIE" in words else "NVL" if "NVL" in words else ""


def memory_doubt(canonical: str, memories_gb: Collection[Fraction], gpu_count: int) -> str | None:
    """What a table says of the memory where no reading of it fits the card."""
    size = canonical.rpartition("-")[2].removesuffix("GB")
    if not memories_gb or not size.isdigit() or _fitting(memories_gb, (int(size),), gpu_count):
        return None
    return " or ".join(f"{float(value):.4g} GB" for value in sorted(set(memories_gb)))


def is_known_gpu(canonical: str) -> bool:
    """Whether the model of a canonical name is one of those whose memory is known here."""
    return canonical.partition("-")[0] in _KNOWN_SIZES


def _card_size(
    name: str,
    model: str,
    board: str,
    stated: list[int],
    memories_gb: Collection[Fraction],
    gpu_count: int | None,
) -> int | None:
    known = (_NVL_SIZES[model],) if board == "NVL" and model in _NVL_SIZES else _KNOWN_SIZES.get(model, ())
    if stated:
        # catalogues glue the memory of all cards to the card's name: A100-80GB-640GB is eight of 80 GB
        glued = len(stated) > 1 and (gpu_count is None or stated[1] != stated[0] * gpu_count)
        if glued or len(stated) > 2:
            raise UnclearGpuError(f"GPU memory contradicts itself: `{name.strip()}`")
        # `GH200 480GB`, as NVML calls it, counts the memory of its CPU
        size = 96 if (model, stated[0]) == ("GH200", 480) else None
        size = size or (_nearest(stated[0], known) if known else stated[0])
        if size is None:
            raise UnclearGpuError(f"no {model} has {stated[0]} GB: `{name.strip()}`")
        return size
    if len(known) <= 1:
        return known[0] if known else None
    if memories_gb:
        fitting = _fitting(memories_gb, known, gpu_count)
        if len(fitting) == 1:
            return fitting.pop()
    candidates = " or ".join(f"{model}-{size}GB" for size in known)
    raise UnclearGpuError(f"ambiguous GPU name: `{name.strip()}` may be {candidates}")


def _fitting(memories_gb: Collection[Fraction], known: tuple[int, ...], gpu_count: int | None) -> set[int]:
    """The sizes that some reading fits, for one card or for all of them."""
    per_card = {value / cards for value in memories_gb for cards in {1, gpu_count or 1}}
    return {size for value in per_card if (size := _nearest(value, known)) is not None}


def _nearest(stated: Fraction | int, known: tuple[int, ...]) -> int | None:
    """The size within a tenth of what is stated: providers write 180, 183 or 192 for one card."""
    exact = Fraction(stated)
    best = min(known, key=lambda size: abs(exact - size))
    return best if abs(exact - best) * 10 <= best else None
