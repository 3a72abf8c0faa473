"""The columns of serving tables: which headings mean what, and in which unit they say it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.columns import Synonyms, normalised

_SECONDS: Mapping[str, float] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs", "usec", "micros", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_PERCENT = frozenset({"%", "percent", "pct"})
# words in brackets that are no units
_STATISTICS = frozenset({"", "mean", "avg", "average"})


class Kind(StrEnum):
    """What a column's values are."""

    COUNT = "requests"
    DURATION = "s, ms, us, min or h"
    REQUESTS = "requests/s or requests/min"
    TOKENS = "tokens/s or tokens/min"
    SHARE = "% or a share from 0 to 1"


KINDS = {
    "running": Kind.COUNT,
    "waiting": Kind.COUNT,
    "requests_per_second": Kind.REQUESTS,
    "tokens_per_second": Kind.TOKENS,
    "first_result_seconds": Kind.DURATION,
    "first_result_p95_seconds": Kind.DURATION,
    "queue_seconds": Kind.DURATION,
    "computing_seconds": Kind.DURATION,
    "kv_cache": Kind.SHARE,
    "busy": Kind.SHARE,
}
_WORDS = {
    "time": "time timestamp date datetime",
    "replica": "replica instance pod server host engine",
    "model": "model modelname servedmodelname",
    "running": "running batchsize batch numrequestsrunning numrunningreqs runningrequests requestsrunning",
    "waiting": "waiting queuedepth queue queuelength queuesize numrequestswaiting numqueuereqs"
    " waitingrequests requestswaiting pendingrequests",
    "requests_per_second": "requests request req reqs throughput requestthroughput requestrate rps qps"
    " requestspersecond finishedpersecond rpm",
    "tokens_per_second": "tokens token tok toks tokenthroughput throughputtokens genthroughput outputtokens"
    " generationtokens generationthroughput tokenspersecond",
    "first_result_seconds": "timetofirsttoken ttft firsttoken firstresult timetofirstresult",
    "first_result_p95_seconds": "timetofirsttokenp95 ttftp95 p95timetofirsttoken p95ttft firsttokenp95"
    " firstresultp95",
    "queue_seconds": "queuetime requestqueuetime queue queuewait waittime",
    "computing_seconds": "computing computetime computingtime",
    "kv_cache": "kvcache kvcacheuse kvcacheusage kvcacheusageperc gpucacheusageperc kvcacheutilization"
    " kvcacheutilisation tokenusage",
    "busy": "busy utilisation utilization gpuutilisation gpuutilization gpuutil busyshare dcgmfidevgpuutil",
}
_RATE = re.compile(r"(?P<what>[a-z]*) ?(?:/|per|p) ?(?P<time>[a-z]+)")
_REQUEST_WORDS = frozenset({"", "request", "requests", "req", "reqs"})
_TOKEN_WORDS = frozenset({"token", "tokens", "tok", "toks"})


def _columns() -> Synonyms:
    """Every heading with the units that may stand behind it, as headings are normalised."""
    found: dict[str, frozenset[str]] = {}
    for field, text in _WORDS.items():
        words = set(text.split())
        kind = KINDS.get(field)
        if kind is Kind.DURATION:
            # a bare `queue` is a queue of requests, and so are queues
            units = [unit for unit in _SECONDS if unit.isascii()]
            words = (words | {word + unit for word in words for unit in units}) - {"queue", "queues"}
        elif kind in {Kind.REQUESTS, Kind.TOKENS}:
            # `requests` or `tokens` alone would be a counter
            plain = words - _REQUEST_WORDS - _TOKEN_WORDS - {"outputtokens", "generationtokens"}
            rates = {word + per + unit for word in words for per in ("", "per") for unit in _SECONDS}
            words = plain | rates | {word + "per" for word in words}
        elif kind is Kind.SHARE:
            words |= {word + unit for word in words for unit in ("percent", "pct", "share", "ratio")}
        found[field] = frozenset(words)
    return found


COLUMNS: Synonyms = _columns()


def factor_of(path: str, field: str, heading: str) -> tuple[float, bool]:
    """What a column's values are multiplied by, and whether its heading says percent.

    An unknown unit, or one of something else, is refused.
    """
    kind = KINDS[field]
    brackets = [text.strip().lower() for text in re.findall(r"[(\[]([^)\]]*)[)\]]", heading)]
    units = [text for text in brackets if text not in _STATISTICS]
    bare = re.sub(r"[(\[][^)\]]*[)\]]", " ", heading)
    words = re.findall(r"[a-zµμ]+|%|/", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", bare).lower())
    factors = {_factor(kind, unit) for unit in units}
    if (tail := _tail(kind, words)) is not None:
        factors.add(tail)
    # requests or tokens? both are called so
    vague = not factors and normalised(heading) == "throughput"
    if None in factors or len(factors) > 1 or vague:
        raise DataError(
            f"{path}: the unit of column `{heading}` is not clear",
            hint=f"call the column `{field}`, or write its unit behind its name: {kind}",
        )
    factor = next((found for found in factors if found is not None), 1.0)
    return factor, kind is Kind.SHARE and factor != 1.0


def _factor(kind: Kind, unit: str) -> float | None:
    """Of a unit in brackets; None where it is none of this kind."""
    if kind is Kind.COUNT:
        return 1.0 if unit in {"requests", "reqs", "req", "count", "#"} else None
    if kind is Kind.DURATION:
        return _SECONDS.get(unit)
    if kind is Kind.SHARE:
        return 0.01 if unit in _PERCENT else 1.0 if unit in {"0-1", "share", "ratio"} else None
    if unit in {"rps", "qps", "rpm"}:
        unit = "req/min" if unit == "rpm" else "req/s"
    match = _RATE.fullmatch(unit)
    if match is None or match["time"] not in _SECONDS:
        return None
    right = _REQUEST_WORDS if kind is Kind.REQUESTS else _TOKEN_WORDS
    return 1 / _SECONDS[match["time"]] if match["what"] in right else None


def _tail(kind: Kind, words: list[str]) -> float | None:
    """Of a unit that ends a heading without brackets."""
    last = words[-1] if words else ""
    if kind is Kind.DURATION:
        return _SECONDS.get(last)
    if kind is Kind.SHARE:
        return 0.01 if last in _PERCENT or words[:1] == ["dcgm"] else None
    if kind is Kind.COUNT:
        return None
    if last in {"rps", "qps", "rpm"}:
        return 1 / 60 if last == "rpm" else 1.0
    rest = re.search(r"(?:persecond|second|seconds)$", last)
    if rest:
        return 1.0
    return 1 / _SECONDS[last] if last in _SECONDS else None
