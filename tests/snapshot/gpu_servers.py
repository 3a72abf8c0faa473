"""The GPU server of the stand-ins, as a plain process and in a container."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.containers.container import RunningContainer
from coldstart_snapshot.containers.new_bundle import ContainerSpec, Mount
from conftest import wait_until
from snapshot.servers import PYTHON, Lab, Overlay, ask, free_port, laboratory, url
from stand_ins.cuda_host import CudaHost

SERVER = Path(__file__).resolve().parent.parent / "stand_ins" / "gpu_server.py"
MIB = 6  # weights and KV cache


@dataclass
class GpuServer:
    """One running server: what it answered first, to be compared with what it answers later."""

    port: int
    pid: int
    log: Path
    container: RunningContainer | None = None
    overlay: Overlay | None = None

    def answer(self, text: str = "hello") -> str:
        return ask(self.port, f"/answer?{text}")

    def cache(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask(self.port, "/cache"))
        return found

    def post(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path)
            assert connection.getresponse().status == 200
        finally:
            connection.close()


class GpuLab(Lab):
    """A laboratory with GPUs."""

    host: CudaHost

    def start_gpu_process(self, device: int = 0) -> GpuServer:
        port = free_port()
        log = self.tmp_path / f"gpu-{port}.log"
        pid_file = self.tmp_path / f"gpu-{port}.pid"
        # a shell in between, so that nobody of ours has to reap the server
        command = f"setsid {PYTHON} {SERVER} {port} {device} </dev/null >{log} 2>&1 & echo $! >{pid_file}"
        environment = dict(os.environ) | self.host.environment
        subprocess.run(["sh", "-c", command], check=True, timeout=60, close_fds=True, env=environment)
        pid = int(pid_file.read_text())
        self.pids.append(pid)
        wait_until(lambda: os.getsid(pid) == pid, "the server leads its session")
        wait_ready(url(port), 60, pid=pid)
        self.host.uses(pid, MIB, device)
        return GpuServer(port, pid, log)

    def start_gpu_container(self, name: str = "gpu") -> GpuServer:
        overlay = self.overlay(name).mount()
        port = free_port()
        spec = ContainerSpec(
            id=self.id(name),
            root=overlay.root,
            arguments=(PYTHON, "-c", SERVER.read_text(), str(port)),
            environment={
                "PATH": "/usr/bin:/bin",
                "LD_LIBRARY_PATH": "/opt",
                "CUDA_STAND_IN_VRAM": "/mnt",
            },
            log=self.tmp_path / f"{name}.log",
            mounts=(
                Mount(Path(self.host.cuda.libraries), "/opt"),
                Mount(self.host.cuda.vram, "/mnt", read_only=False),
            ),
        )
        container = self.run(spec)
        wait_ready(url(port), 60, pid=container.pid)
        self.host.uses(container.pid, MIB)
        return GpuServer(port, container.pid, spec.log, container, overlay)


@contextmanager
def gpu_laboratory(
    tmp_path: Path, patch: pytest.MonkeyPatch, backend: str = "driver-api"
) -> Iterator[GpuLab]:
    host = CudaHost(tmp_path, patch, backend)
    with laboratory(tmp_path) as plain:
        lab = GpuLab(tmp_path, plain.config)
        lab.host = host
        try:
            yield lab
        finally:
            lab.close()
            host.cuda.close()


__all__ = ["MIB", "GpuLab", "GpuServer", "gpu_laboratory"]
