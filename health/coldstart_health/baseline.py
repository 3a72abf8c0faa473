"""What is usual for each GPU: bounded series of samples, in a file that decides nothing by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.regular import read_regular
from coldstart_health.moment import Moment
from coldstart_health.quarantine_record import GpuName, name_from_json
from coldstart_health.strict_json import StrictObject, moment_from_json

_SCHEMA = "coldstart.health.baseline"
_VERSION = 1
_KEPT_GPUS = 64
_LOCK_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Sample:
    """One value, when it was measured, and by which driver."""

    at: Moment
    driver: str | None
    value: float


@dataclass(frozen=True)
class GpuBaseline:
    """One GPU by its UUID: another one in its slot starts anew.

    `series` are the samples that the usual is made of, `latest` the last value of each measure, also of
    those that were too far off to learn from, `counters` the last count of what only has a pace.
    """

    name: GpuName
    series: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    latest: Mapping[str, Sample] = field(default_factory=dict)
    counters: Mapping[str, Sample] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """All GPUs that were ever measured here, the most recent last."""

    gpus: tuple[GpuBaseline, ...] = ()

    def of(self, uuid: str | None) -> GpuBaseline | None:
        return next((gpu for gpu in self.gpus if gpu.name.uuid == uuid), None)

    def without(self, gpu: GpuBaseline) -> Baseline:
        return Baseline(tuple(other for other in self.gpus if other.name != gpu.name))

    def with_gpu(self, gpu: GpuBaseline) -> Baseline:
        """The same with this GPU as it is now."""
        if self.of(gpu.name.uuid) is not None:
            return Baseline(tuple(gpu if other.name.uuid == gpu.name.uuid else other for other in self.gpus))
        return Baseline((*self.gpus, gpu)[-_KEPT_GPUS:])


def baseline_path(state_folder: Path) -> Path:
    return state_folder / "health" / "baseline.json"


def load_baseline(state_folder: Path) -> Baseline:
    """Empty where there is none. Raises where it cannot be understood: nothing is usual then."""
    path = baseline_path(state_folder)
    try:
        return _parse(json.loads(read_regular(path)))
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise IoFailure(f"cannot read the baseline: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"baseline is damaged: {path}: {type(error).__name__}: {error}") from error


def update_baseline(state_folder: Path, change: Callable[[Baseline], Baseline]) -> Path | None:
    """Read, change and write as one step. A damaged one is put aside and begun anew: the answer is where."""
    path, aside = baseline_path(state_folder), None
    with exclusive_lock(path.with_suffix(".lock"), wait_seconds=_LOCK_WAIT_SECONDS):
        try:
            before = load_baseline(state_folder)
        except DataError:
            before, aside = Baseline(), path.with_name(f"{path.name}.damaged")
            try:
                os.replace(path, aside)
            except OSError as error:
                raise IoFailure(f"cannot put the baseline aside: {path}: {error.strerror}") from error
        after = change(before)
        if after != before:
            for left in path.parent.glob(f".{path.name}.*.tmp"):  # a writer was killed
                left.unlink(missing_ok=True)
            atomic_write(path, json.dumps(_to_json(after)).encode() + b"\n")
    return aside


def _to_json(baseline: Baseline) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "version": _VERSION,
        "gpus": [
            {
                **vars(gpu.name),
                "series": {
                    key: [_sample_json(one) for one in samples] for key, samples in gpu.series.items()
                },
                "latest": {key: _sample_json(one) for key, one in gpu.latest.items()},
                "counters": {key: _sample_json(one) for key, one in gpu.counters.items()},
            }
            for gpu in baseline.gpus
        ],
    }


def _sample_json(sample: Sample) -> dict[str, Any]:
    return {**vars(sample.at), "driver": sample.driver, "value": sample.value}


def _parse(document: Any) -> Baseline:
    content = StrictObject(document)
    if (content.text("schema"), content.integer("version")) != (_SCHEMA, _VERSION):
        raise ValueError("another schema, or a version of another coldstart")
    return Baseline(tuple(map(_gpu, content.items("gpus"))))


def _gpu(document: object) -> GpuBaseline:
    fields = StrictObject(document)
    series, latest, counts = (fields.inner(key) for key in ("series", "latest", "counters"))
    return GpuBaseline(
        name=name_from_json(fields),
        series={key: tuple(map(_sample, series.items(key))) for key in series.names()},
        latest={key: _sample(latest.value(key)) for key in latest.names()},
        counters={key: _sample(counts.value(key)) for key in counts.names()},
    )


def _sample(document: object) -> Sample:
    fields = StrictObject(document)
    return Sample(moment_from_json(document), fields.optional("driver", fields.text), fields.number("value"))
