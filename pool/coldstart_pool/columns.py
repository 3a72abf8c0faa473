"""Columns are found by what their heading says, never by position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from coldstart_cli.errors import DataError, near_matches_hint

Synonyms = Mapping[str, frozenset[str]]
_UNIT_WORDS = {"usd", "eur", "gbp", "h", "hr", "hour", "hourly", "per", "gib", "gb"}


def synonyms(**names: str) -> Synonyms:
    """Field -> the normalised headings that mean it, from space-separated words."""
    return {field: frozenset(words.split()) for field, words in names.items()}


PLACE_COLUMNS = synonyms(
    provider="provider cloud vendor cloudprovider",
    region="region location regionid datacenter regionname",
    zone="zone availabilityzone az",
    instance_type="instancetype instancename name instance machinetype vmtype sku shape",
    gpu="gpu gpuname gputype gpumodel gpuclass class accelerator acceleratorname acceleratortype",
    gpu_count="gpucount gpus acceleratorcount numgpus ngpus gpusinstance gpusperinstance",
    market="market purchaseoption pricingmodel capacitytype",
)


def normalised(heading: str) -> str:
    """`On-demand ($/h)` and `on_demand_usd_h` are both `ondemand`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^)]*\)", " ", _split_camel(heading)).lower())
    kept = list(words)
    while len(kept) > 1 and kept[-1] in _UNIT_WORDS:
        kept.pop()
    return "".join(kept if kept and kept[-1] not in _UNIT_WORDS else words)


def map_columns(path: str, headings: Sequence[str], known: Synonyms) -> dict[str, int]:
    """Field -> column number; a field that two columns claim is refused."""
    found: dict[str, int] = {}
    for number, heading in enumerate(headings):
        for field, names in known.items():
            if normalised(heading) not in names:
                continue
            if field in found:
                raise DataError(
                    f"{path}: two columns could be `{field}`: `{headings[found[field]]}` and `{heading}`",
                    hint="rename or remove one of them",
                )
            found[field] = number
    return found


def require_columns(path: str, headings: Sequence[str], present: Iterable[str], *needed: str) -> None:
    """Refuse a file without a needed field; `a|b` is satisfied by either."""
    have = set(present)
    for alternatives in needed:
        fields = alternatives.split("|")
        if not have & set(fields):
            wanted = " or ".join(f"`{field}`" for field in fields)
            raise DataError(
                f"{path}: no column for {wanted}; the columns are: {', '.join(headings)}",
                hint=near_matches_hint(fields[0], headings, otherwise=f"add a column `{fields[0]}`"),
            )


def _split_camel(heading: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", heading)
