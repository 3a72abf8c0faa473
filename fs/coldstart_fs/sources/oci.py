"""An image in an OCI layout: index, manifest, configuration and layers, each verified before it is used."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint
from coldstart_fs.entry import Entry
from coldstart_fs.sources import Keep, Progress
from coldstart_fs.sources.layer import LayeredTree
from coldstart_fs.sources.stream import Ahead, Blob, ByteStream, decompressed
from coldstart_fs.sources.tar import TarReader

_LARGEST_DOCUMENT_BYTES = 8 << 20
_DEEPEST_INDEX = 4
_TAG = "org.opencontainers.image.ref.name"
_INDEX_TYPES = frozenset(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_MANIFEST_TYPES = frozenset(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
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
# what `uname -m` says, as the registry writes it
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}
_TEXTS = {"User": "user", "WorkingDir": "working_directory"}
_LISTS = {"Cmd": "command", "Entrypoint": "entrypoint", "Env": "environment"}


class OciLayout:
    """One image of a layout folder."""

    def __init__(self, folder: Path, tag: str | None) -> None:
        self.notes: list[str] = []
        self.configuration: dict[str, Any] = {}
        self._folder = folder
        self._tag = tag

    @classmethod
    @contextmanager
    def open(cls, rest: str) -> Iterator[OciLayout]:
        """The layout at DIR or DIR:TAG; a folder whose name holds a colon wins over a tag."""
        folder, _, tag = rest.rpartition(":")
        if os.path.isdir(rest) or not folder:
            yield cls(Path(rest), None)
        else:
            yield cls(Path(folder), tag)

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress) -> Entry:
        del chunk_bytes
        self._check_layout()
        manifest = self._manifest(self._document(self._folder / "index.json"), self._tag, 0)
        self.configuration = self._read_configuration(manifest)
        layers = [self._layer(descriptor) for descriptor in _list(manifest, "layers", "manifest")]
        tree = LayeredTree()
        for number, layer in enumerate(layers, 1):
            progress(f"reading layer {number} of {len(layers)} ({layer.size_bytes / 1e6:.1f} MB)")
            with _reading(layer) as reader:
                tree.apply(reader, keep, f"layer {layer.digest}")
        self.notes += [f"left out: {count} {what}" for what, count in sorted(tree.left_out.items())]
        return tree.root

    def _check_layout(self) -> None:
        if not self._folder.is_dir():
            raise NotFoundError(f"folder does not exist: {self._folder}")
        marker = self._folder / "oci-layout"
        if not marker.exists():
            raise DataError(
                f"not an OCI layout, `oci-layout` is missing: {self._folder}",
                hint=f"for a root file system write dir:{self._folder}",
            )
        version = self._document(marker).get("imageLayoutVersion")
        if not isinstance(version, str) or version.split(".")[0] != "1":
            raise DataError(f"OCI layout has version {version}, 1 is supported: {self._folder}")

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            if path.stat().st_size > _LARGEST_DOCUMENT_BYTES:
                raise DataError(f"document is larger than {_LARGEST_DOCUMENT_BYTES} bytes: {path}")
            return _parse(path.read_bytes(), path)
        except FileNotFoundError as error:
            raise DataError(f"OCI layout is damaged, file is missing: {path}") from error

    def _blob(self, descriptor: Any, what: str) -> Blob:
        digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
        size_bytes = descriptor.get("size") if isinstance(descriptor, dict) else None
        if not isinstance(digest, str) or not isinstance(size_bytes, int):
            raise DataError(f"{what} has no digest and size in the image: {self._folder}")
        algorithm, _, hexadecimal = digest.partition(":")
        return Blob(self._folder / "blobs" / algorithm / hexadecimal, digest, size_bytes)

    def _blob_document(self, descriptor: Any, what: str) -> dict[str, Any]:
        blob = self._blob(descriptor, what)
        return _parse(blob.read(_LARGEST_DOCUMENT_BYTES), blob.path)

    def _manifest(self, index: dict[str, Any], tag: str | None, depth: int) -> dict[str, Any]:
        if depth > _DEEPEST_INDEX:
            raise DataError(f"image indexes are nested too deeply: {self._folder}")
        descriptor = self._choose(_list(index, "manifests", "image index"), tag)
        kind = descriptor.get("mediaType")
        if kind in _INDEX_TYPES:
            return self._manifest(self._blob_document(descriptor, "image index"), None, depth + 1)
        if kind not in _MANIFEST_TYPES:
            raise DataError(f"not an image manifest but {kind}: {descriptor.get('digest')}")
        return self._blob_document(descriptor, "manifest")

    def _choose(self, descriptors: list[Any], tag: str | None) -> dict[str, Any]:
        candidates = [item for item in descriptors if isinstance(item, dict)]
        tags = sorted({name for item in candidates if (name := _annotation(item)) is not None})
        if tag is not None:
            candidates = [item for item in candidates if _annotation(item) == tag]
            if not candidates:
                hint = near_matches_hint(tag, tags, otherwise=f"tags: {', '.join(tags)}" if tags else None)
                raise NotFoundError(f"tag is not in the OCI layout: {tag}: {self._folder}", hint=hint)
        if not candidates:
            raise DataError(f"OCI layout holds no image: {self._folder}")
        if len(candidates) == 1:
            return candidates[0]
        fitting = [item for item in candidates if _is_for_this_host(item)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and any("platform" in item for item in candidates):
            platforms = ", ".join(sorted({_platform(item) for item in candidates}))
            raise DataError(f"image is not made for linux/{_architecture()}, only for: {platforms}")
        raise DataError(
            f"OCI layout holds several images, and nothing says which: {self._folder}",
            hint=f"write oci:{self._folder}:TAG with one of {', '.join(tags)}" if tags else None,
        )

    def _read_configuration(self, manifest: dict[str, Any]) -> dict[str, Any]:
        descriptor = manifest.get("config")
        document = self._blob_document(descriptor, "image configuration")
        found: dict[str, Any] = {}
        for key in ("architecture", "os"):
            if isinstance(document.get(key), str) and document[key]:
                found[key] = document[key]
        runtime = document.get("config") or {}
        if not isinstance(runtime, dict):
            raise DataError(f"image configuration is damaged: {self._folder}: `config` is not an object")
        for key, name in (_TEXTS | _LISTS).items():
            if value := runtime.get(key):
                good = _is_texts(value) if key in _LISTS else isinstance(value, str)
                if not good:
                    raise DataError(f"image configuration is damaged: {self._folder}: `{key}`")
                found[name] = value
        if found.get("architecture") not in {None, _architecture()}:
            self.notes.append(f"image is made for {found['architecture']}, this host is {_architecture()}")
        return found

    def _layer(self, descriptor: Any) -> Blob:
        blob = self._blob(descriptor, "layer")
        kind = descriptor.get("mediaType")
        if kind not in _LAYER_TYPES:
            raise DataError(f"layer has unknown media type {kind}: {blob.digest}")
        if not blob.path.exists() and descriptor.get("urls"):
            raise DataError(f"layer is not in the layout, only elsewhere: {blob.digest}")
        return blob


@contextmanager
def _reading(layer: Blob) -> Iterator[TarReader]:
    ahead = Ahead(decompressed(layer.blocks(), str(layer.path)))
    try:
        yield TarReader(ByteStream(ahead), str(layer.path))
    except DataError:
        for _ in layer.blocks():  # when the blob is not what was promised, that is the better message
            pass
        raise
    finally:
        ahead.close()


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise DataError(f"JSON is nested too deeply: {path}") from error
    except ValueError as error:
        raise DataError(f"not JSON: {path}") from error
    if not isinstance(document, dict):
        raise DataError(f"not a JSON object: {path}")
    return document


def _list(document: dict[str, Any], key: str, what: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise DataError(f"{what} has no list of {key}")
    return value


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _annotation(descriptor: dict[str, Any]) -> str | None:
    annotations = descriptor.get("annotations")
    value = annotations.get(_TAG) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _platform(descriptor: dict[str, Any]) -> str:
    found = descriptor.get("platform")
    if not isinstance(found, dict):
        return "unknown"
    return f"{found.get('os', 'unknown')}/{found.get('architecture', 'unknown')}"


def _is_for_this_host(descriptor: dict[str, Any]) -> bool:
    return _platform(descriptor) == f"linux/{_architecture()}"
