"""One odd image, what it must become, and how the references differ from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fs.conformance.raw_tar import RawTar

REFUSED = "refused"
Differing = Mapping[str, str]
"""Path to the fields that differ, as `comparison.differences` names them."""


@dataclass(frozen=True)
class Case:
    """`refused` is a pattern of our message; `umoci` and `containerd` are REFUSED or what differs in them."""

    sentence: str
    layers: tuple[bytes, ...]
    refused: str = ""
    names: str = ""
    umoci: Differing | str = field(default_factory=dict)
    containerd: Differing | str = field(default_factory=dict)
    why: str = ""


def case(
    sentence: str,
    *layers: RawTar | bytes,
    refused: str = "",
    names: str = "",
    umoci: Differing | str | None = None,
    containerd: Differing | str | None = None,
    why: str = "",
) -> Case:
    """A case; `names` lists the whole tree, with `=` before a file's content where that matters."""
    contents = tuple(layer if isinstance(layer, bytes) else layer.content() for layer in layers)
    return Case(sentence, contents, refused, names, umoci or {}, containerd or {}, why)
