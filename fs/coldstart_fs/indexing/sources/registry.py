"""An image in a registry: documents first, each verified; then its layers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.sources import Keep, Progress
from coldstart_fs.indexing.sources.blob import digest_and_size, parse, verified
from coldstart_fs.indexing.sources.image import Image, kept_elsewhere, layer_descriptors
from coldstart_fs.indexing.sources.manifest import Chosen, check_manifest, choose_manifest, media_type
from coldstart_fs.indexing.sources.platforms import Platform
from coldstart_fs.indexing.sources.pull import Pull
from coldstart_fs.indexing.sources.reference import RegistryReference, parse_registry_reference
from coldstart_fs.indexing.sources.skopeo import Skopeo

_OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """One image of a registry, `docker://REF`."""

    def __init__(self, rest: str, platform: Platform | None, program: str | None = None) -> None:
        self.notes: list[str] = []
        self.configuration: dict[str, Any] = {}
        self._reference = parse_registry_reference(rest)
        self._platform = platform
        self._skopeo = Skopeo.find(program)

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress, scratch: Path) -> Entry:
        del chunk_bytes
        progress(f"asking {self._reference.registry} for {self._reference}")
        documents = _Documents(self._skopeo, self._reference)
        chosen = documents.choose(self._platform)
        shown = f"{self._reference}"
        layers = layer_descriptors(chosen.manifest, shown)
        image = Image(documents.configuration(chosen.descriptor, chosen.manifest), len(layers), shown)
        image.require(self._platform)
        for layer in layers:
            if layer.get("urls"):  # skopeo copies no layers that lie elsewhere
                raise kept_elsewhere(layer)
        self.configuration, self.notes = image.configuration, image.notes
        pull = Pull(self._skopeo, self._reference.pinned(chosen.descriptor["digest"]), layers, scratch)
        with pull.running():
            total_bytes = sum(layer["size"] for layer in layers)
            return image.read(pull.blobs(progress), total_bytes, keep, progress)


class _Documents:
    """Indexes, manifests and configurations by digest; only the first one may be found by a tag."""

    def __init__(self, skopeo: Skopeo, reference: RegistryReference) -> None:
        self._skopeo = skopeo
        self._reference = reference

    def choose(self, wanted: Platform | None) -> Chosen:
        content = self._skopeo.manifest(self._reference)
        digest = self._reference.digest or f"sha256:{hashlib.sha256(content).hexdigest()}"
        document = self._parse(content, digest, len(content), "manifest")
        kind = media_type(document) or (_OCI_INDEX if "manifests" in document else _OCI_MANIFEST)
        descriptor = {"mediaType": kind, "digest": digest, "size": len(content)}
        if "manifests" in document:
            return choose_manifest(
                document, tag=None, wanted=wanted, documents=self, shown=str(self._reference)
            )
        return Chosen(descriptor, check_manifest(document, kind, str(self._reference)))

    def fetch(self, descriptor: dict[str, Any], what: str) -> dict[str, Any]:
        digest, size_bytes = digest_and_size(descriptor, what, str(self._reference))
        content = self._skopeo.manifest(self._reference.pinned(digest))
        return self._parse(content, digest, size_bytes, what)

    def configuration(self, descriptor: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
        what = "image configuration"
        digest, size_bytes = digest_and_size(manifest.get("config"), what, str(self._reference))
        content = self._skopeo.configuration(self._reference.pinned(descriptor["digest"]))
        return self._parse(content, digest, size_bytes, what)

    def _parse(self, content: bytes, digest: str, size_bytes: int, what: str) -> dict[str, Any]:
        shown = f"{self._reference}: {what} {digest}"
        if len(content) != size_bytes:
            raise DataError(f"blob has {len(content)} bytes instead of {size_bytes}: {shown}")
        return parse(b"".join(verified(iter([content]), digest, f"blob is damaged: {shown}")), shown)
