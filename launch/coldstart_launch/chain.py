"""The chain: health beside mount beside verification, then restore or cold start, then ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coldstart_cli.config import Config
from coldstart_cli.dead_man import undone_when_killed
from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import remove_tree
from coldstart_launch.after_restore import load_what_follows, settle_copy
from coldstart_launch.answers import (
    await_ready,
    refuse_taken_address,
    replay_golden,
    settle_captures,
    still_answers,
)
from coldstart_launch.beside import Beside
from coldstart_launch.cold_worker import forget_earlier_worker, go_on, is_told
from coldstart_launch.host_pool import gpu_devices, take_gpus
from coldstart_launch.options import Conversation, LaunchOptions
from coldstart_launch.placement import concerning, lately_fit, require_place, verdict_in_time
from coldstart_launch.planning import Planning
from coldstart_launch.replica import Replica, ReplicaRecord
from coldstart_launch.replica_network import ReplicaNetwork
from coldstart_launch.roots import Root
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from coldstart_fs.mounts.records import MountRecord
    from coldstart_health.verdict import HealthReport
    from coldstart_launch.outcome import Launched, Rehearsal
    from coldstart_launch.publish import Publisher
    from coldstart_snapshot.capturing.capture import SnapshotVariant
    from coldstart_snapshot.containers.container import RunningContainer
    from coldstart_snapshot.cpu.capped import CappedStart
    from coldstart_snapshot.distribution.receive import Incoming
    from coldstart_snapshot.restoring.restore import RestorePlan


@dataclass(frozen=True)
class Running:
    """A replica that is ready, and the hands to keep it."""

    replica: Replica
    outcome: Launched
    publisher: Publisher
    captured: SnapshotVariant | None = None

    def image_mount(self) -> MountRecord | None:
        """How the root is mounted, served or not; None where it is no image."""
        from coldstart_fs.mounts.mount import find_mount

        return find_mount(self.outcome.root, self.replica.config.run_folder)


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
    incoming: Incoming | None = None,
) -> Iterator[Running]:
    """Bring a replica to ready and yield it; all it made is taken down when the block ends.

    A `plan` made before is restored as it is; without one the snapshot is looked for, verified, and
    compared with the specification. With `incoming`, the plan is of a snapshot that is being fetched.
    """
    replica = Replica(spec.name, config)
    settle_captures(spec.name, config, conversation.note)
    network = ReplicaNetwork(spec, replica)
    with replica.claim(conversation.note), network.opened():
        chain = _Chain(spec, root, options, config, conversation, replica, waterfall, plan, network, incoming)
        try:
            with undone_when_killed("coldstart_cli", "snap", "restore", spec.name, "--stop"):
                outcome = chain.run()
            yield Running(replica, outcome, network.publisher, chain.captured)
        finally:
            chain.close()


def rehearse(
    spec: ReplicaSpec, root: Root, options: LaunchOptions, config: Config, conversation: Conversation
) -> Rehearsal:
    """Resolve, check and verify as a launch would; start and change nothing."""
    from coldstart_launch.outcome import Rehearsal
    from coldstart_launch.runtime import require_devices

    replica = Replica(spec.name, config)
    network = ReplicaNetwork(spec, replica)
    chain = _Chain(spec, root, options, config, conversation, replica, Waterfall(), None, network)
    refuse_taken_address(spec)
    require_devices(spec, config)
    identity = root.identity(config)
    health = chain.check_health(record=False)
    plan = chain.rehearsed_plan(identity)
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
        network: ReplicaNetwork,
        incoming: Incoming | None = None,
    ) -> None:
        self._spec = spec
        self._root = root
        self._options = options
        self._config = config
        self._say = conversation
        self._replica = replica
        self._waterfall = waterfall
        self._plan = plan
        self._planning = Planning(spec, options, config, conversation, waterfall, plan, incoming)
        self._has_layer = False
        self._network = network
        self._record = ReplicaRecord(spec.name, state="starting")
        self._root_path = replica.root
        self._environment = spec.environment
        self._capped: CappedStart | None = None
        self.captured: SnapshotVariant | None = None
        self._snapshot: str | None = None
        self._devices = spec.devices
        self._gpus: tuple[str, ...] = ()

    def run(self) -> Launched:
        refuse_taken_address(self._spec)
        identity = self._root.identity(self._config)
        self._write(image=identity)
        restored: RunningContainer | None = None
        # three things that do not need each other: a verdict, verified snapshot files, a mounted root
        with Beside() as side:
            # of a host that was fit a moment ago the new verdict may come while memory is read: nothing
            # touches a GPU or counts as ready before it
            beside = self._plan is not None and not self._spec.gpus and lately_fit(self._config.state_folder)
            health = side.later(self.check_health)
            if not beside:
                health()
            choose = partial(self._planning.choose, identity)
            planned = None if self._planning.is_made else side.submit(choose)
            self._open_root(restoring=True)
            plan = choose() if planned is None else planned.result()
            if plan is None and self._has_layer:
                self._open_root_anew()  # what was to come with that layer did not
            if not beside:
                verdict_in_time(health())
            with self._streaming() if self._spec.stream else nullcontext():
                if plan is not None:
                    # not earlier: what criu waits for has the interpreter to itself
                    restored = self._restore(
                        plan,
                        lambda: verdict_in_time(health()),
                        lambda: (health(), side.submit(load_what_follows)),
                    )
                verdict = verdict_in_time(health()).overall.word
                container = restored or self._cold_start()
        self._network.publish(container)
        variant = plan.variant if plan is not None and restored is not None else None
        method = "restore" if restored is not None else "cold"
        self._write(state="ready", method=method, pid=container.pid)
        from coldstart_launch.outcome import Launched

        total_seconds = self._waterfall.total_seconds
        if self._options.snapshot_when_ready and restored is None and not is_told(self._spec):
            self._snapshot = self._captured_or_warned(container)
        return Launched(
            name=self._spec.name,
            method=method,
            variant=variant,
            image=identity or self._root.label,
            pid=container.pid,
            root=self._root_path,
            log=self._replica.log,
            ready_url=self._network.ready_url(self._spec.ready.url),
            published=tuple(map(str, self._network.publisher.publications)),
            health=verdict,
            total_seconds=total_seconds,
            snapshot=self._snapshot,
            budget=container.budget,
            stages=self._waterfall.stages,
        )

    @contextmanager
    def _streaming(self) -> Iterator[None]:
        """Weights are read beside all that follows, once there is a root to read them from."""
        from coldstart_launch.streaming import streaming

        mounts = {mount.destination: mount.source for mount in self._spec.mounts}
        with streaming(self._spec.stream, self._root_path, mounts, self._waterfall) as streamed:
            yield
        for problem in streamed.problems:
            self._say.warning(problem)

    def _write(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._replica.write(self._record)

    def check_health(self, *, record: bool = True) -> HealthReport:
        """A verdict that allows placement here, or the refusal."""
        from coldstart_health.checks import quick_check

        with self._waterfall.stage("health"):
            found = quick_check(self._config, record=record)
            if self._spec.gpus:
                visible = take_gpus(
                    found, self._spec.gpus, self._replica, rehearsal=not record, warn=self._say.warning
                )
                self._gpus = tuple(visible)
                self._environment = {**self._environment, "CUDA_VISIBLE_DEVICES": ",".join(visible)}
                given = gpu_devices(self._config, found, visible, self._say.warning)
                self._devices = (*self._spec.devices, *given)
            report = concerning(found, self._environment)
        require_place(report)
        if report.overall.word != "ok":
            self._say.warning(f"host is {report.summary}")
        return report

    def rehearsed_plan(self, identity: str | None) -> RestorePlan | None:
        """The variant that would be restored, from this host or from a store; nothing is fetched."""
        return self._planning.choose(identity, rehearsal=True)

    def _open_root_anew(self) -> None:
        """Without what a snapshot or a failed server wrote: that is not the image."""
        self._replica.unmount()
        remove_tree(self._replica.overlay)
        self._open_root(restoring=False)

    def _open_root(self, *, restoring: bool) -> None:
        from coldstart_snapshot.containers.upper import unpack_upper

        def fill_upper() -> None:
            archive = self._planning.layer() if restoring else None
            if archive is not None:
                self._has_layer = True
                upper = self._replica.overlay / "upper"
                unpack_upper(archive, upper, device_nodes=self._planning.layer_may_hold_devices)

        self._write(mounted=True)
        with self._waterfall.stage("mount"):
            self._root_path = self._root.open(self._replica, fill_upper, self._say.warning)

    def _restore(
        self, plan: RestorePlan, verdict: Callable[[], object], at_criu: Callable[[], object]
    ) -> RunningContainer | None:
        """The restored container, ready; None when that failed and a cold start is allowed."""
        from coldstart_snapshot.restoring.restore import restore_container

        self._write(container=True, method="restore")
        try:
            self._network.prepare(plan.manifest, plan.images)
            with self._waterfall.stage("restore"):
                container = restore_container(
                    plan,
                    self._config,
                    root=self._root_path,
                    container_id=self._spec.name,
                    log=self._replica.log,
                    runc_root=self._replica.runc_root,
                    network=self._network.namespace,
                    at_criu=at_criu,
                    before_gpu=verdict,
                    devices=self._devices,
                    gpus=self._gpus,
                )
            verdict()
            settle_copy(self._spec, plan, container, self._config, self._waterfall)
            ready_seconds = self._wait_ready(container)
            replay_golden(plan.manifest.golden, container.pid, self._waterfall)
        except ColdstartError as error:
            verdict()  # a host on which nothing may be placed gets no cold start either
            if not self._options.fallback:
                raise
            self._say.warning(f"cold start, because the restore failed: {error.message}")
            self._replica.end_container()
            self._open_root_anew()
            return None
        budget = container.budget
        return replace(container, budget=budget.also("ready", ready_seconds) if budget else None)

    def _cold_start(self) -> RunningContainer:
        from coldstart_launch.runtime import container_spec
        from coldstart_snapshot.containers.container import run_container
        from coldstart_snapshot.containers.network import inside

        self._write(container=True, method="cold")
        with self._waterfall.stage("start"):
            configuration = self._root.configuration(self._config)
            wanted = container_spec(
                replace(self._spec, environment=self._environment, devices=self._devices),
                configuration,
                root=self._root_path,
                log=self._replica.log,
            )
            forget_earlier_worker(self._spec, wanted)
            capped = self._cap()
            # from here on: a store cannot be reached from a network of loopback alone
            with inside(self._network.namespace):
                container = run_container(
                    capped.apply(wanted) if capped is not None else wanted,
                    self._config,
                    runc_root=self._replica.runc_root,
                    before_start=capped.before_start if capped is not None else None,
                )
        for warning in container.warnings:
            self._say.warning(warning)
        if is_told(self._spec):
            capture = self._options.snapshot_when_ready
            self._snapshot = go_on(
                self._spec,
                container,
                wanted,
                self._waterfall,
                (lambda: self._captured_or_warned(container)) if capture else None,
            )
        self._wait_ready(container)
        return container

    def _cap(self) -> CappedStart | None:
        from coldstart_host.cpu import read_cpu_facts
        from coldstart_snapshot.cpu.capped import CappedStart

        if self._options.cpu_level != "native":
            self._capped = CappedStart(self._options.cpu_level, read_cpu_facts())
        return self._capped

    def close(self) -> None:
        """Let nothing of a capped start that failed stay behind, nor descriptors of a fetch."""
        self._planning.close()
        if self._capped is not None:
            self._capped.close()

    def _wait_ready(self, container: RunningContainer) -> float:
        ready = self._spec.ready
        return await_ready(
            ready.url, ready.timeout_seconds, container.pid, self._replica.log, self._waterfall
        )

    def _captured_or_warned(self, container: RunningContainer) -> str | None:
        """A ready replica goes on serving without a snapshot, unless that is all it was started for."""
        try:
            return self._capture(container)
        except ColdstartError as error:
            if self._options.only_to_capture:
                raise
            if is_told(self._spec):  # it answers later, which is waited for
                self._say.warning(f"the worker goes on, but it was not captured: {error}")
                return None
            if not still_answers(self._spec.ready.url, container.pid):
                raise
            self._say.warning(f"the replica serves, but it was not captured: {error}")
            return None

    def _capture(self, container: RunningContainer) -> str:
        from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot

        self._say.note(f"capturing: {self._spec.snapshot}")
        request = CaptureRequest(
            name=self._spec.snapshot,
            container_id=container.id,
            runc_root=self._replica.runc_root,
            root=self._root.source(self._root_path),
            ready_url=self._spec.ready.url,
            ready_timeout_seconds=self._spec.ready.timeout_seconds,
            golden=self._spec.golden,
            restore_command=self._spec.restore_command,
            engine=self._spec.engine,
            capped=self._capped,
            stream=self._spec.stream,
        )
        with self._waterfall.stage("snapshot"):
            captured = create_snapshot(request, self._config, self._say.note)
        self.captured = captured
        return f"{captured.manifest.name}/{captured.manifest.variant}"
