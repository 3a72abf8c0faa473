"""Archives as sources: read in place, one image chosen, everything verified, every refusal named."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from archives import Member, folder_members, image_configuration, manifest, saved_image, write_archive
from coldstart_cli.errors import ColdstartError, DataError, IoFailure, NotFoundError, UsageError
from coldstart_fs.indexing.build import index_image
from coldstart_fs.indexing.sources import archive as archive_module
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart
from fs.conformance.raw_tar import RawTar
from image_builder import Layer, image_facts, write_layout


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def index(source: str, store: Store, name: str = "image", platform: str | None = None) -> bytes:
    return index_image(source, store=store, name=name, chunk_bytes=4096, platform=platform).digest


def nothing_is_left(store: Store, tmp_path: Path) -> bool:
    names = {path.name for path in (tmp_path / "store").iterdir()}
    return store.list("") == ["coldstart-store.json"] and names <= {".lock", "coldstart-store.json"}


def two_layers() -> list[Layer]:
    return [
        Layer().folder("d").file("d/old", b"old").file("keep", b"k" * 9000),
        Layer().file("d/.wh.old").file("d/new", b"new"),
    ]


CONTENTS = {b"": b"", b"d": b"", b"d/new": b"new", b"keep": b"k" * 9000}


def contents(store: Store, name: str = "image") -> dict[bytes, bytes]:
    return {path: fact.content for path, fact in image_facts(store, name).items()}


# --- oci-archive ---


@pytest.mark.parametrize("prefix", ["", "./", "/"])
def test_an_archive_of_a_layout_is_the_same_image_as_the_layout(
    tmp_path: Path, store: Store, prefix: str
) -> None:
    write_layout(tmp_path / "l", two_layers())
    write_archive(tmp_path / "l.tar", folder_members(tmp_path / "l", prefix=prefix))
    assert index(f"oci-archive:{tmp_path}/l.tar", store) == index(f"oci:{tmp_path}/l", store, "other")
    assert contents(store) == CONTENTS


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lzma.compress, bz2.compress])
def test_a_compressed_archive_is_decompressed_once_and_nothing_stays(
    tmp_path: Path, store: Store, pack: Callable[[bytes], bytes]
) -> None:
    write_layout(tmp_path / "l", two_layers(), compression="none")
    plain = write_archive(tmp_path / "l.tar", folder_members(tmp_path / "l")).read_bytes()
    cut = len(plain) // 2
    # of two streams one after the other, as parallel compressors write them
    (tmp_path / "l.tar.x").write_bytes(pack(plain[:cut]) + pack(plain[cut:]))
    index(f"oci-archive:{tmp_path}/l.tar.x:latest", store)
    assert contents(store) == CONTENTS
    assert not list((tmp_path / "store").glob(".writing-*"))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lzma.compress, bz2.compress])
def test_a_compressed_archive_cut_short_is_named(
    tmp_path: Path, store: Store, pack: Callable[[bytes], bytes]
) -> None:
    write_layout(tmp_path / "l", [Layer().file("a", os.urandom(30_000))], compression="none")
    plain = write_archive(tmp_path / "plain", folder_members(tmp_path / "l")).read_bytes()
    (tmp_path / "l.tar").write_bytes(pack(plain)[:-20])
    with pytest.raises(DataError, match=f"stream is cut short: {tmp_path}/l.tar"):
        index(f"oci-archive:{tmp_path}/l.tar", store)
    assert nothing_is_left(store, tmp_path)


def test_a_bomb_ends_before_the_disk_is_full(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(8 << 20)))
    system = os.statvfs(tmp_path)
    spared = system.f_bavail * system.f_frsize - (1 << 20)
    monkeypatch.setattr(archive_module, "_SPARED_BYTES", spared)
    with pytest.raises(IoFailure, match=r"no room to decompress .*/bomb") as caught:
        index(f"docker-archive:{tmp_path}/bomb", store)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("df -h")
    assert nothing_is_left(store, tmp_path)


def test_reading_an_archive_in_place_needs_no_scratch_space(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_layout(tmp_path / "l", two_layers())
    write_archive(tmp_path / "l.tar", folder_members(tmp_path / "l"))

    def refuse(*arguments: Any) -> None:
        raise AssertionError("decompressed")

    monkeypatch.setattr(archive_module, "_decompress", refuse)
    index(f"oci-archive:{tmp_path}/l.tar", store)


def test_tags_of_an_archive_choose_the_image_and_a_colon_in_its_name_is_no_tag(
    tmp_path: Path, store: Store
) -> None:
    write_layout(tmp_path / "l", two_layers(), tag="v1.2")
    write_archive(tmp_path / "l:v2.tar", folder_members(tmp_path / "l"))
    index(f"oci-archive:{tmp_path}/l:v2.tar", store)
    index(f"oci-archive:{tmp_path}/l:v2.tar:v1.2", store)
    index(f"oci-archive:{tmp_path}/l:v2.tar:@0", store)
    with pytest.raises(NotFoundError, match=r"tag is not in the image layout: v1\.3"):
        index(f"oci-archive:{tmp_path}/l:v2.tar:v1.3", store)
    with pytest.raises(NotFoundError, match="image @1 does not exist"):
        index(f"oci-archive:{tmp_path}/l:v2.tar:@1", store)


# --- docker-archive ---


def test_what_skopeo_saves_as_docker_archive_is_the_same_image(tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", [*two_layers(), two_layers()[0]])
    skopeo("copy", f"oci:{tmp_path}/l:latest", f"docker-archive:{tmp_path}/saved.tar:app:v1")
    skopeo("copy", f"oci:{tmp_path}/l:latest", f"oci-archive:{tmp_path}/oci.tar:v1")
    digest = index(f"oci:{tmp_path}/l", store)
    for source in (
        f"docker-archive:{tmp_path}/saved.tar",
        f"docker-archive:{tmp_path}/saved.tar:app:v1",
        f"docker-archive:{tmp_path}/saved.tar:docker.io/library/app:v1",
        f"oci-archive:{tmp_path}/oci.tar:v1",
    ):
        assert index(source, store) == digest


def skopeo(*arguments: str) -> None:
    subprocess.run(["skopeo", *arguments], check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_layers_that_are_links_to_other_layers(tmp_path: Path, store: Store, kind: bytes) -> None:
    first, second = (layer.content() for layer in two_layers())
    configuration = image_configuration([first, second, first])
    digest = hashlib.sha256(configuration).hexdigest()
    item = {"Config": f"{digest}.json", "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}
    write_archive(
        tmp_path / "saved.tar",
        [
            # the link may stand before what it leads to
            Member(
                "c/layer.tar",
                kind=kind,
                target="../a/layer.tar" if kind == tarfile.SYMTYPE else "a/layer.tar",
            ),
            Member("a/layer.tar", first),
            Member("b/layer.tar", second),
            Member(f"{digest}.json", configuration),
            manifest(item),
        ],
    )
    index(f"docker-archive:{tmp_path}/saved.tar", store)
    assert contents(store) == CONTENTS | {b"d/old": b"old"}


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_layers_are_verified_by_the_digest_of_their_tar(
    tmp_path: Path, store: Store, pack: Callable[[bytes], bytes]
) -> None:
    item, members = saved_image(two_layers())
    packed = [
        Member(member.name, pack(member.content)) if member.name.endswith("/layer.tar") else member
        for member in members
    ]
    write_archive(tmp_path / "saved.tar", [*packed, manifest(item)])
    index(f"docker-archive:{tmp_path}/saved.tar", store)
    assert contents(store) == CONTENTS


def test_several_images_are_named_and_chosen(tmp_path: Path, store: Store) -> None:
    one, first = saved_image([Layer().file("one")], "one:v1", "one:latest")
    two, second = saved_image([Layer().file("two")], "registry.example/team/two:v2")
    three, third = saved_image([Layer().file("three")])
    path = write_archive(tmp_path / "saved.tar", [*first, *second, *third, manifest(one, two, three)])
    source = f"docker-archive:{path}"
    for reference, file in {
        "one": b"one",
        "one:v1": b"one",
        "registry.example/team/two:v2": b"two",
        "@2": b"three",
    }.items():
        index(f"{source}:{reference}", store)
        assert set(contents(store)) == {b"", file}
    with pytest.raises(
        DataError, match=r"several images.*: one:v1, registry\.example/team/two:v2, @2"
    ) as several:
        index(source, store)
    assert several.value.hint == f"write {source}:one:v1"
    with pytest.raises(NotFoundError, match="image is not in the archive: one:v3") as absent:
        index(f"{source}:one:v3", store)
    assert absent.value.hint == "did you mean `one:v1`?"
    with pytest.raises(NotFoundError, match="image @3 does not exist"):
        index(f"{source}:@3", store)


def test_newer_archives_of_docker_are_layouts_too(tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", two_layers(), compression="none", tag=None)
    descriptor = json.loads((tmp_path / "l/index.json").read_text())["manifests"][0]
    blob = json.loads((tmp_path / "l" / "blobs" / descriptor["digest"].replace(":", "/")).read_text())
    item = {
        "Config": "blobs/" + blob["config"]["digest"].replace(":", "/"),
        "RepoTags": ["app:latest"],
        "Layers": ["blobs/" + layer["digest"].replace(":", "/") for layer in blob["layers"]],
    }
    members = folder_members(tmp_path / "l")
    write_archive(tmp_path / "both.tar", [*members, manifest(item)])
    write_archive(tmp_path / "layout.tar", members)
    expected = index(f"oci:{tmp_path}/l", store)
    assert index(f"docker-archive:{tmp_path}/both.tar:app", store) == expected
    assert index(f"oci-archive:{tmp_path}/both.tar", store) == expected
    assert index(f"docker-archive:{tmp_path}/layout.tar", store) == expected


def test_an_archive_of_ancient_docker_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    write_archive(tmp_path / "old.tar", [Member("repositories", b"{}"), Member("x/layer.tar")])
    with pytest.raises(DataError, match=r"it is of Docker before 1\.10"):
        index(f"docker-archive:{tmp_path}/old.tar", store)
    with pytest.raises(DataError, match="not an OCI layout") as caught:
        index(f"oci-archive:{tmp_path}/old.tar", store)
    assert caught.value.hint == f"for an archive of docker save write docker-archive:{tmp_path}/old.tar"


# --- damage ---


def changed(members: list[Member], name: str, change: Callable[[bytes], bytes]) -> list[Member]:
    return [
        Member(member.name, change(member.content), member.kind) if member.name.endswith(name) else member
        for member in members
    ]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "/layer.tar",
            lambda data: data[:3] + b"?" + data[4:],
            "layer is not the one of the configuration.*/layer.tar",
        ),
        ("/layer.tar", lambda data: data[:700], "layer sha256:.*layer.tar|layer is not the one"),
        ("/layer.tar", lambda data: data + bytes(512), "layer is not the one of the configuration"),
        (".json", lambda data: data[:-1] + b" }", "blob is damaged: .*saved.tar: [0-9a-f]{64}.json"),
    ],
)
def test_a_member_that_is_not_what_was_promised_is_named(
    tmp_path: Path, store: Store, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    item, members = saved_image([Layer().file("a", os.urandom(5000))])
    write_archive(tmp_path / "saved.tar", [*changed(members, name, change), manifest(item)])
    with pytest.raises(DataError, match=message):
        index(f"docker-archive:{tmp_path}/saved.tar", store)
    assert nothing_is_left(store, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"?", "not JSON: .*manifest.json"),
        (b"{}", "not a list of images: .*manifest.json"),
        (b"[" * 100_000, "nested too deeply: .*manifest.json"),
        (b"[1]", "not described as it should be"),
        (b'[{"Config": "x", "Layers": [1]}]', "not described as it should be"),
        (b"[]", "no image in it"),
        (b'[{"Config": "../../etc/passwd", "Layers": []}]', "configuration is missing: .*: ../../etc/passwd"),
        (b'[{"Config": "/etc/passwd", "Layers": []}]', "configuration is missing: .*: /etc/passwd"),
        (b" " * (9 << 20), "document is larger than"),
    ],
)
def test_a_manifest_that_cannot_be_is_named(
    tmp_path: Path, store: Store, content: bytes, message: str
) -> None:
    write_archive(tmp_path / "saved.tar", [Member("manifest.json", content)])
    with pytest.raises(ColdstartError, match=message):
        index(f"docker-archive:{tmp_path}/saved.tar", store)
    assert nothing_is_left(store, tmp_path)


def test_names_that_lead_out_of_an_archive_are_no_members(tmp_path: Path, store: Store) -> None:
    item, members = saved_image(two_layers())
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    extra = [
        Member("../../outside", b"evil"),
        Member("/outside", b"evil"),
        Member("a", kind=tarfile.SYMTYPE, target=str(outside)),
        Member("a/b", b"evil"),
    ]
    write_archive(tmp_path / "saved.tar", [*extra, *members, manifest(item)])
    index(f"docker-archive:{tmp_path}/saved.tar", store)
    assert contents(store) == CONTENTS
    assert outside.read_bytes() == b"untouched"
    for target in ("../../../outside", str(outside)):
        links = [
            Member(member.name, kind=tarfile.SYMTYPE, target=target)
            if "/layer.tar" in member.name
            else member
            for member in members
        ]
        write_archive(tmp_path / "links.tar", [*links, manifest(item)])
        with pytest.raises(NotFoundError, match=r"layer is missing: .*links\.tar: .*/layer\.tar"):
            index(f"docker-archive:{tmp_path}/links.tar", store)


def test_links_in_a_circle_end(tmp_path: Path, store: Store) -> None:
    loop = [
        Member("manifest.json", kind=tarfile.SYMTYPE, target="b"),
        Member("b", kind=tarfile.SYMTYPE, target="manifest.json"),
    ]
    write_archive(tmp_path / "saved.tar", loop)
    with pytest.raises(DataError, match="too many links"):
        index(f"docker-archive:{tmp_path}/saved.tar", store)


def test_two_members_of_one_name_are_refused_where_nothing_verifies_them(
    tmp_path: Path, store: Store
) -> None:
    item, members = saved_image(two_layers())
    write_archive(tmp_path / "saved.tar", [*members, *members, manifest(item)])
    index(f"docker-archive:{tmp_path}/saved.tar", store)
    write_archive(tmp_path / "twice.tar", [*members, manifest(item), manifest(item)])
    with pytest.raises(DataError, match=r"several members of one name: .*twice\.tar: manifest\.json"):
        index(f"docker-archive:{tmp_path}/twice.tar", store)


def test_a_member_that_lies_about_its_size_is_named(tmp_path: Path, store: Store) -> None:
    item, members = saved_image(two_layers())
    path = write_archive(tmp_path / "saved.tar", [manifest(item), *members])
    content = bytearray(path.read_bytes())
    at = content.index(members[1].name.encode() + b"\0")
    for size, message in ((1 << 40, "ends inside of a file"), (100, "layer is missing")):
        header = content[at : at + 512]
        header[124:136] = b"\x80" + size.to_bytes(11, "big")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        path.write_bytes(content[:at] + header + content[at + 512 :])
        with pytest.raises(ColdstartError, match=message) as caught:
            index(f"docker-archive:{path}", store)
        assert "saved.tar" in caught.value.message
    assert nothing_is_left(store, tmp_path)


def test_sparse_members_are_refused_by_name(tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", [Layer().file("a", bytes(1 << 20))], compression="none")
    for blob in (tmp_path / "l/blobs/sha256").iterdir():  # with holes, so that tar sees them
        content = blob.read_bytes()
        with blob.open("wb") as stream:
            stream.truncate(len(content))
            for start in range(0, len(content), 4096):
                if content[start : start + 4096].strip(b"\0"):
                    os.pwrite(stream.fileno(), content[start : start + 4096], start)
    subprocess.run(
        ["tar", "-C", tmp_path / "l", "--sparse", "-cf", tmp_path / "l.tar", "."], check=True, timeout=20
    )
    with pytest.raises(DataError, match=r"archive holds a sparse file: .*l.tar: blobs/sha256/"):
        index(f"oci-archive:{tmp_path}/l.tar", store)


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, coldstart: Coldstart, kind: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    for name, status, message in (
        ("fifo", 2, "not a regular file"),
        ("folder", 2, "not a file but a folder"),
        ("absent", 66, "file does not exist"),
        ("empty:tag", 66, "file does not exist"),
    ):
        result = coldstart("image", "index", f"{kind}:{tmp_path}/{name}", "--name", "n", "--store", "store")
        assert (result.status, result.stdout) == (status, ""), result
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "store").exists() or os.listdir(tmp_path / "store") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, coldstart: Coldstart) -> None:
    secret = tmp_path / "secret.tar"
    secret.write_bytes(b"x")
    secret.chmod(0)
    source = f"docker-archive:{secret}"
    command = [coldstart.program, "image", "index", source, "--name", "n", "--store", str(tmp_path / "s")]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", *command],
        capture_output=True,
        timeout=60,
        env=coldstart.environment,
        check=False,
    )
    assert done.returncode == 77, done.stderr
    assert b"cannot read" in done.stderr


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, lzma.compress, bz2.compress])
def test_damaged_archives_are_refused_or_right(
    tmp_path: Path, store: Store, pack: Callable[[bytes], bytes]
) -> None:
    chance = random.Random(7)
    item, members = saved_image(two_layers(), "app:v1")
    good = pack(write_archive(tmp_path / "good.tar", [*members, manifest(item)]).read_bytes())
    (tmp_path / "good.tar").write_bytes(good)
    index(f"docker-archive:{tmp_path}/good.tar", store)
    before = store.list("")
    refused = 0
    for _ in range(200):
        data = bytearray(good)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        for _ in range(chance.randint(0, 3)):
            if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (tmp_path / "bad.tar").write_bytes(data)
        try:
            index(f"docker-archive:{tmp_path}/bad.tar", store)
        except (DataError, NotFoundError):
            refused += 1
        assert contents(store) == CONTENTS
        assert store.list("") == before
    assert 50 < refused < 200


def test_a_folder_takes_no_platform(tmp_path: Path, store: Store) -> None:
    with pytest.raises(UsageError, match="a folder has no platform"):
        index(f"dir:{tmp_path}", store, platform="linux/amd64")


def test_a_layer_named_with_half_a_character_is_missing(tmp_path: Path, store: Store) -> None:
    saved = json.dumps([{"Config": "c.json", "Layers": ["\ud800"], "RepoTags": []}]).encode()
    tar = RawTar().file(b"manifest.json", saved).file(b"c.json", b"{}")
    (tmp_path / "saved.tar").write_bytes(tar.content())
    with pytest.raises(NotFoundError, match="layer is missing"):
        index(f"docker-archive:{tmp_path}/saved.tar", store)
