"""One container image: its configuration and its layers, each verified while it is read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

from coldstart_cli.errors import DataError
from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.progress import LayerRead
from coldstart_fs.indexing.sources import Keep, Progress
from coldstart_fs.indexing.sources.blob import (
    Blob,
    Files,
    blob_of,
    check_digest,
    digest_and_size,
    missing_blob,
    verified,
)
from coldstart_fs.indexing.sources.compression import decompressed
from coldstart_fs.indexing.sources.layer import LayeredTree
from coldstart_fs.indexing.sources.manifest import media_type
from coldstart_fs.indexing.sources.platforms import UNKNOWN, Platform, described_platform, host_platform, rank
from coldstart_fs.indexing.sources.stream import Ahead, ByteStream
from coldstart_fs.indexing.sources.tar import TarReader
from coldstart_fs.looking.configuration import flaw_of_text, flaw_of_texts

_LAYER_TYPES = frozenset(
    base + compression
    for base, compressions in {
        "application/vnd.oci.image.layer.v1.tar": ("", "+gzip", "+zstd"),
        "application/vnd.oci.image.layer.nondistributable.v1.tar": ("", "+gzip", "+zstd"),
        "application/vnd.docker.image.rootfs.diff.tar": ("", ".gzip", ".zstd"),
        "application/vnd.docker.image.rootfs.foreign.diff.tar": ("", ".gzip"),
    }.items()
    for compression in compressions
)
_TEXTS = {"User": "user", "WorkingDir": "working_directory"}
_LISTS = {"Cmd": "command", "Entrypoint": "entrypoint", "Env": "environment"}


@dataclass(frozen=True)
class LayerBlob:
    """A layer as it is stored, and the digest of its tar that the configuration promises."""

    blob: Blob
    diff_id: str

    @property
    def shown(self) -> str:
        return f"layer {self.blob.digest or self.diff_id}"

    @property
    def place_shown(self) -> str:
        """With where it lies, which often says the digest once more."""
        digest = (self.blob.digest or self.diff_id).partition(":")[2]
        place = self.blob.shown
        return f"layer {place}" if digest in place else f"{self.shown}: {place}"


class Image:
    """The runtime configuration at once, the tree when the layers are read."""

    def __init__(self, configuration: dict[str, Any], layer_count: int, shown: str) -> None:
        self.notes: list[str] = []
        self.platform = described_platform(configuration)
        self.configuration = _runtime(configuration, shown)
        self._shown = shown
        self._diff_ids = _diff_ids(configuration, shown)
        if len(self._diff_ids) != layer_count:
            raise DataError(
                f"image has {layer_count} layers, its configuration digests of {len(self._diff_ids)}: {shown}"
            )
        self._compare_history(configuration.get("history"))

    def require(self, wanted: Platform | None) -> None:
        """Refuse another platform than the wanted one; without a wish say that it is not this host's."""
        if self.platform == UNKNOWN or rank(wanted or host_platform(), self.platform) is not None:
            return
        if wanted is not None:
            raise DataError(f"image is made for {self.platform}, not for {wanted}: {self._shown}")
        self.notes.append(f"image is made for {self.platform}, this host is {host_platform()}")

    def read(self, blobs: Iterable[Blob], total_bytes: int, keep: Keep, progress: Progress) -> Entry:
        """The tree, lowest layer first; the blobs may come one after the other."""
        tree = LayeredTree()
        progress.expect(total_bytes)
        for number, (blob, diff_id) in enumerate(zip(blobs, self._diff_ids, strict=True), 1):
            layer = LayerBlob(blob, diff_id)
            progress(f"reading layer {number} of {len(self._diff_ids)}")
            started = time.monotonic()
            with _reading(layer, progress) as reader:
                tree.apply(reader, keep, layer.shown)
            taken = time.monotonic() - started
            progress.layers.append(LayerRead(blob.digest or diff_id, blob.size_bytes, taken))
        self.notes += [f"left out: {count} {what}" for what, count in sorted(tree.left_out.items())]
        return tree.root

    def _compare_history(self, history: object) -> None:
        if not isinstance(history, list) or not history:
            return
        made = sum(1 for step in history if isinstance(step, dict) and not step.get("empty_layer"))
        if made != len(self._diff_ids):
            self.notes.append(f"image has {len(self._diff_ids)} layers, its history tells of {made}")


def layer_descriptors(manifest: dict[str, Any], shown: str) -> list[dict[str, Any]]:
    """The descriptors of a manifest's layers; what cannot be read as a layer is refused by name."""
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise DataError(f"manifest has no list of layers: {shown}")
    for descriptor in layers:
        digest, _ = digest_and_size(descriptor, "layer", shown)
        kind = media_type(descriptor)
        if kind is not None and kind.endswith("+encrypted"):
            raise DataError(
                f"layer is encrypted: {digest}", hint="skopeo copy --decryption-key KEY SOURCE oci:DIR:TAG"
            )
        if kind is None:
            raise DataError(f"layer has no media type: {digest}")
        if kind not in _LAYER_TYPES:
            raise DataError(f"layer has unknown media type {kind}: {digest}")
    return layers


def layer_blobs(files: Files, descriptors: list[dict[str, Any]]) -> list[Blob]:
    """Where the layers lie; a missing one is named."""
    return [_layer(files, descriptor) for descriptor in descriptors]


def _layer(files: Files, descriptor: dict[str, Any]) -> Blob:
    blob = blob_of(files, descriptor, "layer")
    if blob is not None:
        return blob
    if descriptor.get("urls"):
        raise kept_elsewhere(descriptor)
    raise missing_blob(files, descriptor, "layer")


def kept_elsewhere(descriptor: dict[str, Any]) -> DataError:
    """A foreign layer: its licence keeps it out of images and registries."""
    urls = descriptor["urls"]
    where = urls[0] if isinstance(urls, list) else urls
    return DataError(f"layer is not in the image, only elsewhere: {descriptor['digest']}: {where}")


@contextmanager
def _reading(layer: LayerBlob, progress: Progress) -> Iterator[TarReader]:
    # inflating and hashing the tar each get a thread, this one parses: a fifth less time on two processors
    stages = [Ahead(_inflated(layer, progress.counted(layer.blob.blocks())))]
    if layer.diff_id != layer.blob.digest:
        stages.append(Ahead(_checked(layer, stages[0])))
    try:
        yield TarReader(ByteStream(stages[-1]), layer.place_shown)
    except DataError:
        # when the blob is not what was promised, that is the better message
        blocks = layer.blob.blocks()
        for _ in blocks if layer.blob.digest else _checked(layer, _inflated(layer, blocks)):
            pass
        raise
    finally:
        for stage in reversed(stages):  # the last first: it may be waiting for the one before
            stage.close()


def _inflated(layer: LayerBlob, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if layer.diff_id == layer.blob.digest:  # a tar as it is, verified already
        return blocks
    return decompressed(blocks, layer.blob.shown)


def _checked(layer: LayerBlob, plain: Iterator[bytes]) -> Iterator[bytes]:
    complaint = f"layer is not the one of the configuration, which has {layer.diff_id}: {layer.blob.shown}"
    return verified(plain, layer.diff_id, complaint)


def _diff_ids(configuration: dict[str, Any], shown: str) -> list[str]:
    rootfs = configuration.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not _is_texts(found):
        raise DataError(f"image configuration is damaged: {shown}: `rootfs` has no digests of layers")
    return [check_digest(digest) for digest in found]


def _runtime(document: dict[str, Any], shown: str) -> dict[str, Any]:
    """The keys of the index format that the configuration has; what readers would refuse is refused."""
    found: dict[str, Any] = {}
    runtime = document.get("config") or {}
    if not isinstance(runtime, dict):
        raise DataError(f"image configuration is damaged: {shown}: `config` is not an object")
    given = [(document, key, key) for key in ("architecture", "os", "variant")]
    given += [(runtime, key, name) for key, name in (_TEXTS | _LISTS).items()]
    for where, key, name in given:
        # Go writes `null` for an empty list
        if (value := where.get(key)) in (None, "", []):
            continue
        flaw = flaw_of_texts(value) if key in _LISTS else flaw_of_text(value)
        if flaw is not None:
            raise DataError(f"image configuration is damaged: {shown}: `{key}` {flaw}")
        if key != "variant":
            found[name] = value
    return found


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
