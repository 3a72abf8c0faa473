"""Registries as sources, through real skopeo and docker-registry, over connections that break and hang."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    ConfigError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UsageError,
)
from coldstart_fs.indexing.build import index_image
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.indexing.sources import pull, skopeo
from coldstart_fs.indexing.sources.reference import parse_registry_reference
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart, umount, wait_until
from fs.registry import (
    PASSWORD,
    Faults,
    Registry,
    environment_of,
    faulty_proxy,
    running_registry,
    skopeo_processes,
)
from image_builder import Layer, OciImage, image_facts, write_blob, write_index, write_layout

OCI_INDEX = "application/vnd.oci.image.index.v1+json"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "r") as registry:
        yield registry


@pytest.fixture
def registry(shared: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    environment_of(shared, monkeypatch)
    monkeypatch.setattr(pull, "_PAUSE_SECONDS", 0.0)
    return shared


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def index(source: str, store: Store, platform: str | None = None) -> bytes:
    return index_image(source, store=store, name="image", chunk_bytes=4096, platform=platform).digest


def nothing_is_left(store: Store) -> bool:
    names = {path.name for path in Path(store.url).iterdir()}
    return store.list("") == ["coldstart-store.json"] and names <= {".lock", "coldstart-store.json"}


def layers() -> list[Layer]:
    return [
        Layer().folder("d").file("d/old", b"old").file("keep", os.urandom(50_000)),
        Layer().file("d/.wh.old"),
    ]


def test_a_tag_and_a_digest_are_the_same_image_as_the_layout(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    write_layout(tmp_path / "l", layers())
    registry.push(f"oci:{tmp_path}/l:latest", "team/app:v1")
    expected = index(f"oci:{tmp_path}/l", store)
    digest = json.loads((tmp_path / "l/index.json").read_text())["manifests"][0]["digest"]
    for reference in ("team/app:v1", f"team/app@{digest}", f"team/app:other@{digest}"):
        assert index(registry.url(reference), store) == expected
    assert not list(Path(store.url).glob(".writing-*"))


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_layers_stay_as_they_were_pushed(
    registry: Registry, tmp_path: Path, store: Store, compression: str
) -> None:
    write_layout(tmp_path / "l", layers(), compression=compression)
    registry.push(f"oci:{tmp_path}/l:latest", f"stay/{compression}", "--dest-precompute-digests")
    assert index(registry.url(f"stay/{compression}"), store) == index(f"oci:{tmp_path}/l", store)


def test_docker_manifests_are_read_as_they_are(registry: Registry, tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", layers(), config={"Cmd": ["/bin/app"]})
    registry.push(f"oci:{tmp_path}/l:latest", "docker/app:v2", "--format", "v2s2")
    with urllib.request.urlopen(manifest_request(registry, "docker/app", "v2"), timeout=60) as answer:
        assert "docker.distribution.manifest.v2" in answer.headers["Content-Type"]
    index(registry.url("docker/app:v2"), store)
    assert set(image_facts(store, "image")) == {b"", b"d", b"keep"}


def manifest_request(registry: Registry, name: str, tag: str, **more: Any) -> urllib.request.Request:
    kinds = (OCI_INDEX, "application/vnd.docker.distribution.manifest.v2+json")
    url = f"http://{registry.address}/v2/{name}/manifests/{tag}"
    return urllib.request.Request(url, headers={"Accept": ", ".join(kinds)} | more.pop("headers", {}), **more)


def push_platforms(registry: Registry, tmp_path: Path, name: str, *platforms: str) -> list[str]:
    """An index of one image a platform, and of what buildkit puts beside them; the images' digests."""
    folder = tmp_path / "platforms"
    descriptors, digests = [], []
    for number, platform in enumerate(platforms):
        system, architecture, *variant = platform.split("/")
        layer = Layer().file(platform.replace("/", "-"))
        image = write_layout(tmp_path / f"p{number}", [layer], tag=None, platform=platform)
        (descriptor,) = json.loads((image.folder / "index.json").read_text())["manifests"]
        about = {"os": system, "architecture": architecture} | ({"variant": variant[0]} if variant else {})
        descriptors.append(descriptor | {"platform": about})
        digests.append(descriptor["digest"])
        folder.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", *image.folder.iterdir(), folder], check=True, timeout=60)
    attestation = descriptors[0] | {
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
    }
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*descriptors, attestation]}
    nested = write_blob(folder, json.dumps(document).encode(), OCI_INDEX)
    write_index(folder, [nested | {"annotations": {"org.opencontainers.image.ref.name": "all"}}])
    registry.push(f"oci:{folder}:all", name, "--all")
    return digests


def test_platforms_of_an_index_are_chosen_and_what_does_not_fit_is_listed(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    offered = ("linux/amd64", "linux/arm64", "linux/arm/v6", "linux/arm/v7", "linux/s390x")
    digests = push_platforms(registry, tmp_path, "many/app", *offered)
    for wanted, file in {
        "linux/amd64": b"linux-amd64",
        "linux/amd64/v3": b"linux-amd64",
        "linux/aarch64": b"linux-arm64",
        "linux/arm": b"linux-arm-v7",
        "linux/arm/v8": b"linux-arm-v7",
        "linux/arm/v6": b"linux-arm-v6",
    }.items():
        index(registry.url("many/app"), store, wanted)
        assert file in image_facts(store, "image")
    with pytest.raises(
        DataError, match="not made for linux/riscv64, only for: linux/amd64, linux/arm/v6"
    ) as none:
        index(registry.url("many/app"), store, "linux/riscv64")
    assert none.value.hint == "choose one: `--platform linux/amd64`"
    assert "unknown" not in none.value.message
    index(registry.url(f"many/app@{digests[4]}"), store)
    with pytest.raises(DataError, match="image is made for linux/s390x, not for linux/amd64"):
        index(registry.url(f"many/app@{digests[4]}"), store, "linux/amd64")


# --- refusals ---


@pytest.mark.parametrize(
    ("reference", "kind", "message"),
    [
        ("no/such:tag", NotFoundError, "image is not in the registry: .*no/such:tag"),
        (f"no/such@sha256:{'0' * 64}", NotFoundError, "image is not in the registry"),
        ("no/such@sha256:12", UsageError, "not a digest that can be checked"),
        ("No/Such", UsageError, "not a reference of an image"),
        ("no/such:", UsageError, "not a reference of an image"),
        ("no/such@", UsageError, "not a reference of an image"),
        ("", UsageError, "not a reference of an image"),
    ],
)
def test_images_that_are_not_there_are_named(
    registry: Registry, store: Store, reference: str, kind: type[ColdstartError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        index(registry.url(reference), store)
    assert store.list("") in ([], ["coldstart-store.json"])


def test_a_registry_that_is_not_there_is_named(registry: Registry, store: Store) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound, and nobody listens
        with pytest.raises(BusyError, match=f"cannot be reached.*{address}/app:v1.*connection refused"):
            index(f"docker://{address}/app:v1", store)


def test_plain_http_must_be_allowed_where_engines_allow_it(
    registry: Registry, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"registry speaks plain HTTP: {registry.address}") as caught:
        index(registry.url("app"), store)
    assert caught.value.hint is not None
    assert "registries.conf" in caught.value.hint


def test_access_is_refused_until_somebody_logged_in(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_registry(tmp_path / "private", user="ops") as private:
        environment_of(private, monkeypatch)
        write_layout(tmp_path / "l", layers())
        private.push(f"oci:{tmp_path}/l:latest", "app:v1", user="ops")
        with pytest.raises(PermissionNeededError, match=r"registry refuses access.*app:v1") as caught:
            index(private.url("app:v1"), store)
        assert caught.value.hint == f"skopeo login {private.address}"
        assert nothing_is_left(store)
        authentication = tmp_path / "auth.json"
        private.skopeo(
            "login", "--tls-verify=false", f"--authfile={authentication}", "-u", "ops", "-p", PASSWORD,
            private.address,
        )  # fmt: skip
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(authentication))
        index(private.url("app:v1"), store)
        monkeypatch.delenv("REGISTRY_AUTH_FILE")
        (private.home / ".docker").mkdir()
        authentication.rename(private.home / ".docker/config.json")
        index(private.url("app:v1"), store)


# --- damage, lost connections ---


def pushed(registry: Registry, tmp_path: Path, name: str, *sizes: int) -> tuple[str, OciImage]:
    image = write_layout(
        tmp_path / "pushed",
        [Layer().file(f"f{number}", os.urandom(size)) for number, size in enumerate(sizes)],
    )
    registry.push(f"oci:{image.folder}:latest", name)
    return name, image


def test_a_blob_that_the_registry_damaged_is_never_used(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    name, image = pushed(registry, tmp_path, "damaged/layer", 100_000)
    victim = registry.blob(f"sha256:{image.layers[0].name}")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(DataError, match=f"registry sent something else than it promised: .*{name}"):
        index(registry.url(name), store)
    assert nothing_is_left(store)


def test_a_manifest_that_names_missing_blobs_is_refused(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    name, image = pushed(registry, tmp_path, "missing/layer", 1000)
    registry.blob(f"sha256:{image.layers[0].name}").unlink()
    with pytest.raises(ColdstartError, match=r"registry lacks a blob of the image: docker://.*missing/layer"):
        index(registry.url(name), store)
    assert nothing_is_left(store)


def test_a_connection_lost_once_costs_only_what_was_on_its_way(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    name, image = pushed(registry, tmp_path, "lost/once", 4_000_000, 50_000)
    faults = Faults(cut_after_bytes=1_000_000, times=1)
    with faulty_proxy(registry, faults) as address:
        index(f"docker://{address}/{name}", store)
    assert faults.spoilt == 1
    assert set(image_facts(store, "image")) == {b"", b"f0", b"f1"}
    assert faults.answered_bytes < 1.5 * sum(layer.stat().st_size for layer in image.layers)


def test_a_connection_lost_again_and_again_is_an_error_and_leaves_nothing(
    registry: Registry, tmp_path: Path, store: Store
) -> None:
    name, _ = pushed(registry, tmp_path, "lost/always", 4_000_000)
    with (
        faulty_proxy(registry, Faults(cut_after_bytes=1_000_000)) as address,
        pytest.raises(BusyError, match=f"registry cannot be reached, or went away: docker://{address}"),
    ):
        index(f"docker://{address}/{name}", store)
    assert nothing_is_left(store)


class Phases(Progress):
    """Remembers what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        super().__call__(text)
        self.said.append(text.partition(" (")[0])


def test_a_registry_that_falls_silent_is_given_up_after_the_layers_before_were_read(
    registry: Registry, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = pushed(registry, tmp_path, "silent/app", 50_000, 4_000_000)
    monkeypatch.setattr(skopeo, "_SILENT_SECONDS", 5.0)
    faults = Faults(silent_after_bytes=1_000_000)
    with faulty_proxy(registry, faults) as address:
        reference = f"{address}/{name}"
        phases = Phases()
        with pytest.raises(BusyError, match=r"no progress for 5 s, killed"):
            index_image(f"docker://{reference}", store=store, name="image", progress=phases)
        said = [text for text, _ in groupby(phases.said)]
        assert said[-2:] == ["reading layer 1 of 2", "pulling layer 2 of 2"]
        assert skopeo_processes(reference) == []
    assert nothing_is_left(store)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_skopeo_runs_ends_it_and_leaves_nothing(
    registry: Registry, tmp_path: Path, coldstart: Coldstart, number: signal.Signals, status: int
) -> None:
    name, _ = pushed(registry, tmp_path, f"signal/{number.name.lower()}", 4_000_000)
    with faulty_proxy(registry, Faults(silent_after_bytes=1_000_000)) as address:
        reference = f"{address}/{name}"
        command = subprocess.Popen(
            [coldstart.program, "image", "index", f"docker://{reference}", "--name", "n", "--store", "here"],
            env=coldstart.environment | registry.environment,
            cwd=coldstart.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            here = tmp_path / "here"
            wait_until(
                lambda: skopeo.bytes_below(here) > 100_000 and bool(skopeo_processes(reference)),
                "skopeo pulls",
            )
            command.send_signal(number)
            _, complaint = command.communicate(timeout=60)
        finally:
            command.kill()
            command.communicate()
        assert command.returncode == status, complaint
        assert b"Traceback" not in complaint
        assert skopeo_processes(reference) == []
        assert {path.name for path in here.iterdir()} <= {".lock", "coldstart-store.json"}


def put_manifest(registry: Registry, name: str, document: dict[str, Any]) -> str:
    """A manifest just as it is given; the registry wants its blobs to exist. Its digest."""
    content = json.dumps(document).encode()
    request = manifest_request(
        registry, name, "bad", method="PUT", data=content, headers={"Content-Type": document["mediaType"]}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 1 << 60}, "no room for the layers of docker://.*/bad/"),
        ({"size": 3}, "blob has .* bytes instead of 3|invalid|does not match|size"),
        ({"mediaType": "application/vnd.oci.image.layer.v1.tar+encrypted"}, "layer is encrypted: sha256:"),
        ({"mediaType": "application/x-what"}, "layer has unknown media type application/x-what"),
    ],
)
def test_manifests_that_lie_are_refused_before_anything_is_pulled(
    registry: Registry, tmp_path: Path, store: Store, change: dict[str, Any], message: str
) -> None:
    name, image = pushed(registry, tmp_path, f"bad/{abs(hash(message))}", 5000)
    document = json.loads(image.manifest.read_bytes())
    document["layers"][0] |= change
    put_manifest(registry, name, document)
    with pytest.raises(ColdstartError, match=message):
        index(registry.url(f"{name}:bad"), store)
    assert nothing_is_left(store)


def test_a_full_disk_while_pulling_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    name, _ = pushed(registry, tmp_path, "full/disk", 6_000_000)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=True, timeout=60)
    try:
        store = open_store(str(small / "store"), create=True)
        with pytest.raises(IoFailure, match=r"no room for the layers of .*: they have 6 MB, . MB are free"):
            index(registry.url(name), store)
        monkeypatch.setattr(pull.Pull, "_check_room", lambda _: None)
        with pytest.raises(IoFailure, match=r"no room for the layers of .*no space left on device"):
            index(registry.url(name), store)
        assert nothing_is_left(store)
    finally:
        umount(small)


REFUSED = PermissionNeededError
LONG = "reading manifest v1 in r.io/app: "


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        (LONG + "unauthorized: authentication required", REFUSED, "login"),
        (LONG + "denied: requested access to the resource", REFUSED, "login"),
        (LONG + "toomanyrequests: slow down", BusyError, "login"),
        ('Get "https://r.io/v2/": x509: signed by unknown authority', ConfigError, "certs.d/r.io"),
        (
            "Source image rejected: Running image docker://r.io/app:v1 is rejected by policy.",
            REFUSED,
            "policy",
        ),
        ("writing blob: write /x: no space left on device", IoFailure, "--store"),
        ('Get "https://r.io/v2/": net/http: TLS handshake timeout', BusyError, "skopeo"),
        ("writing blob: Digest did not match, expected sha256:00, got sha256:11", DataError, ""),
        (
            'Get "https://r.io/v2/": dial tcp: lookup r.io on 10.0.0.2:53: no such host',
            NotFoundError,
            "getent hosts r.io",
        ),
        ("something new", ColdstartError, ""),
    ],
)
def test_what_skopeo_says_becomes_one_kind_of_error(said: str, kind: type[ColdstartError], hint: str) -> None:
    reference = parse_registry_reference("//r.io/app:v1")
    line = f'time="2026-01-01T00:00:00Z" level=fatal msg={json.dumps(said)}\n'
    error = skopeo.failure(reference, b"noise\n" + line.encode())
    assert type(error) is kind or isinstance(error, kind)
    assert hint in (error.hint or "")
    assert error.exit_code == kind.exit_code


def test_references_are_taken_apart_as_engines_do() -> None:
    for text, repository, tag, registry in (
        ("//alpine", "alpine", None, "docker.io"),
        ("//team/app:v1", "team/app", "v1", "docker.io"),
        ("//localhost/app", "localhost/app", None, "localhost"),
        ("//h:5000/a/b:t", "h:5000/a/b", "t", "h:5000"),
    ):
        found = parse_registry_reference(text)
        assert (found.repository, found.tag, found.registry) == (repository, tag, registry)
        assert str(found) == f"docker:{text}"
