"""Archives of images, made by hand for tests, with everything that may be wrong with them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image_builder import Layer


@dataclass(frozen=True)
class Member:
    """One member of an archive: a file, or a link of `kind` to `target`."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""


def write_archive(path: Path, members: Iterable[Member]) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.size = member.kind, member.target, len(member.content)
            archive.addfile(info, io.BytesIO(member.content))
    return path


def folder_members(folder: Path, *, prefix: str = "") -> list[Member]:
    """All files of a folder, as `tar -C FOLDER -cf ARCHIVE .` has them."""
    return [
        Member(prefix + str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def image_configuration(layers: Iterable[bytes], **more: Any) -> bytes:
    digests = ["sha256:" + hashlib.sha256(content).hexdigest() for content in layers]
    document = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": digests}}
    return json.dumps(document | more).encode()


def saved_image(
    layers: Iterable[Layer | bytes], *names: str, **more: Any
) -> tuple[dict[str, Any], list[Member]]:
    """An image as `docker save` writes it: its part of `manifest.json`, and its members."""
    contents = [layer if isinstance(layer, bytes) else layer.content() for layer in layers]
    configuration = image_configuration(contents, **more)
    digest = hashlib.sha256(configuration).hexdigest()
    files = [f"{hashlib.sha256(content).hexdigest()}/layer.tar" for content in contents]
    item = {"Config": f"{digest}.json", "RepoTags": list(names), "Layers": files}
    members = [Member(name, content) for name, content in zip(files, contents, strict=True)]
    return item, [Member(f"{digest}.json", configuration), *members]


def manifest(*items: Any) -> Member:
    return Member("manifest.json", json.dumps(items).encode())
