"""The chain: health beside mount beside verification, then restore or cold start, then ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, NegativeAnswer, NotFoundError
from coldstart_cli.files import remove_tree
from coldstart_launch.beside import Beside
from coldstart_launch.placement import concerning, require_place
from coldstart_launch.replica import Replica, ReplicaRecord, last_words
from coldstart_launch.roots import Root
from coldstart_launch.runtime import container_spec, snapshot_difference
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Stage, Waterfall

# the check promises five; a host that stands still gets more, and no launch waits for ever
_HEALTH_SECONDS = 120.0

if TYPE_CHECKING:
    from coldstart_health.verdict import HealthReport
    from coldstart_snapshot.container import RunningContainer
    from coldstart_snapshot.restore import RestorePlan


@dataclass(frozen=True)
class LaunchOptions:
    """How to launch: `cold` never restores; without `fallback` a failed restore is the end."""

    cold: bool = False
    fallback: bool = True
    snapshot_when_ready: bool = False


@dataclass(frozen=True)
class Conversation:
    """Where the chain says what it does; commands hand it in."""

    note: Callable[[str], None]
    warning: Callable[[str], None]


@dataclass(frozen=True)
class Launched:
    """A ready replica: how it came up, and where the time went."""

    name: str
    method: str
    variant: str | None
    image: str
    pid: int
    root: Path
    log: Path
    ready_url: str | None
    health: str
    stages: tuple[Stage, ...]
    total_seconds: float
    snapshot: str | None

    def document(self) -> dict[str, Any]:
        """The launch as JSON values."""
        return {
            "name": self.name,
            "method": self.method,
            "variant": self.variant,
            "image": self.image,
            "pid": self.pid,
            "root": str(self.root),
            "log": str(self.log),
            "ready_url": self.ready_url,
            "health": self.health,
            "total_seconds": round(self.total_seconds, 4),
            "stages": [stage.document() for stage in self.stages],
            "snapshot": self.snapshot,
        }


@dataclass(frozen=True)
class Running:
    """A replica that is ready, and the hands to keep it."""

    replica: Replica
    outcome: Launched

    @property
    def image_server_pid(self) -> int | None:
        """The process that serves the root; None where the root is no image."""
        from coldstart_fs.mount import find_mount

        record = find_mount(self.outcome.root, self.replica.config.run_folder)
        return record.server_pid if record is not None else None


@dataclass(frozen=True)
class Rehearsal:
    """What a launch would do, after every check that changes nothing."""

    name: str
    method: str
    variant: str | None
    image: str
    health: str


@contextmanager
def launched(
    spec: ReplicaSpec,
    root: Root,
    options: LaunchOptions,
    config: Config,
    conversation: Conversation,
    *,
    waterfall: Waterfall,
    plan: RestorePlan | None = None,
) -> Iterator[Running]:
    """Bring a replica to ready and yield it; all it made is taken down when the block ends.

    A `plan` made before is restored as it is; without one the snapshot is looked for, verified, and
    compared with the specification.
    """
    replica = Replica(spec.name, config)
    with replica.claim(conversation.note):
        chain = _Chain(spec, root, options, config, conversation, replica, waterfall, plan)
        yield Running(replica, chain.run())


def rehearse(
    spec: ReplicaSpec, root: Root, options: LaunchOptions, config: Config, conversation: Conversation
) -> Rehearsal:
    """Resolve, check and verify as a launch would; start and change nothing."""
    chain = _Chain(spec, root, options, config, conversation, Replica(spec.name, config), Waterfall(), None)
    chain.refuse_taken_address()
    identity = root.identity(config)
    health = chain.check_health(record=False)
    plan = chain.plan(identity)
    return Rehearsal(
        name=spec.name,
        method="restore" if plan else "cold",
        variant=plan.variant if plan else None,
        image=identity or root.label,
        health=health.overall.word,
    )


class _Chain:
    def __init__(
        self,
        spec: ReplicaSpec,
        root: Root,
        options: LaunchOptions,
        config: Config,
        conversation: Conversation,
        replica: Replica,
        waterfall: Waterfall,
        plan: RestorePlan | None,
    ) -> None:
        self._spec = spec
        self._root = root
        self._options = options
        self._config = config
        self._say = conversation
        self._replica = replica
        self._waterfall = waterfall
        self._plan = plan
        self._record = ReplicaRecord(spec.name, state="starting")
        self._root_path = replica.root

    def run(self) -> Launched:
        self.refuse_taken_address()
        identity = self._root.identity(self._config)
        self._write(image=identity)
        # three things that do not need each other: a verdict, verified snapshot files, a mounted root
        with Beside() as side:
            health = side.submit(self.check_health)
            planned = side.submit(lambda: self.plan(identity))
            self._open_root(planned)
            plan = planned.result()
            verdict = self._answer(health).overall.word
        restored = self._restore(plan) if plan is not None else None
        container = restored or self._cold_start()
        variant = plan.variant if plan is not None and restored is not None else None
        method = "restore" if restored is not None else "cold"
        self._write(state="ready", method=method, pid=container.pid)
        total_seconds = self._waterfall.total_seconds
        capture = self._options.snapshot_when_ready and restored is None
        return Launched(
            name=self._spec.name,
            method=method,
            variant=variant,
            image=identity or self._root.label,
            pid=container.pid,
            root=self._root_path,
            log=self._replica.log,
            ready_url=self._spec.ready.url,
            health=verdict,
            total_seconds=total_seconds,
            snapshot=self._capture(container) if capture else None,
            stages=self._waterfall.stages,
        )

    def _answer(self, health: Future[HealthReport]) -> HealthReport:
        try:
            return health.result(_HEALTH_SECONDS)
        except TimeoutError as error:
            if health.done():  # its own error
                raise
            raise BusyError(
                f"no verdict on this host after {_HEALTH_SECONDS:g} s", hint="coldstart health quick"
            ) from error

    def _write(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._replica.write(self._record)

    def refuse_taken_address(self) -> None:
        """Somebody else's answer on the ready URL must not make this replica count as ready."""
        from coldstart_snapshot.ports import port_holder
        from coldstart_snapshot.ready import parse_url

        if self._spec.network != "host" or self._spec.ready.url is None:
            return
        url = parse_url(self._spec.ready.url)
        host = "127.0.0.1" if url.hostname == "localhost" else url.hostname
        address = f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"
        if (holder := port_holder(address)) is not None:
            pid, name = holder
            raise BusyError(
                f"somebody listens where the replica should: {self._spec.ready.url}: process {pid} ({name})",
                hint="end it, or give the replica another port",
            )

    def check_health(self, *, record: bool = True) -> HealthReport:
        """A verdict that allows placement here, or the refusal."""
        from coldstart_health.checks import quick_check

        with self._waterfall.stage("health"):
            report = concerning(quick_check(self._config, record=record), self._spec.environment)
        require_place(report)
        if report.overall.word != "ok":
            self._say.warning(f"host is {report.summary}")
        return report

    def plan(self, identity: str | None) -> RestorePlan | None:
        """The verified variant to restore; None, with the reason said, where the start will be cold."""
        from coldstart_snapshot.inventory import require_snapshot
        from coldstart_snapshot.restore import plan_restore

        if self._options.cold or self._plan is not None:
            return self._plan
        try:
            require_snapshot(self._config.state_folder, self._spec.snapshot)
            with self._waterfall.stage("verify"):
                plan = plan_restore(self._spec.snapshot, self._config)
            if what := snapshot_difference(plan, self._spec, identity):
                raise NegativeAnswer(f"snapshot is not of this replica: {what}")
        except NotFoundError as error:
            if not self._options.fallback:
                raise
            self._say.note(f"{error.message}: cold start")
            return None
        except ColdstartError as error:
            if not self._options.fallback:
                raise
            self._say.warning(f"cold start, because the snapshot cannot be used: {error.message}")
            return None
        for warning in plan.warnings:
            self._say.warning(warning)
        return plan

    def _open_root(self, planned: Future[RestorePlan | None] | None) -> None:
        from coldstart_snapshot.upper import unpack_upper

        def fill_upper() -> None:
            plan = planned.result() if planned is not None else None
            if plan is not None and plan.upper_archive is not None:
                unpack_upper(plan.upper_archive, self._replica.overlay / "upper")

        self._write(mounted=True)
        with self._waterfall.stage("mount"):
            self._root_path = self._root.open(self._replica, fill_upper, self._say.warning)

    def _restore(self, plan: RestorePlan) -> RunningContainer | None:
        """The restored container, ready; None when that failed and a cold start is allowed."""
        from coldstart_snapshot.restore import restore_container

        self._write(container=True, method="restore")
        try:
            with self._waterfall.stage("restore"):
                container = restore_container(
                    plan,
                    self._config,
                    root=self._root_path,
                    container_id=self._spec.name,
                    log=self._replica.log,
                    runc_root=self._replica.runc_root,
                )
            self._wait_ready(container)
        except ColdstartError as error:
            if not self._options.fallback:
                raise
            self._say.warning(f"cold start, because the restore failed: {error.message}")
            # the failed server may have written: what it left is not the image
            self._replica.end_container()
            self._replica.unmount()
            remove_tree(self._replica.overlay)
            self._open_root(None)
            return None
        return container

    def _cold_start(self) -> RunningContainer:
        from coldstart_snapshot.container import run_container

        self._write(container=True, method="cold")
        with self._waterfall.stage("start"):
            configuration = self._root.configuration(self._config)
            container = run_container(
                container_spec(self._spec, configuration, root=self._root_path, log=self._replica.log),
                self._config,
                runc_root=self._replica.runc_root,
            )
        for warning in container.warnings:
            self._say.warning(warning)
        self._wait_ready(container)
        return container

    def _wait_ready(self, container: RunningContainer) -> None:
        from coldstart_snapshot.ready import wait_ready

        try:
            with self._waterfall.stage("ready"):
                wait_ready(self._spec.ready.url, self._spec.ready.timeout_seconds, pid=container.pid)
        except ColdstartError as error:
            error.hint = f"{last_words(self._replica.log)} (whole log: {self._replica.log})"
            raise

    def _capture(self, container: RunningContainer) -> str:
        from coldstart_snapshot.capture import CaptureRequest, create_snapshot

        self._say.note(f"capturing: {self._spec.snapshot}")
        request = CaptureRequest(
            name=self._spec.snapshot,
            container_id=container.id,
            runc_root=self._replica.runc_root,
            root=self._root.source(self._root_path),
            ready_url=self._spec.ready.url,
            ready_timeout_seconds=self._spec.ready.timeout_seconds,
        )
        with self._waterfall.stage("snapshot"):
            captured = create_snapshot(request, self._config, self._say.note)
        return f"{captured.manifest.name}/{captured.manifest.variant}"
