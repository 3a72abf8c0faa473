"""The unit that a heading states: `lead (min)`, `price per day`, `Preis pro Stunde`, `requests/min`."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_HOUR = Fraction(3600)
_SECONDS: dict[str, Fraction] = {
    **dict.fromkeys(("ns", "nanoseconds", "nanos"), Fraction(1, 10**9)),
    **dict.fromkeys(("us", "microseconds", "micros"), Fraction(1, 10**6)),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "sek", "sekunde", "sekunden"), Fraction(1)),
    **dict.fromkeys(("seconde", "secondes"), Fraction(1)),
    **dict.fromkeys(("min", "mins", "minute", "minutes", "minuten"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "hourly", "std", "stunde", "stunden"), _HOUR),
    **dict.fromkeys(("heure", "heures", "horaire"), _HOUR),
    **dict.fromkeys(("day", "days", "daily", "tag", "tage", "jour", "jours"), 24 * _HOUR),
    **dict.fromkeys(("week", "weeks", "weekly", "woche", "wochen", "semaine", "semaines"), 168 * _HOUR),
    # a month as clouds bill it
    **dict.fromkeys(("month", "months", "monthly", "monat", "monate", "mois", "mensuel"), 730 * _HOUR),
    **dict.fromkeys(("year", "years", "yearly", "annual", "jahr", "jahre", "annee"), 8760 * _HOUR),
}
_ADJECTIVES = {"hourly", "daily", "weekly", "monthly", "yearly", "annual"}
_MONEY = {"usd", "eur", "gbp", "dollar", "dollars", "euro", "euros"}
_BESIDE = {"per", "pro", "je", "par", "in", "en", "and", "und", "et", "a", "1", *_MONEY}
_GPU = {"gpu", "gpus"}
_BRACKETS = re.compile(r"\([^)]*\)|\[[^\]]*\]")
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class HeadingUnit:
    """What a heading says beside its name; `seconds` of the unit of time, None where it states none."""

    name: str
    """The heading without its unit, in small Latin letters."""
    seconds: tuple[Fraction, ...] = ()
    """Of each unit of time in it; two that differ contradict each other."""
    of_gpu: bool = False
    """For one GPU: `price ($/GPU/h)`; of counts, in GPUs: `available (GPUs)`."""
    brackets: tuple[str, ...] = ()
    """The words in brackets."""


def plain(text: str) -> str:
    """Small letters without accents: `Verfügbar` is `verfugbar`."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", text)
    return "".join(
        sign for sign in unicodedata.normalize("NFKD", split.casefold()) if not unicodedata.combining(sign)
    )


@lru_cache(maxsize=4096)
def heading_unit(heading: str) -> HeadingUnit:
    """The unit in brackets, behind the name or, as an adjective, before it."""
    text = plain(heading)
    brackets = tuple(word for part in _BRACKETS.findall(text) for word in _WORD.findall(part))
    found = [*brackets]
    words = _WORD.findall(_BRACKETS.sub(" ", text))
    while len(words) > 1 and (words[-1] in _SECONDS or words[-1] in _BESIDE or words[-1] in _GPU):
        found.append(words.pop())
    while len(words) > 1 and words[0] in _ADJECTIVES:
        found.append(words.pop(0))
    seconds = tuple(sorted({_SECONDS[word] for word in found if word in _SECONDS}))
    return HeadingUnit("".join(words), seconds, bool(_GPU & set(found)), brackets)
