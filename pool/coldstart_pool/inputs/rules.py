"""How tables are to be read where the files themselves leave it open: what the operator typed, exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_pool.inputs.fields import FIELDS, TableKind
from coldstart_pool.inputs.numbers import BadNumberError, parse_number

_OLDEST_PRICE_DAYS = Fraction(30)
_HIGHEST_RATE = Fraction(1000)


@dataclass(frozen=True)
class ReadingRules:
    """What the files do not say; everything is decided per file and said in its report."""

    headings: Mapping[tuple[TableKind, str], str] = field(default_factory=dict)
    """(table, field) -> the heading that holds it, whatever the synonyms say."""
    constants: Mapping[tuple[TableKind, str], str] = field(default_factory=dict)
    """(table, field) -> the value of every row, for a field that has no column."""
    time_zone: tzinfo | None = None
    """The zone of times that state none; without it they are refused."""
    rates: Mapping[str, Fraction] = field(default_factory=dict)
    """Currency -> US dollars for one of it."""
    accept_suspicious: bool = False
    oldest_price_days: Fraction = _OLDEST_PRICE_DAYS
    age_by_file: bool = False
    """A limit was typed: a price without a date is as old as its file."""
    service_rate: Fraction | None = None
    """Requests per second that one replica serves."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


def reading_rules(
    *,
    maps: Iterable[str] = (),
    constants: Iterable[str] = (),
    time_zone: str | None = None,
    rates: Iterable[str] = (),
    accept_suspicious: bool = False,
    oldest_price_days: float | None = None,
    service_rate: float | None = None,
) -> ReadingRules:
    """Rules from what was typed; what cannot be is refused by option."""
    if oldest_price_days is not None and not 0 < oldest_price_days <= 36_500:
        raise UsageError(f"--oldest-price must be a number of days above 0: {oldest_price_days}")
    if service_rate is not None and not 0 < service_rate <= 10**9:
        raise UsageError(f"--service-rate must be a number of requests per second above 0: {service_rate}")
    return ReadingRules(
        headings=_assignments("--map", "HEADING", maps),
        constants=_assignments("--set", "VALUE", constants),
        time_zone=None if time_zone is None else _zone(time_zone),
        rates=dict(map(_rate, rates)),
        accept_suspicious=accept_suspicious,
        oldest_price_days=(
            _OLDEST_PRICE_DAYS if oldest_price_days is None else Fraction(str(oldest_price_days))
        ),
        age_by_file=oldest_price_days is not None,
        service_rate=None if service_rate is None else Fraction(str(service_rate)),
    )


def _assignments(option: str, what: str, texts: Iterable[str]) -> dict[tuple[TableKind, str], str]:
    found: dict[tuple[TableKind, str], str] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        table, dot, name = target.strip().partition(".")
        if not (equals and dot and value.strip()):
            raise UsageError(
                f"{option} takes TABLE.FIELD={what}: `{text}`",
                hint=f"for example `{option} prices.gpu={'Accelerator' if option == '--map' else 'H100'}`",
            )
        if table not in set(TableKind):
            raise UsageError(
                f"{option} names no table: `{table}`",
                hint=near_matches_hint(table, TableKind, otherwise=f"tables: {', '.join(TableKind)}"),
            )
        kind = TableKind(table)
        if name not in FIELDS[kind]:
            raise UsageError(
                f"{option} names no field of {table}: `{name}`",
                hint=near_matches_hint(
                    name, FIELDS[kind], otherwise=f"fields: {', '.join(sorted(FIELDS[kind]))}"
                ),
            )
        if (kind, name) in found:
            raise UsageError(f"{option} names `{table}.{name}` twice")
        found[kind, name] = value.strip()
    return found


def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "Z"}:
        return UTC  # needs no time-zone data on this host
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"--tz names no time zone of this host: `{name}`",
            hint=near_matches_hint(name, available_timezones(), otherwise="for example `--tz Europe/Berlin`"),
        ) from error


def _rate(text: str) -> tuple[str, Fraction]:
    currency, equals, number = text.partition("=")
    code = currency.strip().upper()
    try:
        rate = parse_number(number) if equals else Fraction(0)
    except BadNumberError as error:
        raise UsageError(f"--rate: {error}: `{text}`") from error
    if not (len(code) == 3 and code.isascii() and code.isalpha() and 0 < rate <= _HIGHEST_RATE):
        raise UsageError(
            f"--rate takes CURRENCY=DOLLARS: `{text}`",
            hint="for example `--rate EUR=1.08`: one euro is 1.08 USD",
        )
    if code == "USD" and rate != 1:
        raise UsageError(f"--rate: a US dollar is a US dollar: `{text}`")
    return code, rate
