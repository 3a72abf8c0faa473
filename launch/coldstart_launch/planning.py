"""Which snapshot a launch restores: one of this host, or one that is fetched while the root is mounted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, NegativeAnswer, NotFoundError
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from concurrent.futures import Future

    from coldstart_launch.options import Conversation, LaunchOptions
    from coldstart_snapshot.distribution.receive import Incoming
    from coldstart_snapshot.kept.manifest import Manifest
    from coldstart_snapshot.restoring.restore import RestorePlan


class Planning:
    """The choice, made beside other work; its writable layer can be unpacked before its memory is here."""

    def __init__(
        self,
        spec: ReplicaSpec,
        options: LaunchOptions,
        config: Config,
        say: Conversation,
        waterfall: Waterfall,
        given: RestorePlan | None,
        incoming: Incoming | None,
    ) -> None:
        """A `given` plan is restored as it is, after what is missing of `incoming` has come."""
        self._spec = spec
        self._options = options
        self._config = config
        self._say = say
        self._waterfall = waterfall
        self._given = given
        self._incoming = incoming
        self._layer: Future[Path | None] | None = None
        self.layer_may_hold_devices = False
        """Known as soon as the layer is."""
        self._descriptors: list[int] = []
        self._is_rehearsal = False
        if not self.is_made:
            from concurrent.futures import Future  # a plan that is made does not wait for the import

            self._layer = Future()
        elif given is not None:
            self._allow_devices(given.manifest)

    @property
    def is_made(self) -> bool:
        """Whether nothing is left to be chosen or fetched."""
        return self._options.cold or (self._given is not None and self._incoming is None)

    def layer(self) -> Path | None:
        """The archive of the writable layer, as soon as it is known; waits for that."""
        if self._layer is None:
            return self._given.upper_archive if self._given is not None else None
        return self._layer.result()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def choose(self, identity: str | None, *, rehearsal: bool = False) -> RestorePlan | None:
        """The verified variant to restore; None, with the reason said, where the start will be cold.

        A rehearsal fetches nothing: its plan may be of a variant that is in the store only.
        """
        self._is_rehearsal = rehearsal
        if self._layer is None:
            return self._given
        try:
            plan = self._choose(identity)
        except BaseException as error:
            if not self._layer.done():
                self._layer.set_exception(error)
            raise
        if not self._layer.done():
            if plan is not None:
                self._allow_devices(plan.manifest)
            self._layer.set_result(None if plan is None else plan.upper_archive)
        return plan

    def _choose(self, identity: str | None) -> RestorePlan | None:
        try:
            plan = self._arrive(self._incoming) if self._incoming is not None else self._find(identity)
        except NotFoundError as error:
            if not self._options.fallback:
                raise
            self._say.note(f"{error.message}: cold start")
            return None
        except ColdstartError as error:
            if not self._options.fallback:
                raise
            remedy = f"; {error.hint}" if error.hint else ""
            self._say.warning(f"cold start, because the snapshot cannot be used: {error.message}{remedy}")
            return None
        for warning in plan.warnings:
            self._say.warning(warning)
        return plan

    def _find(self, identity: str | None) -> RestorePlan:
        """The snapshot of this host; where that is none or another one than is pinned, the store's."""
        from coldstart_snapshot.kept.inventory import require_snapshot
        from coldstart_snapshot.restoring.restore import plan_restore

        url = self._config.optional_text("snapshot.store")
        try:
            require_snapshot(self._config.state_folder, self._spec.snapshot)
            with self._waterfall.stage("verify"):
                # which GPUs this replica gets is known after the health check
                gpus = None if self._spec.gpus else ()
                plan = plan_restore(self._spec.snapshot, self._config, gpus=gpus)
            self._require_pinned(plan)
        except (NotFoundError, NegativeAnswer):
            if url is None:
                raise
            return self._fetch(url, identity)
        self._require_same(plan, identity)
        return plan

    def _require_pinned(self, plan: RestorePlan) -> None:
        if not self._spec.snapshot_digests:
            return
        from coldstart_snapshot.distribution.distribute import digest_text, identity_of
        from coldstart_snapshot.kept.manifest import manifest_content

        digest = digest_text(identity_of(manifest_content(plan.folder)))
        if digest not in self._spec.snapshot_digests:
            raise NegativeAnswer(f"snapshot of this host is not the pinned one: {plan.name} is {digest}")

    def _require_same(self, plan: RestorePlan, identity: str | None) -> None:
        from coldstart_launch.runtime import snapshot_difference

        if what := snapshot_difference(plan, self._spec, identity):
            raise NegativeAnswer(f"snapshot is not of this replica: {what}")

    def _fetch(self, url: str, identity: str | None) -> RestorePlan:
        from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore, parse_digest
        from coldstart_snapshot.distribution.receive import Incoming, early_plan, find_offer
        from coldstart_snapshot.distribution.trust import TrustRule

        pinned = [parse_digest(text) for text in self._spec.snapshot_digests]
        with self._waterfall.stage("find"):
            store = SnapshotStore.open(url, self._config, tell=self._say.warning)
            rule = TrustRule.of(self._config, pinned=pinned, given=self._options.trust)
            # a store that is down must not hold up the cold start
            asked = store.hasty() if self._options.fallback else store
            offer = find_offer(SnapshotReference(self._spec.snapshot), asked, rule)
        if self._is_rehearsal:
            return early_plan(Incoming(offer, store, self._config), self._config)
        self._say.note(f"fetching snapshot {offer.version.label}: {offer.manifest.size_bytes / 1e6:.1f} MB")
        # two replicas of one specification: the second waits for the fetch of the first
        patience = self._config.number("snapshot.restore_timeout_seconds")
        with Incoming(offer, store, self._config, wait_seconds=patience) as incoming:
            if not incoming.is_here:
                with self._waterfall.stage("fetch layer"):
                    incoming.begin()
                self._require_same(early_plan(incoming, self._config), identity)
            return self._arrive(incoming)

    def _allow_devices(self, manifest: Manifest) -> None:
        from coldstart_snapshot.containers.privileges import device_nodes_allowed

        self.layer_may_hold_devices = device_nodes_allowed(manifest.privileges)

    def _arrive(self, incoming: Incoming) -> RestorePlan:
        """The plan for a variant once all of it is here; its layer is told of before."""
        from coldstart_snapshot.restoring.restore import plan_restore

        manifest = incoming.offer.manifest
        if not incoming.is_here:
            if (archive := incoming.upper_archive) is not None:
                # a descriptor of our own: the folder is renamed, and the fetch lets go of its own
                self._descriptors.append(os.open(archive, os.O_RDONLY | os.O_CLOEXEC))
                archive = Path(f"/proc/self/fd/{self._descriptors[-1]}")
            self._allow_devices(manifest)
            assert self._layer is not None
            self._layer.set_result(archive)
            with self._waterfall.stage("fetch memory"):
                incoming.finish()
        incoming.close()
        with self._waterfall.stage("verify"):
            plan = plan_restore(manifest.name, self._config, variant=manifest.variant, gpus=incoming.gpus)
        return replace(plan, lazy=self._given is not None and self._given.lazy)
