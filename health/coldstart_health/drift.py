"""A GPU compared with its own past: with the median of what it used to do, and its spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coldstart_health.baseline import GpuBaseline, Sample
from coldstart_health.measures import ACTIONS, MEASURES, PACES, Measure
from coldstart_health.moment import Moment
from coldstart_health.verdict import Finding, Verdict

ENOUGH = 5  # samples before anything counts as usual
_SPREADS = 6.0
_MAD_TO_SIGMA = 1.4826
# the first ones stay for good: a GPU that gets worse a little each week must not become its own usual
_FIRST_KEPT, _LAST_KEPT = 8, 24
_APART_SECONDS = 3600.0
_PACE_SECONDS = 600.0
_MONTH_DAYS = 30.0
_ACCEPT = "; if it is to be so: `coldstart health clear {gpu} --baseline --reason TEXT`"


@dataclass(frozen=True)
class Usual:
    """What a series says: its median, the median distance from it, and how many samples made it."""

    median: float
    spread: float
    samples: int
    driver: str | None


def drifts(
    gpu: GpuBaseline, values: Mapping[str, float], *, moment: Moment, driver: str | None
) -> Iterator[Finding]:
    """A finding for each measure that is too far from its usual, judged by its last value."""
    for measure in MEASURES:
        value = _value(gpu, measure, values, moment)
        if value is None:
            continue
        evidence = _too_far(measure, value, gpu.series.get(measure.key, ()), moment, driver)
        if evidence:
            action = (ACTIONS[measure.reason] + _ACCEPT).format(gpu=gpu.name.subject)
            yield Finding(measure.reason, Verdict.DEGRADED, gpu.name.subject, "baseline", evidence, action)


def learned(
    gpu: GpuBaseline,
    values: Mapping[str, float],
    counts: Mapping[str, float],
    *,
    moment: Moment,
    driver: str | None,
) -> GpuBaseline:
    """The baseline after these values: what is too far off is remembered, and not learned from."""
    series, latest, counters = dict(gpu.series), dict(gpu.latest), dict(gpu.counters)
    values = dict(values)
    for name, count in counts.items():
        before = counters.get(name)
        pace, anew = _pace(before, count, moment)
        if anew:
            counters[name] = Sample(moment, driver, count)
        if pace is not None:
            values[PACES[name]] = pace
    for measure in MEASURES:
        value = values.get(measure.key)
        if value is None:
            continue
        sample, known = Sample(moment, driver, value), series.get(measure.key, ())
        if measure.lasts != "now":
            latest[measure.key] = sample
        if _may_learn(measure, sample, known):
            series[measure.key] = _bounded((*known, sample), measure)
    return replace(gpu, series=series, latest=latest, counters=counters)


def usual(samples: Sequence[Sample], measure: Measure, driver: str | None) -> Usual | None:
    """Of this driver's samples where they are enough and the driver matters, else of all."""
    own = [sample for sample in samples if sample.driver == driver] if measure.driver_matters else []
    chosen = own if len(own) >= ENOUGH else list(samples)
    if len(chosen) < ENOUGH:
        return None
    values = [sample.value for sample in chosen]
    median = statistics.median(values)
    spread = statistics.median(abs(value - median) for value in values)
    return Usual(median, spread, len(values), chosen[-1].driver)


def _too_far(
    measure: Measure, value: float, samples: Sequence[Sample], moment: Moment, driver: str | None
) -> str | None:
    if measure.kind == "growth":
        return _grown(measure, value, samples, moment)
    known = usual(samples, measure, driver)
    if known is None:
        if measure.kind == "limit" and value > measure.least:
            return f"{measure.what}: {value:g}, limit {measure.least:g}"
        return None
    room = max(
        measure.least,
        measure.least_share * abs(known.median),
        _SPREADS * _MAD_TO_SIGMA * known.spread,
    )
    off = known.median - value if measure.worse == "lower" else value - known.median
    if off <= room:
        return None
    changed = ""
    if measure.driver_matters and known.driver != driver:
        changed = f"; the driver was {known.driver} then, and is {driver}"
    return (
        f"{measure.what}: {value:g}{measure.unit}, usual {known.median:g}{measure.unit} "
        f"(median of {known.samples}, {room:g} is let pass){changed}"
    )


def _grown(measure: Measure, value: float, samples: Sequence[Sample], moment: Moment) -> str | None:
    recent = [sample for sample in samples if moment.days_since(sample.at) <= _MONTH_DAYS]
    if not recent:
        return None
    least = min(recent, key=lambda sample: sample.value)
    if value - least.value < measure.least:
        return None
    return f"{measure.what}: {value:g}, {value - least.value:g} more than on {least.at.utc[:10]}"


def _value(gpu: GpuBaseline, measure: Measure, values: Mapping[str, float], moment: Moment) -> float | None:
    if measure.key in values:
        return values[measure.key]
    last = gpu.latest.get(measure.key)
    if last is None or measure.lasts == "now":
        return None
    if measure.lasts == "hour":
        recent = last.at.same_boot(moment) and moment.boottime_seconds - last.at.boottime_seconds <= 3600
        return last.value if recent else None
    return last.value


def _pace(before: Sample | None, count: float, moment: Moment) -> tuple[float | None, bool]:
    """How many an hour, and whether to count from here on."""
    if before is None or not before.at.same_boot(moment) or count < before.value:
        return None, True  # a reboot, a reset or a driver that was loaded again set it back
    seconds = moment.boottime_seconds - before.at.boottime_seconds
    if seconds < _PACE_SECONDS:
        return None, False
    return (count - before.value) * 3600 / seconds, True


def _may_learn(measure: Measure, sample: Sample, known: Sequence[Sample]) -> bool:
    if known and sample.at.same_boot(known[-1].at):
        apart = sample.at.boottime_seconds - known[-1].at.boottime_seconds
        # what only a diagnosis measures is rare enough
        if apart < (0 if measure.lasts == "again" else _APART_SECONDS):
            return False
    if measure.kind == "growth":
        return True
    new_driver = measure.driver_matters and bool(known) and known[-1].driver != sample.driver
    own = sum(other.driver == sample.driver for other in known) < ENOUGH
    if measure.driver_matters and (new_driver or own):
        return True  # the first samples of a driver say what is usual with it
    return _too_far(measure, sample.value, known, sample.at, sample.driver) is None


def _bounded(samples: tuple[Sample, ...], measure: Measure) -> tuple[Sample, ...]:
    if measure.kind == "growth":
        return samples[-(_FIRST_KEPT + _LAST_KEPT) :]
    newest = samples[-1].driver
    own = tuple(sample for sample in samples if sample.driver == newest)
    if measure.driver_matters and len(own) >= ENOUGH:
        samples = own  # what another driver did is no longer compared with
    if len(samples) <= _FIRST_KEPT + _LAST_KEPT:
        return samples
    return (*samples[:_FIRST_KEPT], *samples[-_LAST_KEPT:])
