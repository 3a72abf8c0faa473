"""One look at a replica's metrics: Prometheus text as known quantities of one model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coldstart_cli.errors import DataError
from coldstart_pool.advise.engines import (
    COUNTERS,
    ENGINE_LABELS,
    ENGINES,
    GAUGES,
    HISTOGRAMS,
    MAY_BE_NAN,
    MODEL_LABELS,
    RANK_LABELS,
    SHARES,
    TIMES,
    WHOLE_ANSWERS,
    Meaning,
)

LARGEST_BYTES = 16 << 20
_PARTS = ("bucket", "sum", "count")


@dataclass
class Histogram:
    """Observations so far: count, sum in seconds, and cumulative counts by upper bound."""

    count: float = 0.0
    sum_seconds: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)


@dataclass
class Scrape:
    """Known quantities of one replica at `time` (seconds, of the one clock that compares scrapes).

    `engines` has the gauges of each engine of it, by name; `model` is None where no label names one.
    `answers_whole`: its first result is its last.
    """

    source: str
    time: float
    model: str | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    engines: dict[str, dict[str, float]] = field(default_factory=dict)
    answers_whole: bool = False


def parse_metrics(content: bytes, source: str, moment: float, model: str | None = None) -> Scrape:
    """Prometheus text as known quantities; of several models, one must be chosen."""
    from prometheus_client.parser import text_string_to_metric_families

    if len(content) > LARGEST_BYTES:
        raise DataError(f"metrics are larger than {LARGEST_BYTES >> 20} MiB: {source}")
    reader = _Reader(source, model)
    try:
        text = content.decode("utf-8")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                reader.take(sample.name, sample.labels, float(sample.value))
    except (ValueError, KeyError, IndexError) as error:  # what the parser raises for malformed lines
        raise DataError(f"not Prometheus text: {source}: {error}") from error
    return reader.scrape(moment)


def _meaning(name: str) -> tuple[str, Meaning] | None:
    """The part of a metric (gauge, counter, time, bucket, sum, count) and what it means."""
    plain = name.removesuffix("_total")
    for part, known in (("counter", COUNTERS), ("time", TIMES)):
        if (meaning := known.get(plain)) is not None:
            return part, meaning
    if (meaning := GAUGES.get(name)) is not None:
        return "gauge", meaning
    base, _, part = name.rpartition("_")
    if part in _PARTS and (meaning := HISTOGRAMS.get(base)) is not None:
        return part, meaning
    return None


# {name and labels without ranks: value}, and those by (engine's prefix, quantity, part, bound)
_Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
_Series = dict[tuple[str, str, str, float], _Values]


class _Reader:
    def __init__(self, source: str, model: str | None) -> None:
        self._source = source
        self._wanted = model
        self._models: set[str] = set()
        self._seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        self._series: _Series = {}

    def take(self, name: str, labels: Mapping[str, str], value: float) -> None:
        found = _meaning(name)
        if found is None:
            return
        part, meaning = found
        if meaning.label and labels.get(meaning.label) != meaning.value:
            return
        key = (name, frozenset(labels.items()))
        if key in self._seen:
            raise DataError(f"one series twice: {self._source}: {_shown(name, labels)}")
        self._seen.add(key)
        model = next((labels[label] for label in MODEL_LABELS if labels.get(label)), None)
        if model is not None:
            self._models.add(model)
            if self._wanted is not None and model != self._wanted:
                return
        if math.isnan(value) and name in MAY_BE_NAN:
            return
        value *= meaning.factor
        if not math.isfinite(value) or value < 0:
            raise DataError(f"metric is not a number from 0 up: {self._source}: {name} {value}")
        if meaning.quantity in SHARES and value > 1:
            shown = f"{value / meaning.factor:g}"
            raise DataError(
                f"metric is a share and above {1 / meaning.factor:g}: {self._source}: {name} {shown}",
                hint="a rule that relabels or scales it must leave it as the engine exports it",
            )
        prefix = next(engine for engine in ENGINES if name.startswith(engine))
        bound = float(labels.get("le", "inf")) * meaning.factor if part == "bucket" else math.inf
        group = (name, frozenset(pair for pair in labels.items() if pair[0] not in RANK_LABELS))
        series = self._series.setdefault((prefix, meaning.quantity, part, bound), {})
        series[group] = max(value, series.get(group, 0.0))

    def scrape(self, moment: float) -> Scrape:
        if self._wanted is not None and self._wanted not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise DataError(f"no metrics of model {self._wanted}: {self._source}; models: {known}")
        if self._wanted is None and len(self._models) > 1:
            models = sorted(self._models)
            raise DataError(
                f"metrics of {len(models)} models: {self._source}: {', '.join(models)}",
                hint=f"ask for one at a time: --model {models[0]}",
            )
        found = Scrape(self._source, moment, self._wanted or next(iter(self._models), None))
        # later engines only fill what the ones before them leave open
        for prefix in ENGINES:
            self._fill(found, prefix)
        if not found.gauges.keys() & {"running", "waiting"} and "finished" not in found.counters:
            raise DataError(
                f"no metrics of a known serving engine (vLLM, SGLang, TGI, Triton): {self._source}",
                hint="name the engine's /metrics, started with metrics on (SGLang: --enable-metrics)",
            )
        return found

    def _fill(self, found: Scrape, prefix: str) -> None:
        own = {key[1:]: series for key, series in self._series.items() if key[0] == prefix}
        totals = {
            key: max(series.values()) if key[0] in SHARES else sum(series.values())
            for key, series in own.items()
        }
        gauges = {quantity: value for (quantity, part, _), value in totals.items() if part == "gauge"}
        counters = {quantity: value for (quantity, part, _), value in totals.items() if part == "counter"}
        if not found.engines:
            found.engines = _engines(own)
        if "finished" not in found.counters and "finished" in counters:
            found.answers_whole = prefix in WHOLE_ANSWERS
        found.gauges = gauges | found.gauges
        found.counters = counters | found.counters
        found.histograms = _histograms(totals, counters.get("finished", 0.0)) | found.histograms


def _histograms(totals: Mapping[tuple[str, str, float], float], finished: float) -> dict[str, Histogram]:
    found: dict[str, Histogram] = {}
    for (quantity, part, bound), value in totals.items():
        if part in {"gauge", "counter", "time"}:
            continue
        histogram = found.setdefault(quantity, Histogram())
        if part == "bucket":
            histogram.buckets[bound] = value
        elif part == "sum":
            histogram.sum_seconds = value
        else:
            histogram.count = value
    for (quantity, part, _), value in totals.items():
        if part == "time":
            found.setdefault(quantity, Histogram(finished, value))
    return found


def _engines(series: Mapping[tuple[str, str, float], _Values]) -> dict[str, dict[str, float]]:
    """The queue and the batch of each engine."""
    found: dict[str, dict[str, float]] = {}
    for quantity in ("running", "waiting"):
        for (_, labels), value in series.get((quantity, "gauge", math.inf), {}).items():
            one = found.setdefault(_engine(labels), {})
            one[quantity] = one.get(quantity, 0.0) + value
    return found


def _engine(labels: frozenset[tuple[str, str]]) -> str:
    known = dict(labels)
    return " ".join(f"{label} {known[label]}" for label in ENGINE_LABELS if known.get(label))


def _shown(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
