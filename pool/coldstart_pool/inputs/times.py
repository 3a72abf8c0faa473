"""Instants as tables write them; the zone and the order of day and month are decided once for a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,12})?", re.ASCII)
_EXPONENT = re.compile(r"\d(\.\d{1,15})?[eE]\+?\d{1,2}", re.ASCII)
_SLASHES = re.compile(
    r"([0-9]{1,2})([/.])([0-9]{1,2})[/.]([0-9]{4})"
    r"(?:[ T,]+([0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)(?:\s*[AaPp]\.?[Mm]\.?)?)?"
)
_HALF_DAY = re.compile(r"(.*:\d\d(?:\.\d+)?)\s*([AaPp])\.?[Mm]\.?")
_SHORT_HOUR = re.compile(r"(?<=\d\d[ T])(?=\d:)")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_RELATIVE = "seconds from the start of the trace"
# what a number is, by its size; a date of our days has 10 digits in seconds and 13 in milliseconds
_NUMBERS = (
    (10**8, 1, _RELATIVE),
    (10**11, 1, "seconds since 1970"),
    (10**14, 1000, "milliseconds since 1970"),
    (10**17, 10**6, "microseconds since 1970"),
)


# spreadsheets count days from here; of 2000 to 2100, which as seconds of a trace are 10 to 20 hours
_SPREADSHEET_START = datetime(1899, 12, 30)  # noqa: DTZ001 - a day of any zone
_SPREADSHEET_DAYS = (36_526, 73_050)
# a thousand years either side of 1970 would not fit into 64 bits of nanoseconds
FURTHEST_SECONDS = 9_000_000_000
_MOST_REMEMBERED = 1 << 16


class BadTimeError(ValueError):
    """The text names no instant; `questioned` where it names two."""

    def __init__(self, text: str, *, questioned: bool = False, zoneless: bool = False) -> None:
        super().__init__(text)
        self.questioned = questioned
        self.zoneless = zoneless


class Clock:
    """Reads the times of one file; `decisions` says how."""

    def __init__(
        self,
        cells: Iterable[str],
        zone: tzinfo | None,
        *,
        accept_ambiguous: bool = False,
        ordered: bool = False,
        dates: bool = False,
        unit_seconds: Fraction | None = None,
    ) -> None:
        """`dates` never count from the start of a trace; `unit_seconds` is the unit that a heading states."""
        self._zone = zone
        self._ordered = ordered
        self._latest: datetime | None = None
        self._accept_ambiguous = accept_ambiguous
        self._seen: set[str] = set()
        self._dates = dates
        self._unit_seconds = unit_seconds
        self._known: dict[str, Fraction] = {}
        first, second = set(), set()
        days: bool | None = None
        for cell in cells:
            if cell and days is not False:
                days = _is_spreadsheet_day(cell)
            if "/" in cell and (match := _SLASHES.fullmatch(cell.strip())):
                first.add(int(match[1]))
                second.add(int(match[3]))
        day_first, month_first = any(n > 12 for n in first), any(n > 12 for n in second)
        self._day_first = None if day_first == month_first else day_first
        self._contradiction = day_first and month_first
        self._spreadsheet_days = bool(days) and unit_seconds is None

    @property
    def since_1970(self) -> bool:
        return _RELATIVE not in self._seen

    @property
    def mixed(self) -> bool:
        """Dates and seconds from a start of their own stand side by side: they cannot be compared."""
        return not self.since_1970 and len(self._seen) > 1

    @property
    def decision(self) -> str:
        return "; ".join(sorted(self._seen))

    def seconds(self, text: str) -> Fraction:
        """Seconds since 1970, or since the start of the trace; raises `BadTimeError`."""
        if (found := self._known.get(text)) is None:
            found = self._seconds(text.strip())
            if abs(found.numerator) > FURTHEST_SECONDS * found.denominator:
                raise BadTimeError(f"`{text.strip()}` is out of any sensible range")
            if not self._ordered and len(self._known) < _MOST_REMEMBERED:
                self._known[text] = found
        return found

    def _seconds(self, text: str) -> Fraction:
        if self._spreadsheet_days and _is_spreadsheet_day(text):
            return self._day_of_spreadsheet(text)
        if _NUMBER.fullmatch(text):
            whole, _, part = text.partition(".")
            return self._number(int(whole + part), 10 ** len(part))
        if _EXPONENT.fullmatch(text):
            value = Fraction(text)
            return self._number(value.numerator, value.denominator)
        moment = self._moment(text)
        if moment.tzinfo is not None:
            self._seen.add("times with their offset")
        else:
            moment = self._localised(text, moment)
        return _since_1970(text, moment)

    def _day_of_spreadsheet(self, text: str) -> Fraction:
        """Days since 1900 where only dates stand; else they might be the seconds of a trace."""
        moment = _SPREADSHEET_START + timedelta(milliseconds=round(Fraction(text) * 86_400_000))
        if self._dates:
            self._seen.add("days as spreadsheets count them")
            return _since_1970(text, self._localised(text, moment))
        if not self._accept_ambiguous:
            raise BadTimeError(
                f"`{text}` may be a spreadsheet's day ({moment:%Y-%m-%d %H:%M}) or seconds from the start of "
                "a trace: export dates, or head the column `time (s)`",
                questioned=True,
            )
        return self._number(*Fraction(text).as_integer_ratio())

    def _number(self, numerator: int, denominator: int) -> Fraction:
        if self._unit_seconds is not None:
            value = Fraction(numerator, denominator) * self._unit_seconds
            self._seen.add(_RELATIVE if value < _NUMBERS[0][0] else "since 1970, in the unit of the heading")
            return value
        for most, divisor, said in _NUMBERS:
            if numerator < most * denominator:
                self._seen.add(said)
                return Fraction(numerator, denominator * divisor)
        self._seen.add("nanoseconds since 1970")
        return Fraction(numerator, denominator * 10**9)

    def _moment(self, text: str) -> datetime:
        if match := _HALF_DAY.fullmatch(text):
            moment = self._moment(match[1])
            if not 1 <= moment.hour <= 12:
                raise BadTimeError(f"`{text}` is not a time")
            return moment.replace(hour=moment.hour % 12 + 12 * (match[2] in "pP"))
        if match := _SLASHES.fullmatch(text):
            return self._slashes(text, match)
        try:
            # `20240101` would be read as a date too, but is a number: numbers were taken before
            if not _ISO_DATE.match(text):
                raise ValueError  # noqa: TRY301 - both end in the same sentence
            return datetime.fromisoformat(_SHORT_HOUR.sub("0", text.replace(" UTC", "Z")))
        except ValueError as error:
            raise BadTimeError(f"`{text}` is not a time") from error

    def _slashes(self, text: str, match: re.Match[str]) -> datetime:
        day, month = int(match[1]), int(match[3])
        if match[2] == "/":
            if self._contradiction:
                raise BadTimeError(f"`{text}`: day and month change places in this file")
            if self._day_first is None and day != month:
                raise BadTimeError(f"`{text}` may be day/month or month/day: write it as 2024-01-31")
            day, month = (day, month) if self._day_first else (month, day)
            self._seen.add("day/month/year" if self._day_first else "month/day/year")
        try:
            clock = f"T{match[5]:0>5}" if match[5] and len(match[5].split(":")[0]) == 2 else f"T0{match[5]}"
            return datetime.fromisoformat(f"{match[4]}-{month:02}-{day:02}{clock if match[5] else ''}")
        except ValueError as error:
            raise BadTimeError(f"`{text}` is not a time") from error

    def _localised(self, text: str, moment: datetime) -> datetime:
        zone = self._zone
        if zone is None:
            raise BadTimeError(f"time without offset: `{text}`", zoneless=True)
        self._seen.add(f"times without offset read as {zone}")
        earlier, later = moment.replace(tzinfo=zone, fold=0), moment.replace(tzinfo=zone, fold=1)
        try:
            if earlier.utcoffset() != later.utcoffset():
                # in a gap the round trip through UTC ends elsewhere; in a fold both are real
                if earlier.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment:
                    raise BadTimeError(f"`{text}` does not exist in {zone}: the clocks went forward")
                if self._ordered:
                    # rows that go forward in time pass the hour once and then once more
                    earlier = later if self._is_behind(earlier) else earlier
                    self._seen.add("the hour that came twice is told apart by the order of rows")
                elif not self._accept_ambiguous:
                    raise BadTimeError(
                        f"`{text}` happened twice in {zone}: the clocks went back", questioned=True
                    )
            instant = earlier.astimezone(UTC)
        except OverflowError as error:
            raise BadTimeError(f"`{text}` is out of range") from error
        self._latest = instant
        return instant

    def _is_behind(self, moment: datetime) -> bool:
        return self._latest is not None and moment.astimezone(UTC) <= self._latest


def _is_spreadsheet_day(text: str) -> bool:
    first, last = _SPREADSHEET_DAYS
    return _NUMBER.fullmatch(text) is not None and first <= int(text.partition(".")[0]) < last


def _since_1970(text: str, moment: datetime) -> Fraction:
    try:
        delta = moment - _EPOCH
    except OverflowError as error:
        raise BadTimeError(f"`{text}` is out of range") from error
    count = delta.days * 86400 + delta.seconds
    return Fraction(count * 10**6 + delta.microseconds, 10**6) if delta.microseconds else Fraction(count)


def age_days(seconds: Fraction, now: datetime) -> Fraction:
    """Days from an instant to now."""
    delta: timedelta = now - _EPOCH
    return (Fraction(delta.days * 86400 + delta.seconds) - seconds) / 86400
