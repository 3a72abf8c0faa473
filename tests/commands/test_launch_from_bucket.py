"""The whole chain with an image that lies in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

from fs.servers import s3_server
from replicas import Replica
from small_root import ask


def test_a_replica_starts_from_a_bucket_and_restarts_when_the_bucket_is_gone(
    replica: Replica, server_store: tuple[Path, str], tmp_path: Path
) -> None:
    coldstart, (folder, digest) = replica.coldstart, server_store
    with s3_server(tmp_path) as server:
        server.make_bucket("images")
        coldstart.environment |= server.environment
        copied = coldstart("image", "copy", "server", "s3://images/production", "--store", folder)
        assert copied.status == 0, copied.stderr
        coldstart.environment["COLDSTART_STORE"] = "s3://images/production"
        assert digest[7:19] in coldstart("image", "ls").stdout
        first = replica.launch("--detach", "--json", "--snapshot-when-ready")
        assert first.status == 0, first.stderr
        assert json.loads(first.stdout)["method"] == "cold"
        assert ask(replica.port, "/environment") == "hello"
        (mount,) = json.loads(coldstart("image", "status", "--json").stdout)["mounts"]
        assert mount["store"] == "s3://images/production"
        assert replica.stop().status == 0
    again = replica.launch("--detach", "--json")
    assert again.status == 0, again.stderr
    assert "going on with what the cache knows of the name, as of" in " ".join(again.stderr.split())
    assert json.loads(again.stdout)["method"] == "restore"
    assert ask(replica.port, "/environment") == "hello"
    assert replica.stop().status == 0
