"""Traces in the life of one server: record what it is asked, replay what is known, merge at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from coldstart_cli.errors import ColdstartError
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.format.names import digest_text
from coldstart_fs.format.trace import Trace, load_trace
from coldstart_fs.fuse.protocol import Opcode
from coldstart_fs.fuse.session import Handler, Request, Session
from coldstart_fs.stores.store import Store
from coldstart_fs.traces.budget import memory_budget_bytes
from coldstart_fs.traces.coverage import Coverage
from coldstart_fs.traces.earlier import earlier_trace
from coldstart_fs.traces.early import EarlyTrace
from coldstart_fs.traces.find import known_traces
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.merge import certain, merge_traces
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.options import TraceOptions
from coldstart_fs.traces.plan import plan_replay
from coldstart_fs.traces.published import publish_trace
from coldstart_fs.traces.pushing import Content
from coldstart_fs.traces.recorder import Recorder
from coldstart_fs.traces.recording import read_recording, trace_of
from coldstart_fs.traces.replay import Replay, Target

# what a smaller part of the complete recordings saw is not replayed
_LEAST_CERTAIN = 0.1
# a store that is slow to give a trace must not hold up the replay of what this host knows
_STORE_SECONDS = 2.0
# whoever unmounts waits for us
_PUBLISH_SECONDS = 1.5


@dataclass(frozen=True)
class Served:
    """The image that a server serves, what it serves it from, and the folder of its record."""

    image: bytes
    reader: ImageReader
    store: Store
    folder: Path
    published: EarlyTrace


class MountTracing:
    """Begins to bring what is known as soon as it is made. Never fails a mount: what goes wrong is logged.

    A `successor` of a server that died goes on with its recording, and has nothing to replay.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None,
        served: Served,
        log: Callable[[str], None],
        *,
        successor: bool = False,
    ) -> None:
        self.problem: str | None = None
        self._earlier_image: str | None = None
        self._options = None if options is None else TraceOptions.from_json(options)
        self._served = served
        self._log = log
        self._coverage = Coverage()
        self._recorder: Recorder | None = None
        self._replay: Replay | None = None
        self._mounted = Event()
        self._session: Session | None = None
        self._root = Path()
        self._ended = False
        self._merging = Lock()
        self._merged = False
        if self._options is None:
            return
        self._kept = KeptTraces(self._options.state)
        if self._options.record:
            self._record(self._options, successor=successor)
        if self._options.replay is not Mode.OFF and not successor:
            Thread(target=self._start_replay, args=(self._options,), name="trace", daemon=True).start()

    @property
    def replays(self) -> bool:
        """Whether a trace is replayed, or was."""
        return self._coverage.replays

    def watched(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, with a note of each question before its answer."""
        recorder = self._recorder
        if recorder is None:
            return dict(handlers)

        def lookup(request: Request) -> None:
            recorder.looked_up(request.node - 1, request.body[:-1], request.pid)
            answer_lookup(request)

        def listing(answer: Handler) -> Handler:
            def noted(request: Request) -> None:
                recorder.listed(request.node - 1, request.pid)
                answer(request)

            return noted

        def link(request: Request) -> None:
            recorder.link_read(request.node - 1, request.pid)
            answer_link(request)

        answer_lookup, answer_link = handlers[Opcode.LOOKUP], handlers[Opcode.READLINK]
        return {
            **handlers,
            Opcode.LOOKUP: lookup,
            Opcode.READLINK: link,
            Opcode.READDIR: listing(handlers[Opcode.READDIR]),
            Opcode.READDIRPLUS: listing(handlers[Opcode.READDIRPLUS]),
        }

    def mounted(self, session: Session, root: Path) -> None:
        """From now on the mount answers, and the kernel takes pages."""
        self._session, self._root = session, root
        self._mounted.set()

    def stop_replay(self) -> None:
        """Ask the mount nothing more: it is to be unmounted."""
        self._ended = True
        self._mounted.set()
        if self._replay is not None:
            self._replay.stop()

    def end(self) -> None:
        """The mount has ended: what was recorded becomes part of the workload's trace, if it has not yet."""
        self.stop_replay()
        self._merge()

    def _merge(self) -> None:
        """When the recording ends, which on a mount that stays is long before its own end."""
        recorder, options = self._recorder, self._options
        if recorder is None or options is None:
            return
        with self._merging:
            if self._merged:
                return
            self._merged = True
            self._served.reader.observer = None
            try:
                recorder.stop()
                if not recorder.path.exists():
                    return
                index = self._served.reader.index
                mine = trace_of(read_recording(recorder.path), index)
                self._kept.absorb(index, recorder.path)
                self._log_outcome(options)
                if mine is not None and options.publish:
                    self._publish(mine)
            except Exception as error:  # noqa: BLE001 - a trace is never worth a failure
                self._log(f"recording was not merged: {error}")
            finally:
                recorder.close()

    def counters(self) -> dict[str, Any]:
        """For the counters of the mount; empty when it has nothing to do with traces."""
        options = self._options
        if options is None:
            return {}
        recorder = self._recorder
        recording = "off" if recorder is None else "on" if recorder.is_open else "ended"
        return {
            "trace": {
                "workload": options.workload,
                "recording": recording,
                "problem": self.problem,
                "earlier_image": self._earlier_image,
                "replay": None if self._replay is None else self._replay.status(),
                "coverage": self._coverage.report() if recorder is not None else None,
            }
        }

    def _record(self, options: TraceOptions, *, successor: bool) -> None:
        name = self._served.folder / "recording"
        try:
            if successor:
                path = Path(name.read_text("utf-8"))
            else:
                path = self._kept.new_recording(self._served.image)
                name.write_text(str(path), "utf-8")
        except OSError as error:
            if not successor:  # else the recording had ended
                self._log(f"reads are not recorded: {error}")
            return
        if successor and not path.exists():
            return
        index = self._served.reader.index
        recorder = Recorder(
            path,
            image=self._served.image,
            workload=options.workload,
            limit_seconds=options.limit_seconds,
            file_bytes=lambda number: index.inode(number).size,
            coverage=self._coverage,
            on_end=self._merge,
            log=self._log,
        )
        if recorder.is_open:
            self._recorder = recorder
            self._served.reader.observer = recorder.read

    def _start_replay(self, options: TraceOptions) -> None:
        try:
            trace = self._chosen(options)
            if trace is None or self._ended:
                return
            mode = self._mode(options, trace)
            plan = plan_replay(certain(trace, _LEAST_CERTAIN), self._served.reader.index, self._served.image)
            if plan.skipped_paths:
                self._log(f"trace has {plan.skipped_paths} paths that are not in the image")
            self._coverage.cache_only = mode is Mode.CACHE
            self._coverage.replays = True
            recorder = self._recorder
            if recorder is not None and mode is Mode.PAGES:
                recorder.mark_partial()
            target = Target(
                self._served.reader,
                self._store_pages,
                self._mount_point,
                on_primer=(lambda _: None) if recorder is None else recorder.ignore,
            )
            replay = Replay(
                plan,
                target,
                self._coverage,
                mode=mode,
                budget_bytes=memory_budget_bytes(options.memory_percent),
                log=self._log,
            )
            self._replay = replay
            if not self._ended:
                replay.start()
        except Exception as error:  # noqa: BLE001 - a replay is never worth a mount
            self.problem = getattr(error, "message", str(error))
            self._log(f"trace is not replayed: {error}")

    def _mount_point(self) -> Path | None:
        """Where the image is mounted, once it is; None when it is not any more."""
        self._mounted.wait()
        return None if self._ended else self._root

    def _store_pages(self, number: int, offset: int, data: Content) -> bool:
        session = self._session  # there is none before the mount answers
        return session is not None and session.store(number + 1, offset, data)

    def _chosen(self, options: TraceOptions) -> Trace | None:
        """The trace in the file that was named; else what this host and the store know."""
        if options.file is not None:
            return load_trace(Path(options.file))
        self._kept.absorb_orphans(self._served.reader.index, self._served.image, self._log)
        found: list[Trace] = []

        def ask() -> None:
            traces, _ = known_traces(
                self._kept,
                self._served.store,
                self._served.image,
                options.workload,
                self._log,
                self._served.published.wait,
            )
            found.extend(traces)

        asking = Thread(target=ask, name="trace-store", daemon=True)
        asking.start()
        asking.join(_STORE_SECONDS)
        known = list(found)
        if not known and asking.is_alive():
            try:
                known = [self._kept.load(self._served.image, options.workload)]
            except ColdstartError:
                asking.join()  # nothing else to replay: later is better than never
                known = list(found)
        return merge_traces(known, add_runs=False) if known else self._earlier(options)

    def _earlier(self, options: TraceOptions) -> Trace | None:
        """What an earlier version of the image read, where nothing is known of this one."""
        image = self._served.image
        found = earlier_trace(self._kept, self._served.reader.index, image, options.workload)
        if found is None:
            return None
        self._earlier_image = digest_text(found.image)
        self._log(
            f"nothing is known of this image: the trace of {self._earlier_image} is replayed, "
            f"of which it has {found.coverage:.0%}"
        )
        if self._recorder is not None:  # it does not see what the replay brings
            try:
                self._kept.add(found.trace)
            except (ColdstartError, OSError) as error:  # the next mount looks again
                self._log(f"trace of {self._earlier_image} was not kept for this image: {error}")
        return found.trace

    def _mode(self, options: TraceOptions, trace: Trace) -> Mode:
        """As configured; now and then only into the local cache, so that all that is read is seen again."""
        if options.replay is not Mode.PAGES or self._recorder is None or not options.audit_every:
            return options.replay
        due = trace.partial_runs >= options.audit_every * max(1, trace.runs)
        return Mode.CACHE if due else Mode.PAGES

    def _log_outcome(self, options: TraceOptions) -> None:
        if self._replay is None:
            return
        report = self._coverage.report()
        said = ", ".join(
            f"{key.removesuffix('_bytes')} {value}"
            for key, value in report.items()
            if key.endswith("_bytes") and value is not None
        )
        self._log(f"trace `{options.workload}` was replayed; bytes: {said}")

    def _publish(self, trace: Trace) -> None:
        def publish() -> None:
            try:
                publish_trace(self._served.store, trace, add_runs=True, wait_seconds=_PUBLISH_SECONDS)
                published.append(time.monotonic())
            except ColdstartError as error:
                self._log(f"trace was not published: {error.message}")
                published.append(-1.0)

        published: list[float] = []
        thread = Thread(target=publish, name="publish", daemon=True)
        thread.start()
        thread.join(_PUBLISH_SECONDS)
        if not published:
            self._log("trace was not published in time: `coldstart image trace push` does it")
