"""The programs that say what an image means: umoci and containerd, each with a folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import Completed, find_program, kill_group, run, start
from conftest import wait_until

_DEADLINE_SECONDS = 120
_NAMESPACE = "conformance"
_PLUGINS_NOT_WANTED = (
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.nri.v1.nri",
)


@dataclass(frozen=True)
class Unpacked:
    """The root folder that a program made, or why it did not."""

    root: Path | None
    refusal: str = ""


class Umoci:
    """`umoci raw unpack` of images in OCI layouts."""

    def __init__(self, folder: Path) -> None:
        self._program = program_or_skip("umoci")
        self._folder = folder
        self._numbers = count()  # unpacking goes on in several threads

    def version(self) -> str:
        return _version(run([self._program, "--version"], deadline_seconds=20))

    def unpack(self, layout: Path, tag: str) -> Unpacked:
        root = self._folder / f"umoci-{next(self._numbers)}"
        done = run(
            [self._program, "raw", "unpack", "--image", f"{layout}:{tag}", root],
            deadline_seconds=_DEADLINE_SECONDS,
            check=False,
        )
        return Unpacked(root) if done.status == 0 else Unpacked(None, done.error_text)


class Containerd:
    """A containerd that knows nothing of the host's: own root, own state, own socket."""

    def __init__(self, folder: Path, snapshotter: str) -> None:
        self._program = program_or_skip("ctr")
        self._socket = folder / "s"
        self._snapshotter = snapshotter
        self._numbers = count()

    @classmethod
    @contextmanager
    def running(
        cls, folder: Path, snapshotter: str = "native", *, proxy: tuple[str, Path] | None = None
    ) -> Iterator[Containerd]:
        """Started, answering, ended with all it mounted; `proxy`: name and socket of another snapshotter."""
        program = program_or_skip("containerd")
        if len(os.fsencode(folder)) > 80:  # the path of a socket has 107 bytes at most
            raise ValueError(f"path is too long for a socket: {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        plugins = ", ".join(f'"{name}"' for name in _PLUGINS_NOT_WANTED)
        (folder / "config.toml").write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
            f'disabled_plugins = [{plugins}]\n[grpc]\naddress = "{folder}/s"\n' + _proxy_lines(proxy)
        )
        daemon = cls(folder, snapshotter)
        with (folder / "log").open("wb") as log:
            process = start([program, "--config", folder / "config.toml"], log=log)
            try:
                wait_until(lambda: daemon._ctr("version", check=False).status == 0, "containerd answers")
                # `ctr snapshots unpack` of 1.6 and 1.7 does not look at --snapshotter
                daemon._ctr(
                    "namespaces", "create", _NAMESPACE, f"containerd.io/defaults/snapshotter={snapshotter}"
                )
                yield daemon
            finally:
                kill_group(process)
                for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
                    if (point := line.split(" ")[4]).startswith(f"{folder}/"):
                        subprocess.run(["umount", "-l", point], check=False, timeout=60)

    def version(self) -> str:
        return _version(run([find_program("containerd"), "--version"], deadline_seconds=20))

    def pull(self, layout: Path) -> None:
        """Take over every image of a layout, without unpacking one."""
        archive = self._socket.parent / "import.tar"
        with tarfile.open(archive, "w") as stream:
            stream.add(layout, arcname=".")
        self._ctr("images", "import", "--no-unpack", "--all-platforms", "--base-name", "x", str(archive))
        archive.unlink()

    def unpack(self, layout: Path, tag: str) -> Unpacked:
        """The snapshot of an image that was pulled. A folder for `native`, a mount for `overlayfs`."""
        manifest, diff_ids = _manifest(layout, tag)
        options = ("snapshots", "--snapshotter", self._snapshotter)
        done = self._ctr(*options, "unpack", manifest, check=False)
        if done.status != 0:
            return Unpacked(None, done.error_text)
        key = f"view-{next(self._numbers)}"
        view = self._ctr(*options, "view", "--mounts", key, _chain(diff_ids)).stdout
        (mount,) = json.loads(view)
        if mount["Type"] == "bind":
            return Unpacked(Path(mount["Source"]))
        target = self._socket.parent / key
        target.mkdir()
        settings = ",".join(mount["Options"])
        subprocess.run(
            ["mount", "-t", mount["Type"], "-o", settings, mount["Source"], target], check=True, timeout=60
        )
        return Unpacked(target)

    def _ctr(self, *arguments: str, check: bool = True) -> Completed:
        return run(
            [self._program, "-a", self._socket, "-n", _NAMESPACE, *arguments],
            deadline_seconds=_DEADLINE_SECONDS,
            check=check,
        )


def program_or_skip(name: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("owners, devices and xattrs need root")
    try:
        return find_program(name)
    except UnavailableError as error:
        pytest.skip(error.message)


def _proxy_lines(proxy: tuple[str, Path] | None) -> str:
    if proxy is None:
        return ""
    name, socket = proxy
    return f'[proxy_plugins.{name}]\ntype = "snapshot"\naddress = "{socket}"\n'


def _version(done: Completed) -> str:
    match = re.search(r"\d+\.\d+\.\d+", done.text)
    return match[0] if match else "unknown"


def _manifest(layout: Path, tag: str) -> tuple[str, list[str]]:
    for descriptor in json.loads((layout / "index.json").read_bytes())["manifests"]:
        if descriptor["annotations"]["org.opencontainers.image.ref.name"] == tag:
            manifest = _blob(layout, descriptor["digest"])
            configuration = _blob(layout, manifest["config"]["digest"])
            return descriptor["digest"], configuration["rootfs"]["diff_ids"]
    raise AssertionError(f"no image {tag} in {layout}")


def _blob(layout: Path, digest: str) -> dict[str, dict[str, str]]:
    document: dict[str, dict[str, str]] = json.loads(
        (layout / "blobs" / digest.replace(":", "/")).read_bytes()
    )
    return document


def _chain(diff_ids: list[str]) -> str:
    chain = diff_ids[0]
    for diff_id in diff_ids[1:]:
        chain = "sha256:" + hashlib.sha256(f"{chain} {diff_id}".encode()).hexdigest()
    return chain
