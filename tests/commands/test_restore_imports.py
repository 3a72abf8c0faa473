"""What a restore does not need before runc begins is not imported before: it would be waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import Coldstart
from replicas import Replica
from small_root import ask
from snapshot.servers import laboratory

HEAVY = {
    "asyncio",
    "concurrent.futures",
    "hashlib",
    "http.client",
    "logging",
    "psutil",
    "pynvml",
    "rich",
    "ssl",
    "tomli_w",
    "unicodedata",
    "coldstart_cli.origin",
    "coldstart_fs.looking.configuration",
    "coldstart_fs.mounts.mount",
    "coldstart_health",
    "coldstart_host.cpu_levels",
    "coldstart_host.gpu",
    "coldstart_launch.outcome",
    "coldstart_launch.runtime",
    "coldstart_launch.streaming",
    "coldstart_launch.supervise",
    "coldstart_pool",
    "coldstart_snapshot.answers.golden",
    "coldstart_snapshot.capturing",
    "coldstart_snapshot.containers.cdi",
    "coldstart_snapshot.containers.new_bundle",
    "coldstart_snapshot.cpu.caps",
    "coldstart_snapshot.criu.budget",
    "coldstart_snapshot.criu.log",
    "coldstart_snapshot.cuda",
    "coldstart_snapshot.distribution",
    "coldstart_snapshot.engines",
    "coldstart_snapshot.kept.cold",
    "coldstart_snapshot.kept.origin",
    "coldstart_snapshot.kept.restore_command",
    "coldstart_snapshot.processes.secrets_found",
    "coldstart_snapshot.restoring.fleet",
    "coldstart_snapshot.restoring.lazy",
    "coldstart_snapshot.restoring.read_ahead",
    "coldstart_snapshot.restoring.stage",
}
# the command as it is; what is imported by the time that runc is started goes into a file
RECORDING = """
import json, subprocess, sys

class Recording(subprocess.Popen):
    def __init__(self, arguments, *rest, **options):
        if arguments[0].endswith("/runc") and "restore" in arguments:
            with open(RECORD, "w") as record:
                json.dump(sorted(sys.modules), record)
        super().__init__(arguments, *rest, **options)

RECORD = sys.argv.pop()
subprocess.Popen = Recording
from coldstart_cli.entry import main
main()
"""


def test_a_restore_begins_without_what_only_others_need(replica: Replica, tmp_path: Path) -> None:
    record = tmp_path / "modules"
    with laboratory(tmp_path) as lab:
        container, overlay, log = lab.start("source", replica.port)
        ask(replica.port)
        _captured(replica.coldstart, container.id, f"http://127.0.0.1:{replica.port}/health")
        lab.erase(container, overlay, log)
        restore = ["snap", "restore", "plain", "--id", replica.name]
        # the first leaves a verdict on the host, beside which the second restores
        for _ in range(2):
            record.unlink(missing_ok=True)
            done = subprocess.run(
                [sys.executable, "-c", RECORDING, *restore, "--no-fallback", "--detach", str(record)],
                env=replica.coldstart.environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            try:
                assert done.returncode == 0, done.stderr
                assert ask(replica.port)
            finally:
                assert replica.coldstart(*restore, "--stop").status == 0
    assert HEAVY & set(json.loads(record.read_text())) == set()


def _captured(coldstart: Coldstart, container_id: str, url: str) -> None:
    created = coldstart("snap", "create", "plain", "--container", container_id, "--ready-url", url)
    assert created.status == 0, created.stderr
