"""Variants made up of small files, for tests that need no criu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_snapshot.containers.privileges import privileges_of
from coldstart_snapshot.containers.roots import RootKind, RootSource
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.cpu.match import required_flags
from coldstart_snapshot.cpu.variants import variant_name
from coldstart_snapshot.criu.zero_pages import PagesFacts
from coldstart_snapshot.cuda.gpu_state import GpuDevice, GpuProcess, GpuState
from coldstart_snapshot.kept.manifest import (
    Manifest,
    ReadyCheck,
    TreeMember,
    write_manifest,
)
from coldstart_snapshot.kept.verify import digest_files

IMAGE = "blake3:" + "5a" * 32


def manifest_of(name: str, cpu: CpuFacts | None = None, caps: CapProof | None = None) -> Manifest:
    """A manifest in which every table is present."""
    cpu = cpu or read_cpu_facts()
    return Manifest(
        name=name,
        variant=variant_name(cpu, caps),
        created="2026-01-02T03:04:05Z",
        coldstart_version="0.1.0",
        kind="container",
        cpu=cpu,
        required_flags=required_flags(cpu, caps),
        caps=caps,
        kernel_release="6.18.3",
        kernel_version="#1 SMP",
        criu_version="4.2.1",
        criu_path="/usr/local/sbin/criu",
        criu_options=("tcp-established", "network-lock nftables"),
        root_pid=1,
        command='server --name "größe"',
        tree=(TreeMember(1, 0, "server", 3, gpu=True), TreeMember(7, 1, "worker", 1, gpu=False)),
        files=(),
        runc_version="1.1.5",
        root=RootSource(RootKind.IMAGE, Path("/mnt/image"), image=IMAGE, name="web", store="/srv/store"),
        listen=("127.0.0.1:8000",),
        output_keys=("file[1b:20e074]",),
        ready=ReadyCheck("http://127.0.0.1:8000/", 5.0),
        gpu=GpuState(
            "580.65", (1,), (GpuDevice("GPU-1", "H200", 4096),), (GpuProcess(1, "GPU-1", 4096),), "driver-api"
        ),
        pages=PagesFacts(2 << 20, 8192, 2 << 20),
        timings={"dump": 0.25},
        privileges=privileges_of({}),
        secrets=("HF_TOKEN",),
    )


def make_variant(
    state_folder: Path, name: str, cpu: CpuFacts | None = None, caps: CapProof | None = None
) -> tuple[Path, Manifest]:
    """Publish a made-up variant; its images are no images."""
    manifest = manifest_of(name, cpu, caps)
    folder = state_folder / "snapshots" / name / manifest.variant
    (folder / "images").mkdir(parents=True)
    (folder / "bundle").mkdir()
    (folder / "images" / "inventory.img").write_bytes(b"inventory")
    (folder / "images" / "pages-1.img").write_bytes(bytes(range(256)) * 8192)
    (folder / "bundle" / "config.json").write_text("{}")
    complete = replace(manifest, files=digest_files(folder))
    write_manifest(folder, complete)
    return folder, complete
