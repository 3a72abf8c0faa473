"""Another machine: a guest under QEMU's software emulation, with commands and files through a virtio port.

KVM is never used: the CPU must be the model that the test names, whatever this host is.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from machines.guest_files import GuestFiles

_BOOT_SECONDS = 180.0
_CONSOLE_LIMIT_BYTES = 256 << 10
_ANSWER_GRACE_SECONDS = 60.0  # above a command's own deadline, for what it said to come through the port


@dataclass(frozen=True)
class GuestResult:
    """What one command in the guest left."""

    status: int
    stdout: str
    stderr: str
    seconds: float


class Machine:
    """A running guest. `run` executes a command in it, `send` and `fetch` carry files and folders."""

    def __init__(
        self,
        files: GuestFiles,
        *,
        cpu: str = "Haswell",
        memory_mib: int = 1536,
        processors: int = 2,
        lifetime_seconds: float = 900,
    ) -> None:
        self.environment: dict[str, str] = {}  # of every command
        self._console = bytearray()
        self._folder = tempfile.TemporaryDirectory(prefix="coldstart-machine-")
        path = Path(self._folder.name) / "port"
        disk = "file={},if=none,format=raw,id={},snapshot=on"
        options = f"""-accel tcg,thread=multi -cpu {cpu} -smp {processors} -m {memory_mib}
            -nodefaults -no-user-config -no-reboot -display none -serial stdio
            -kernel {files.kernel} -initrd {files.initramfs}
            -drive {disk.format(files.root, "root")} -device virtio-blk-pci,drive=root,addr=4
            -drive {disk.format(files.checkout, "code")} -device virtio-blk-pci,drive=code,addr=5
            -chardev socket,id=port,path={path},server=on,wait=off
            -device virtio-serial-pci -device virtserialport,chardev=port,name=coldstart
            -device virtio-rng-pci"""
        # page table isolation costs an emulated machine much of its speed; Linux 6.1 measures the counter of
        # a processor that is often interrupted wrongly, and then its seconds pass twice as fast as ours
        kernel_options = [
            "-append",
            "console=ttyS0 panic=-1 loglevel=4 mitigations=off clocksource=hpet tsc=unstable",
        ]
        self._process = subprocess.Popen(
            # a test run that is killed takes its machines with it
            ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *options.split(), *kernel_options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"TMPDIR": "/var/tmp"},  # where the disks' changes go, never to memory
        )
        self._reader = threading.Thread(target=self._read_console, daemon=True)
        self._reader.start()
        self._end = threading.Timer(lifetime_seconds, self._kill)
        self._end.daemon = True
        self._end.start()
        self._port = socket.socket(socket.AF_UNIX)
        try:
            self._connect(path)
        except BaseException:
            self.close()
            raise

    def run(
        self,
        command: str | list[str | Path],
        *,
        deadline_seconds: float = 120,
        environment: dict[str, str] | None = None,
        stdin: bytes = b"",
    ) -> GuestResult:
        """Run a command, text in a shell; one that passes the deadline is killed and fails the test."""
        header, output, errors = self._exchange(command, deadline_seconds, environment or {}, stdin)
        return GuestResult(
            header["status"],
            output.decode("utf-8", "replace"),
            errors.decode("utf-8", "replace"),
            header["seconds"],
        )

    def check(self, command: str | list[str | Path], **options: Any) -> str:
        """Run a command that must succeed; what it wrote to stdout."""
        result = self.run(command, **options)
        assert result.status == 0, (
            f"{command}: {result.status}\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
        )
        return result.stdout

    def send(self, source: Path, target: str) -> None:
        """Copy a file or folder of the host into the guest, to the path `target`."""
        base = ["tar", "--sparse", "--numeric-owner", "--xattrs", "-C", str(source.parent), "-c", source.name]
        packed = subprocess.run(base, capture_output=True, timeout=120, check=True).stdout
        quoted, name = shlex.quote(target), shlex.quote(source.name)
        self.check(
            f"t=$(mktemp -d -p $(dirname {quoted})) && tar --xattrs -C $t -x"
            f" && mv -T $t/{name} {quoted} && rmdir $t",
            stdin=packed,
        )

    def fetch(self, source: str, target: Path) -> Path:
        """Copy a file or folder of the guest to the path `target` of the host."""
        folder, name = os.path.split(source)
        command = ["tar", "--sparse", "--numeric-owner", "--xattrs", "-C", folder, "-c", name]
        header, packed, errors = self._exchange([*command], 120, {}, b"")
        assert header["status"] == 0, errors.decode(errors="replace")
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            subprocess.run(["tar", "--xattrs", "-C", scratch, "-x"], input=packed, timeout=120, check=True)
            os.rename(Path(scratch) / name, target)
        return target

    @property
    def console(self) -> str:
        """The last that the guest's kernel and QEMU said."""
        return self._console.decode("utf-8", "replace")

    def close(self) -> None:
        self._end.cancel()
        self._port.close()
        self._kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._reader.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read_console(self) -> None:
        assert self._process.stdout is not None
        while part := os.read(self._process.stdout.fileno(), 65536):
            self._console += part
            del self._console[:-_CONSOLE_LIMIT_BYTES]

    def _connect(self, path: Path) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        while True:
            try:
                self._port.connect(str(path))
                break
            except OSError:
                self._must_run(deadline)
                time.sleep(0.02)
        hello = json.loads(self._line(deadline))
        assert hello == {"ready": True}, hello

    def _must_run(self, deadline: float) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"the machine ended: {self.console[-3000:]}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the machine does not answer: {self.console[-3000:]}")

    def _exchange(
        self,
        command: str | list[str | Path],
        deadline_seconds: float,
        environment: dict[str, str],
        stdin: bytes,
    ) -> tuple[dict[str, Any], bytes, bytes]:
        arguments = (
            ["/bin/sh", "-c", command] if isinstance(command, str) else [str(part) for part in command]
        )
        request = {
            "arguments": arguments,
            "deadline_seconds": deadline_seconds,
            "environment": self.environment | environment,
            "stdin_bytes": len(stdin),
        }
        deadline = time.monotonic() + deadline_seconds + _ANSWER_GRACE_SECONDS
        self._port.settimeout(deadline_seconds + _ANSWER_GRACE_SECONDS)
        self._port.sendall(json.dumps(request).encode() + b"\n" + stdin)
        header = json.loads(self._line(deadline))
        output = self._exactly(header["stdout_bytes"], deadline)
        errors = self._exactly(header["stderr_bytes"], deadline)
        assert not header["timed_out"], (
            f"in the guest after {deadline_seconds} s: {command}\n{errors.decode(errors='replace')[-3000:]}"
        )
        return header, output, errors

    def _line(self, deadline: float) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self._exactly(1, deadline)
        return line

    def _exactly(self, size_bytes: int, deadline: float) -> bytes:
        parts = []
        while size_bytes:
            self._must_run(deadline)
            self._port.settimeout(1)
            try:
                part = self._port.recv(min(size_bytes, 1 << 20))
            except TimeoutError:
                continue
            assert part, f"the machine ended: {self.console[-3000:]}"
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)
