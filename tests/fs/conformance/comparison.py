"""One image through this tool and through the references, and what differs between the trees."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.chunk import DEFAULT_CHUNK_BYTES
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from fs.conformance.references import Containerd, Umoci
from image_builder import Facts, add_image, begin_layout, folder_facts, image_facts, whole, write_index

Tree = dict[bytes, Facts]


@dataclass(frozen=True)
class Outcome:
    """A tree, or the refusal."""

    tree: Tree | None
    refusal: str = ""


@dataclass(frozen=True)
class Outcomes:
    coldstart: Outcome
    umoci: Outcome
    containerd: Outcome
    started_ns: int


def unpack_all(
    folder: Path, images: Mapping[str, Sequence[bytes]], umoci: Umoci, containerd: Containerd
) -> dict[str, Outcomes]:
    """Every image by its tag: the layers, lowest first, through all three."""
    layout = folder / "layout"
    begin_layout(layout)
    descriptors = []
    for tag, layers in images.items():
        descriptor, _ = add_image(layout, layers, compression="none")
        descriptor["annotations"] = {"org.opencontainers.image.ref.name": tag}
        descriptors.append(descriptor)
    write_index(layout, descriptors)
    store = open_store(str(folder / "store"), create=True)
    return unpack_layout(layout, list(images), store, umoci, containerd, chunk_bytes=4096)


def unpack_layout(
    layout: Path,
    tags: Sequence[str],
    store: Store,
    umoci: Umoci,
    containerd: Containerd,
    shorten: Callable[[bytes], bytes] = whole,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> dict[str, Outcomes]:
    """The images of a layout through all three; `shorten` says what is kept of contents."""
    started_ns = time.time_ns()
    containerd.pull(layout)

    def reference(program: Umoci | Containerd, tag: str) -> Outcome:
        unpacked = program.unpack(layout, tag)
        tree = None if unpacked.root is None else folder_facts(unpacked.root, shorten)
        return Outcome(tree, unpacked.refusal)

    with ThreadPoolExecutor(2) as pool:
        by_umoci = pool.map(lambda tag: reference(umoci, tag), tags)
        by_containerd = pool.map(lambda tag: reference(containerd, tag), tags)
        ours = [_ours(store, layout, tag, shorten, chunk_bytes) for tag in tags]
        return {
            tag: Outcomes(*three, started_ns)
            for tag, *three in zip(tags, ours, by_umoci, by_containerd, strict=True)
        }


def _ours(
    store: Store, layout: Path, tag: str, shorten: Callable[[bytes], bytes], chunk_bytes: int
) -> Outcome:
    try:
        index_image(f"oci:{layout}:{tag}", store=store, name=tag, chunk_bytes=chunk_bytes)
    except ColdstartError as error:
        return Outcome(None, error.message)
    return Outcome(image_facts(store, tag, shorten))


def differences(ours: Tree, theirs: Tree, started_ns: int) -> dict[str, str]:
    """Path to the names of what differs there; `extra` is theirs alone, `missing` ours alone.

    The time of a folder that lies in this run is nothing that an image says, and the link count of a
    folder follows from its children: neither is a difference of its own.
    """
    found: dict[str, str] = {}
    for path in sorted(ours.keys() | theirs.keys()):
        if path not in theirs:
            found[shown(path)] = "missing"
        elif path not in ours:
            found[shown(path)] = "extra"
        elif differing := _fields(ours[path], theirs[path], started_ns):
            found[shown(path)] = " ".join(differing)
    return found


def _fields(ours: Facts, theirs: Facts, started_ns: int) -> list[str]:
    names = [
        field.name for field in fields(Facts) if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    if stat.S_ISDIR(ours.mode) and stat.S_ISDIR(theirs.mode):
        unsaid = {"links", "mtime_ns"} if theirs.mtime_ns >= started_ns else {"links"}
        return [name for name in names if name not in unsaid]
    return names


def shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace") or "/"
