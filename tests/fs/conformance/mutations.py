"""Damage to images, the same for the same seed: in tars, in compressed streams, in the layout's documents."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from fs.conformance.cases import GROUPS
from fs.conformance.raw_tar import BLOCK, RawTar, base_256, with_checksum
from image_builder import add_image, begin_layout, blob_path, write_blob, write_index

BASES = [case for cases in GROUPS.values() for case in cases if len(case.layers) < 10]
# offset and length of what can be changed in a header
_FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "uid": (108, 8),
    "gid": (116, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "kind": (156, 1),
    "link": (157, 100),
    "magic": (257, 8),
    "major": (329, 8),
    "minor": (337, 8),
    "prefix": (345, 155),
    "map": (386, 96),
    "map goes on": (482, 1),
    "real size": (483, 12),
}
_NUMBERS = (0, 1, 7, 255, 511, 512, 513, 4096, 1 << 20, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1)
_NAMES = (
    b"",
    b".",
    b"..",
    b"/",
    b"./",
    b"a/../..",
    b".wh.",
    b".wh..wh..opq",
    b".wh.d",
    b"d/",
    b"d",
    b"l/x",
    b"\xff",
)


def mutated_tar(rng: random.Random, content: bytes) -> bytes:
    """A tar with one to three changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_TAR_MUTATIONS)(rng, data)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 8) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _truncate(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _blocks(data: bytearray) -> list[bytes]:
    return [bytes(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]


def _shuffle_blocks(rng: random.Random, data: bytearray) -> bytearray:
    blocks = _blocks(data)
    if blocks:
        one, two = rng.randrange(len(blocks)), rng.randrange(len(blocks))
        match rng.randrange(5):
            case 0:
                del blocks[one]
            case 1:
                blocks.insert(two, blocks[one])
            case 2:
                blocks[one], blocks[two] = blocks[two], blocks[one]
            case 3:
                blocks.insert(one, bytes(BLOCK))
            case _:
                blocks[one : one + 1] = [blocks[one]] * rng.randint(2, 60)
    return bytearray(b"".join(blocks))


def _splice(rng: random.Random, data: bytearray) -> bytearray:
    """Blocks of another archive in between."""
    other = _blocks(bytearray(rng.choice(rng.choice(BASES).layers)))
    blocks = _blocks(data)
    if other:
        begin = rng.randrange(len(other))
        blocks[(at := rng.randint(0, len(blocks))) : at] = other[begin : begin + rng.randint(1, 4)]
    return bytearray(b"".join(blocks))


def _headers(data: bytearray) -> list[int]:
    return [
        at
        for at in range(0, len(data) - BLOCK + 1, BLOCK)
        if any(data[at : at + BLOCK])
        and with_checksum(bytes(data[at : at + BLOCK]))[148:156] == data[at + 148 : at + 156]
    ]


def _change_field(rng: random.Random, data: bytearray) -> bytearray:
    """One field of a header, with the checksum that belongs to it."""
    headers = _headers(data)
    if not headers:
        return _flip(rng, data)
    at = rng.choice(headers)
    name = rng.choice(list(_FIELDS))
    begin, length = _FIELDS[name]
    if length == 1:
        value = rng.choice(
            (
                b"\0",
                b"0",
                b"1",
                b"2",
                b"3",
                b"5",
                b"6",
                b"7",
                b"x",
                b"g",
                b"L",
                b"K",
                b"S",
                b"V",
                b"\1",
                b"\xff",
            )
        )
    elif length in {8, 12}:
        number = rng.choice(_NUMBERS) * rng.choice((1, 1, 1, -1))
        number = max(min(number, (1 << (8 * length - 2)) - 1), -(1 << (8 * length - 2)))
        value = rng.choice(
            (base_256(number, length), b"%o" % abs(number), b"%d" % number, rng.randbytes(length))
        )
    else:
        value = rng.choice((*_NAMES, rng.randbytes(rng.randint(1, length)), b"n" * length))
    block = bytearray(data[at : at + BLOCK])
    block[begin : begin + length] = value[:length].ljust(length, b"\0")
    data[at : at + BLOCK] = with_checksum(bytes(block))
    return data


_KEYS = (
    b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid", b"GNU.sparse.size", b"GNU.sparse.major",
    b"GNU.sparse.minor", b"GNU.sparse.realsize", b"GNU.sparse.map", b"GNU.sparse.name", b"GNU.sparse.offset",
    b"GNU.sparse.numbytes", b"SCHILY.xattr.user.a", b"SCHILY.xattr.", b"SCHILY.xattr.security.capability",
    b"SCHILY.xattr.system.posix_acl_access", b"SCHILY.acl.access", b"LIBARCHIVE.xattr.user.a", b"hdrcharset",
)  # fmt: skip


def _insert_pax(rng: random.Random, data: bytearray) -> bytearray:
    """An extended header with odd records in front of some header."""
    headers = _headers(data)
    values = (
        *_NAMES, b"0", b"1", b"-1", b"2", b"512", b"1099511627776", b"9223372036854775807",
        b"99999999999999999999", b"1.5", b"-0.000000001", b"0,1", b"0,512,1024,512", b"1," * 1000, b"\0",
        b"n" * 300, b"a/" * 2500, b"x" * 70_000, rng.randbytes(20),
    )  # fmt: skip
    records = [(rng.choice(_KEYS), rng.choice(values)) for _ in range(rng.randint(1, 5))]
    extended = RawTar().pax(records, rng.choice((b"x", b"x", b"g"))).content(end=b"")
    at = rng.choice(headers) if headers else 0
    return data[:at] + bytearray(extended) + data[at:]


_TAR_MUTATIONS: list[Callable[[random.Random, bytearray], bytearray]] = [
    _flip, _truncate, _shuffle_blocks, _splice,
    _change_field, _change_field, _change_field, _insert_pax, _insert_pax,
]  # fmt: skip


def write_mutated(folder: Path, seed: int) -> tuple[str, str]:
    """A folder with one damaged image: the kind of damage, and the source to index."""
    rng = random.Random(seed)
    layers = list(rng.choice(BASES).layers)
    if rng.random() < 0.3:
        layers += rng.choice(BASES).layers
    kinds = {"tar": 14, "stream": 3, "document": 2, "digest": 1, "oci-archive": 1, "docker-archive": 1}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    if kind == "tar":
        number = rng.randrange(len(layers))
        layers[number] = mutated_tar(rng, layers[number])
    begin_layout(folder)
    compression = rng.choice(("gzip", "zstd") if kind == "stream" else ("none", "gzip", "zstd"))
    manifest, descriptors = add_image(folder, layers, compression=compression)
    if kind == "stream":
        manifest = _damage_stream(rng, folder, manifest, descriptors)
    elif kind == "digest":
        path = blob_path(folder, rng.choice([manifest, *descriptors]))
        damaged = bytearray(path.read_bytes() or b"\1")
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
    elif kind == "document":
        manifest = _damage_document(rng, folder, manifest)
    write_index(folder, [manifest])
    if kind == "document" and rng.random() < 0.3:
        path = folder / rng.choice(("index.json", "oci-layout"))
        document = json.loads(path.read_bytes())
        _change_value(rng, document)
        path.write_text(json.dumps(document))
    if not kind.endswith("archive"):
        return kind, f"oci:{folder}"
    archive = folder / "archive"
    archive.write_bytes(_damaged_archive(rng, folder, manifest, docker=kind == "docker-archive"))
    return kind, f"{kind}:{archive}"


def _damaged_archive(rng: random.Random, folder: Path, manifest: dict[str, Any], *, docker: bool) -> bytes:
    """A layout, or what `docker save` writes, as a tar that is then damaged itself."""
    tar = RawTar()
    if docker:
        document = json.loads(blob_path(folder, manifest).read_bytes())
        names = [f"{number}/layer.tar" for number in range(len(document["layers"]))]
        for name, layer in zip(names, document["layers"], strict=True):
            tar.file(name.encode(), blob_path(folder, layer).read_bytes())
        configuration = json.loads(blob_path(folder, document["config"]).read_bytes())
        saved: list[dict[str, Any]] = [{"Config": "config.json", "RepoTags": ["image:1"], "Layers": names}]
        if rng.random() < 0.3:
            _change_value(rng, rng.choice((saved, configuration)))
        tar.file(b"config.json", json.dumps(configuration).encode())
        tar.file(b"manifest.json", json.dumps(saved).encode())
    else:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.file(str(path.relative_to(folder)).encode(), path.read_bytes())
    content = tar.content()
    if rng.random() < 0.7:
        content = mutated_tar(rng, content)
    if rng.random() < 0.3:
        content = gzip.compress(content, 1)
        if rng.random() < 0.5:
            content = bytes(_flip(rng, bytearray(content)))
    return content


def _damage_stream(
    rng: random.Random, folder: Path, manifest: dict[str, Any], descriptors: list[dict[str, Any]]
) -> dict[str, Any]:
    """Damage behind right digests, so that it reaches the decompressor."""
    number = rng.randrange(len(descriptors))
    data = bytearray(blob_path(folder, descriptors[number]).read_bytes())
    match rng.randrange(6):
        case 0:
            data = _truncate(rng, data)
        case 1:
            data = data * 2
        case 2:
            data += rng.randbytes(rng.randint(1, 600))
        case 3:
            data += bytes(rng.randint(1, 600))
        case 4:
            plain = rng.randbytes(3000)
            data += rng.choice((gzip.compress(plain), zstandard.ZstdCompressor().compress(plain)))
        case _:
            data = _flip(rng, data)
    document = json.loads(blob_path(folder, manifest).read_bytes())
    document["layers"][number] = write_blob(folder, bytes(data), descriptors[number]["mediaType"])
    return write_blob(folder, json.dumps(document).encode(), manifest["mediaType"])


def _damage_document(rng: random.Random, folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """One value somewhere in the manifest or the configuration is missing or of another kind."""
    document = json.loads(blob_path(folder, manifest).read_bytes())
    configuration = json.loads(blob_path(folder, document["config"]).read_bytes())
    configuration["config"] = {"Env": ["A=1"], "Cmd": ["sh"], "User": "0", "WorkingDir": "/"}
    _change_value(rng, configuration)
    document["config"] = write_blob(
        folder, json.dumps(configuration).encode(), document["config"]["mediaType"]
    )
    if rng.random() < 0.6:
        _change_value(rng, document)
    content = json.dumps(document).encode()
    if rng.random() < 0.1:
        content = rng.choice((b"", b"[]", b"null", b"{", b"[" * 100_000, b'"' + b"x" * 5000 + b'"'))
    return write_blob(folder, content, manifest["mediaType"])


def _change_value(rng: random.Random, document: Any) -> None:
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        places += [(node, key) for key in keys]
        pending += [node[key] for key in keys if isinstance(node[key], (dict, list))]
    node, key = rng.choice(places)
    if rng.random() < 0.2:
        del node[key]
    else:
        wrong = (
            None,
            True,
            -1,
            0,
            1 << 70,
            1.5,
            "",
            "x",
            "\ud800",
            "../../x",
            [],
            {},
            [[]],
            {"a": {}},
            "sha256:" + "0" * 64,
        )
        node[key] = rng.choice(wrong)
