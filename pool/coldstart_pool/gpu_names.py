"""One name for each GPU model and memory size, whatever a provider calls it: `H100-80GB`."""

from __future__ import annotations

import re
from fractions import Fraction

# memory sizes of one card in GB; a bare name with several sizes is ambiguous and refused
_KNOWN_SIZES: dict[str, tuple[int, ...]] = {
    "A2": (16,),
    "A10": (24,),
    "A10G": (24,),
    "A16": (16,),
    "A30": (24,),
    "A40": (48,),
    "A100": (40, 80),
    "A4000": (16,),
    "A5000": (24,),
    "A6000": (48,),
    "A800": (40, 80),
    "B200": (192,),
    "B300": (288,),
    "GB200": (192,),
    "GB300": (288,),
    "GH200": (96, 144),
    "H20": (96, 141),
    "H100": (80,),
    "H200": (141,),
    "H800": (80,),
    "K80": (12,),
    "L4": (24,),
    "L40": (48,),
    "L40S": (48,),
    "M60": (8,),
    "MI210": (64,),
    "MI250": (128,),
    "MI300X": (192,),
    "MI325X": (256,),
    "P4": (8,),
    "P40": (24,),
    "P100": (12, 16),
    "RTX3080": (10, 12),
    "RTX3080TI": (12,),
    "RTX3090": (24,),
    "RTX4000": (8,),
    "RTX4090": (24,),
    "RTX5000": (16,),
    "RTX5090": (32,),
    "RTX6000": (24,),
    "RTX6000ADA": (48,),
    "RTXPRO6000": (96,),
    "T4": (16,),
    "V100": (16, 32),
}
# models sold on boards of quite different speed: the slower board is a model of its own
_BOARDS = {"A100", "H100", "H200", "H800", "A800", "V100"}
_ALIASES = {
    "3080": "RTX3080",
    "3080TI": "RTX3080TI",
    "3090": "RTX3090",
    "4090": "RTX4090",
    "5090": "RTX5090",
    "RTXA4000": "A4000",
    "RTXA5000": "A5000",
    "RTXA6000": "A6000",
    "6000ADA": "RTX6000ADA",
    "RTX6000ADAGENERATION": "RTX6000ADA",
}
_NOISE = {"NVIDIA", "AMD", "TESLA", "GEFORCE", "QUADRO", "INSTINCT", "GPU", "SXM", "HGX", "DGX", "GRACE"}
_SXM = re.compile(r"SXM\d?")
_MEMORY = re.compile(r"(?<![A-Z0-9.])(\d{1,5})\s*G(?:I?B)?(?![A-Z0-9])|\(\s*(\d{1,5})\s*\)")
_NVL_SIZES = {"H100": 94, "H200": 141}


class UnclearGpuError(ValueError):
    """The name fits several cards, or none; the message says which."""


def canonical_gpu(name: str, *, memory_gb: Fraction | None = None, gpu_count: int | None = None) -> str:
    """The one name of a GPU; `memory_gb` is a memory column's value, for one card or for all of them."""
    text = name.upper().replace("_", " ").strip()
    sizes = [int(first or second) for first, second in _MEMORY.findall(text)]
    rest = _MEMORY.sub(" ", text)
    words = [word for word in re.findall(r"[A-Z0-9]+", rest) if not _SXM.fullmatch(word)]
    board = "PCIe" if "PCIE" in words else "NVL" if "NVL" in words else ""
    model = "".join(word for word in words if word not in _NOISE | {"PCIE", "NVL"})
    model = _ALIASES.get(model, model)
    if not model:
        raise UnclearGpuError(f"GPU name says no model: `{name.strip()}`")
    board = board if model in _BOARDS else ""
    size = _card_size(name, model, board, sizes, memory_gb, gpu_count)
    return "-".join(part for part in (model, board, f"{size}GB" if size else "") if part)


def _card_size(
    name: str,
    model: str,
    board: str,
    stated: list[int],
    memory_gb: Fraction | None,
    gpu_count: int | None,
) -> int | None:
    known = (_NVL_SIZES[model],) if board == "NVL" and model in _NVL_SIZES else _KNOWN_SIZES.get(model, ())
    if stated:
        # catalogues glue the memory of all cards to the card's name: A100-80GB-640GB is eight of 80 GB
        glued = len(stated) > 1 and (gpu_count is None or stated[1] != stated[0] * gpu_count)
        if glued or len(stated) > 2:
            raise UnclearGpuError(f"GPU memory contradicts itself: `{name.strip()}`")
        size = _nearest(stated[0], known) if known else stated[0]
        if size is None:
            raise UnclearGpuError(f"no {model} has {stated[0]} GB: `{name.strip()}`")
        return size
    if len(known) <= 1:
        return known[0] if known else None
    if memory_gb:
        per_card = {memory_gb, memory_gb / gpu_count if gpu_count else memory_gb}
        fitting = {size for value in per_card if (size := _nearest(value, known)) is not None}
        if len(fitting) == 1:
            return fitting.pop()
    candidates = " or ".join(f"{model}-{size}GB" for size in known)
    raise UnclearGpuError(f"ambiguous GPU name: `{name.strip()}` may be {candidates}")


def _nearest(stated: Fraction | int, known: tuple[int, ...]) -> int | None:
    """The size within a tenth of what is stated: providers write 180, 183 or 192 for one card."""
    exact = Fraction(stated)
    best = min(known, key=lambda size: abs(exact - size))
    return best if abs(exact - best) * 10 <= best else None
