"""One odd image: what is odd about it, and its layers."""

from __future__ import annotations

from dataclasses import dataclass

from fs.conformance.raw_tar import RawTar


@dataclass(frozen=True)
class Case:
    sentence: str
    layers: tuple[bytes, ...]


def case(sentence: str, *layers: RawTar | bytes) -> Case:
    """A case from its layers, lowest first."""
    return Case(sentence, tuple(item if isinstance(item, bytes) else item.content() for item in layers))
