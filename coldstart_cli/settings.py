"""Every configurable value: key, type, meaning, default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coldstart_cli import paths

Scalar = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True)
class Setting:
    """One configurable value. Its TOML key may be dotted; `default` is computed when it is needed.

    A tuple is a list of texts; in a variable they are separated by spaces.
    """

    key: str
    kind: type[str | int | float | bool | tuple[str, ...]]
    meaning: str
    default: Callable[[], Scalar]
    since: str = "0.1.0"
    folder: bool = False

    @property
    def variable(self) -> str:
        return "COLDSTART_" + self.key.upper().replace(".", "_")


def _text(value: str) -> Callable[[], Scalar]:
    return lambda: value


def _number(value: float) -> Callable[[], Scalar]:
    return lambda: value


def _switch(value: bool) -> Callable[[], Scalar]:
    return lambda: value


def _nothing() -> Scalar:
    return None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "state_dir",
        str,
        "folder for snapshots, the default store and quarantine",
        lambda: str(paths.default_state_folder()),
        folder=True,
    ),
    Setting(
        "cache_dir",
        str,
        "folder for chunks that can be fetched again",
        lambda: str(paths.default_cache_folder()),
        folder=True,
    ),
    Setting(
        "run_dir",
        str,
        "folder for locks, sockets and mount records",
        lambda: str(paths.default_run_folder()),
        folder=True,
    ),
    Setting(
        "store",
        str,
        "image store: a folder or a URL (file, http, https, s3, gs, az); default `store` in the state folder",
        _nothing,
    ),
    Setting(
        "tiers",
        tuple,
        "HTTP caches to ask for images before the store, in this order: URL, or URL,NAME=VALUE,... with "
        "concurrency, connect_timeout_seconds, read_timeout_seconds, retries",
        lambda: (),
    ),
    Setting(
        "cache.quota_bytes",
        int,
        "what copies of packs may take of the cache's disk; unset: no limit but the next one",
        _nothing,
    ),
    Setting(
        "cache.free_bytes",
        int,
        "what the cache leaves free on its disk; unset: a twentieth of it, 10 GiB at most",
        _nothing,
    ),
    Setting(
        "lock_wait_seconds", float, "how long to wait for a lock that another process holds", _number(0.0)
    ),
    Setting("programs.criu", str, "criu program, name or path", _text("criu")),
    Setting("programs.runc", str, "runc program, name or path", _text("runc")),
    Setting("programs.skopeo", str, "skopeo program, name or path", _text("skopeo")),
    Setting(
        "programs.cuda_checkpoint", str, "cuda-checkpoint program, name or path", _text("cuda-checkpoint")
    ),
    Setting("programs.minisign", str, "minisign program, name or path", _text("minisign")),
    Setting("programs.dcgmi", str, "DCGM's dcgmi program, name or path", _text("dcgmi")),
    Setting("programs.journalctl", str, "systemd's journalctl program, name or path", _text("journalctl")),
    Setting(
        "health.kernel_log",
        str,
        "kernel log: a device like /dev/kmsg, `journal`, or `none` to judge without it",
        _text("/dev/kmsg"),
    ),
    Setting("health.expect_gpus", int, "GPUs this host should have; unset: what the last boot had", _nothing),
    Setting(
        "health.inventory",
        str,
        "file with the GPUs this host should have, as `inventory.json` in the state folder; unset: none",
        _nothing,
    ),
    Setting(
        "health.warn_percent", float, "CPU, memory or disk use that makes a host degraded", _number(80.0)
    ),
    Setting(
        "health.fail_percent",
        float,
        "CPU, memory or disk use that takes a host out; above 100: none does",
        _number(90.0),
    ),
    Setting(
        "health.auto_release",
        bool,
        "whether a GPU leaves the quarantine without a person, once its cause is shown to be gone",
        _switch(True),
    ),
    Setting(
        "health.clean_runs",
        int,
        "clean runs in a row that release a GPU which a person should look at; at least 1",
        _number(3),
    ),
    Setting(
        "health.clean_interval_seconds", float, "least time between two clean runs that count", _number(60.0)
    ),
    Setting(
        "health.repair_limit",
        int,
        "resets, or reboots, within the window after which a GPU is to be replaced; 0: no limit",
        _number(2),
    ),
    Setting("health.repair_window_days", float, "how long a reset or a reboot counts", _number(30.0)),
    Setting(
        "pool.refill_file",
        str,
        "file with the commands that order machines when the pool is taken from; unset: none are ordered",
        _nothing,
    ),
    Setting(
        "pool.plan",
        str,
        "plan of `pool plan` that says which offer is ordered first; unset: the order of the refill file",
        _nothing,
    ),
    Setting(
        "pool.supply_table",
        str,
        "table with a row for each attempt to get a machine; unset: `pool/supply.csv` in the state folder",
        _nothing,
    ),
    Setting(
        "snapshot.stage_dir",
        str,
        "folder on a tmpfs that `snap restore --stage-only` copies snapshots to; unset: they are "
        "read into the page cache",
        _nothing,
        folder=True,
    ),
    Setting(
        "snapshot.verify",
        str,
        "when a restore computes the digests of a snapshot: `first` (once for each copy and boot), `always` "
        "or `never`; sizes, and criu's small images, are checked each time",
        _text("first"),
    ),
    Setting(
        "image.fetch",
        str,
        "what mounts fetch: `lazy` (on demand), `all` (everything, in the background), or `auto`: on demand, "
        "and everything once that turns out to lose",
        _text("auto"),
    ),
    Setting("image.trace_record", bool, "whether mounts record what is read of them", _switch(True)),
    Setting(
        "image.trace_replay",
        str,
        "how far mounts replay traces: `pages` (page cache), `cache` (local cache) or `off`",
        _text("pages"),
    ),
    Setting("image.trace_seconds", float, "how long a recording goes on from its first read", _number(300.0)),
    Setting(
        "image.trace_memory_percent",
        float,
        "part of the spare memory that a replay may fill with page cache",
        _number(25.0),
    ),
    Setting(
        "image.trace_audit_every",
        int,
        "partial recordings to a complete one, after which a replay stops at the local cache; 0: never",
        _number(20),
    ),
    Setting(
        "image.trace_publish", bool, "whether recordings are published in the store at once", _switch(False)
    ),
    Setting(
        "image.lease",
        bool,
        "whether mounts tell a bucket, or a store on a network file system, that their image is in use",
        _switch(True),
    ),
    Setting(
        "snapshot.store",
        str,
        "store to fetch snapshots from that this host lacks: a folder or a URL, as `store`; unset: none",
        _nothing,
    ),
    Setting(
        "snapshot.credentials",
        str,
        "file of NAME=VALUE lines (AWS_*, GOOGLE_*, AZURE_*) that count for stores of snapshots alone; "
        "unset: the environment's",
        _nothing,
    ),
    Setting(
        "snapshot.public_key",
        str,
        "minisign's public key, or an absolute path to it, whose signature makes a fetched snapshot trusted",
        _nothing,
    ),
    Setting(
        "cdi_folders",
        tuple,
        "folders with CDI specifications, which name devices; the later ones win",
        lambda: ("/etc/cdi", "/var/run/cdi"),
    ),
    Setting("snapshot.create_timeout_seconds", float, "deadline of one criu dump", _number(600.0)),
    Setting(
        "snapshot.cuda_backend",
        str,
        "way to the NVIDIA driver: `driver-api` (its checkpoint API), `cuda-checkpoint` (the program), or "
        "`auto`: the first that this host has",
        _text("auto"),
    ),
    Setting(
        "snapshot.gpu_allow",
        tuple,
        "guards of GPU snapshots that warn and do not refuse: communication, driver, "
        "gpu-memory, host-memory, managed-memory, mig, model, mps, several-gpus",
        lambda: (),
    ),
    Setting("snapshot.restore_timeout_seconds", float, "deadline of one criu restore", _number(600.0)),
)
