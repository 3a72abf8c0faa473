"""What a guest is made of: Debian's cloud kernel, a small root of the host's release, criu and this checkout.

Root and kernel are kept for later runs below /var/tmp, by what they were made from; the disk with the
checkout is made once a session.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import lzma
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import REPOSITORY

_HERE = Path(__file__).resolve().parent
_KEPT = Path("/var/tmp/coldstart-test-machines")  # outlives a reboot; ours alone, see below
_PACKAGES = "python3,runc,nftables,iproute2,fuse3,kmod,procps,mount"
_KERNEL = "linux-image-cloud-amd64"
_DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4")
_COMPONENTS = (
    "coldstart_cli",
    "commands/coldstart_commands",
    "fs/coldstart_fs",
    "health/coldstart_health",
    "host/coldstart_host",
    "launch/coldstart_launch",
    "pool/coldstart_pool",
    "snapshot/coldstart_snapshot",
)
_DEADLINES = (
    ("coldstart_host/gpu_probe.py", "PROBE_DEADLINE_SECONDS = 4.0", "PROBE_DEADLINE_SECONDS = 120.0"),
    ("coldstart_snapshot/criu/program.py", "_QUERY_SECONDS = 20.0", "_QUERY_SECONDS = 300.0"),
    ("coldstart_fs/mounts/mount.py", "timeout_seconds: float = 30.0", "timeout_seconds: float = 300.0"),
)
_LAUNCHER = """#!/usr/bin/python3
import sys
from coldstart_cli.entry import main
sys.exit(main())
"""


@dataclass(frozen=True)
class GuestFiles:
    """The files that QEMU boots."""

    kernel: Path
    initramfs: Path
    root: Path
    checkout: Path


def why_no_guest() -> str | None:
    """Why no guest can be built and booted here, None when it can."""
    if os.geteuid() != 0:
        return "a guest's root is built as root"
    if os.uname().machine != "x86_64":
        return f"the guest's kernel is x86_64's, this host is {os.uname().machine}"
    release = _os_release()
    if release.get("ID") != "debian":
        return f"the guest's kernel is Debian's, this host is {release.get('ID', 'unknown')}"
    for program in ("qemu-system-x86_64", "debootstrap", "mke2fs", "depmod", "criu", "runc"):
        if _program(program) is None:
            return f"program is not installed: {program} (tools/setup.sh --full)"
    return None


def make_guest_files(session_folder: Path) -> GuestFiles:
    """Build what is not there yet; skips where the archive cannot be reached."""
    deb_name, deb_version = _kernel_package()
    parts = [_os_release()["VERSION_CODENAME"], _PACKAGES, deb_name, deb_version]
    parts += [(_HERE / name).read_text() for name in ("guest_files.py", "initramfs.sh")]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    kept = _KEPT / key
    with _locked():
        if not kept.exists():
            _build_kept(kept, deb_name)
    checkout = session_folder / "checkout.ext4"
    _build_checkout(session_folder / "checkout", checkout)
    return GuestFiles(kept / "vmlinuz", kept / "initramfs", kept / "root.ext4", checkout)


@contextmanager
def _locked() -> Iterator[None]:
    _KEPT.mkdir(mode=0o700, exist_ok=True)
    facts = _KEPT.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        pytest.skip(f"folder is not ours: {_KEPT}")
    with (_KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_kept(kept: Path, deb_name: str) -> None:
    for other in _KEPT.iterdir():  # of another kernel, or left half made
        if other.is_dir():
            shutil.rmtree(other)
    making = _KEPT / "making"
    making.mkdir()
    # installed on this host, they would take its boot loader and its busybox over
    packages = [deb_name, "busybox-static"]
    _say(["apt-get", "-o", "APT::Sandbox::User=root", "download", *packages], 300, folder=making)
    for package in making.glob("*.deb"):
        _say(["dpkg-deb", "-x", str(package), str(making / "packages")], 120)
        package.unlink()
    modules = next(path for path in making.glob("packages/**/lib/modules") if path.is_dir())
    release = next(modules.iterdir()).name
    root = making / "root"
    mirror = subprocess.run(
        ["sh", REPOSITORY / "tools/apt-mirror.sh"], capture_output=True, text=True, timeout=60, check=False
    )
    if mirror.returncode:
        pytest.skip(f"no mirror: {mirror.stderr.strip()}")
    debootstrap = [
        "unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={_PACKAGES}",
        _os_release()["VERSION_CODENAME"], str(root), mirror.stdout.strip(),
    ]  # fmt: skip
    _say(debootstrap, 900)
    for folder in (
        "var/cache/apt",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/locale",
        "usr/share/man",
    ):
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "opt/coldstart").mkdir(parents=True)
    (root / "root/.profile").unlink(missing_ok=True)
    # criu's libraries beside the distribution's own, found after those
    (root / "etc/ld.so.conf.d/zz-coldstart.conf").write_text("/opt/coldstart/lib\n")
    (root / "usr/lib/python3/dist-packages/coldstart.pth").write_text("/opt/coldstart/python\n")
    for name in ("coldstart", "criu"):
        (root / f"usr/local/bin/{name}").symlink_to(f"/opt/coldstart/bin/{name}")
    shutil.copytree(modules / release, root / "usr/lib/modules" / release, symlinks=True)
    _say(["depmod", "-b", str(root), release], 60)
    busybox = next(path for path in making.glob("packages/**/bin/busybox") if path.is_file())
    _write_initramfs(making / "initramfs", root / "usr/lib/modules" / release, busybox)
    shutil.copy2(next(making.glob("packages/boot/vmlinuz-*")), making / "vmlinuz")
    _make_disk(root, making / "root.ext4", "3G")
    for folder in ("packages", "root"):
        shutil.rmtree(making / folder)
    making.rename(kept)


def _build_checkout(folder: Path, disk: Path) -> None:
    """criu with its libraries, this checkout, and the packages that it imports in the guest."""
    python, library, programs = folder / "python", folder / "lib", folder / "bin"
    for made in (python, library, programs):
        made.mkdir(parents=True)
    unused = shutil.ignore_patterns("__pycache__")
    for component in _COMPONENTS:
        shutil.copytree(REPOSITORY / component, python / Path(component).name, ignore=unused)
    _give_time(python)
    for distribution in _distributions("coldstart", set()):
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and file.suffix not in {".pth", ".pyc"} and source.is_file():
                target = python / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    _say([str(REPOSITORY / ".venv/bin/python"), "-m", "compileall", "-q", str(python)], 300)
    criu = _program("criu")
    assert criu is not None
    shutil.copy2(criu, programs / "criu")
    listing = subprocess.run(["ldd", criu], capture_output=True, text=True, timeout=60, check=True).stdout
    for needed in re.findall(r"=> (/\S+) \(0x", listing):
        if not os.path.basename(needed).startswith("libc.so"):
            shutil.copy2(needed, library)
    (programs / "coldstart").write_text(_LAUNCHER)
    (programs / "coldstart").chmod(0o755)
    for name in ("agent.py", "init.sh"):
        shutil.copy2(_HERE / name, folder)
    _make_disk(folder, disk, "256M")
    shutil.rmtree(folder)


def _give_time(python: Path) -> None:
    """Emulated, on a busy host, a start of Python takes seconds, which these deadlines do not expect."""
    for name, text, longer in _DEADLINES:
        content = (python / name).read_text()
        assert text in content, f"{name} has no `{text}`"
        (python / name).write_text(content.replace(text, longer))


def _distributions(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """A package and what it requires without extras, and `image` of our own."""
    name = name.lower().replace("_", "-")
    if name in seen:
        return
    seen.add(name)
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    yield distribution
    for requirement in distribution.requires or ():
        match = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)", requirement)
        if match and (extra is None or (name == "coldstart" and extra[1] == "image")):
            yield from _distributions(match[0], seen)


def _write_initramfs(archive: Path, modules: Path, busybox: Path) -> None:
    """An archive in cpio's `newc` format, as the kernel unpacks it."""
    entries: list[tuple[str, int, bytes]] = [
        *((folder, 0o040755, b"") for folder in ("bin", "dev", "modules", "proc", "root")),
        ("bin/busybox", 0o100755, busybox.read_bytes()),
        ("init", 0o100755, (_HERE / "initramfs.sh").read_bytes()),
    ]
    order = []
    for module in _with_dependencies(modules):
        content = (modules / module).read_bytes()
        name = Path(module).name
        if name.endswith(".xz"):
            name, content = name.removesuffix(".xz"), lzma.decompress(content)
        order.append(name)
        entries.append((f"modules/{name}", 0o100644, content))
    entries.append(("modules/order", 0o100644, ("\n".join(order) + "\n").encode()))
    with archive.open("wb") as out:
        for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
            fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
            out.write(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))


def _with_dependencies(modules: Path) -> list[str]:
    """Paths of the modules that the disks need, each after those it depends on; built-in ones are none."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    found: list[str] = []

    def add(path: str) -> None:
        for other in needs[path]:
            add(other)
        if path not in found:
            found.append(path)

    for wanted in _DISK_MODULES:
        for path in needs:
            if Path(path).name.split(".")[0] == wanted:
                add(path)
    return found


def _make_disk(folder: Path, disk: Path, size: str) -> None:
    _say(["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", str(folder), str(disk), size], 300)


def _kernel_package() -> tuple[str, str]:
    """The package that holds the kernel, which the one of a steady name depends on, and its version."""
    listing = subprocess.run(
        ["apt-cache", "depends", "--important", _KERNEL],
        capture_output=True, text=True, timeout=60, check=False,
    ).stdout  # fmt: skip
    match = re.search(r"Depends: (linux-image-\S+)", listing)
    if match is None:
        pytest.skip(f"apt knows no package {_KERNEL}; run apt-get update")
    policy = subprocess.run(
        ["apt-cache", "policy", match[1]], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    version = re.search(r"Candidate: (\S+)", policy)
    return match[1], version[1] if version else ""


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip('"') for name, _, value in pairs}


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


def _say(arguments: list[str], deadline_seconds: float, folder: Path | None = None) -> None:
    """Run one step of the build; its failure is a skip, as the archive may be out of reach."""
    done = subprocess.run(
        arguments,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=deadline_seconds,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no guest: {' '.join(arguments[:3])}: {done.stdout.decode(errors='replace')[-400:]}")
