"""Durations as people write them: ``250ms``, ``60s``, ``10min``, ``24h``, ``7d``; and moments. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from kept.errors import Refused

Duration = str | timedelta

_UNITS = {
    "us": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*[a-z]+\s*)+")
LONGEST = timedelta(days=3650)
FIRST_YEAR, LAST_YEAR = 3, 9997  # a day of any zone in these years is one that the database takes


def parse(text: str, *, field: str = "duration") -> timedelta:
    """Read ``"1h30m"``; refuse what has no unit, an unknown unit, or lasts longer than ten years."""
    wanted = text.strip().lower()
    shown = f"{field}: {text[:40]!r}"
    if not _WHOLE.fullmatch(wanted):
        raise Refused(f"{shown} is not a duration; write it like '250ms', '60s', '10min' or '24h'", field=field)
    total = timedelta()
    for number, unit in _PART.findall(wanted):
        if unit not in _UNITS:
            raise Refused(f"{shown} has an unknown unit {unit[:20]!r}; known: {', '.join(_UNITS)}", field=field)
        try:
            total += _UNITS[unit] * float(number)
        except OverflowError:
            total = LONGEST * 2
    if total > LONGEST:
        raise Refused(f"{shown} is longer than ten years", field=field)
    return total


def duration(value: object, *, field: str = "duration") -> timedelta:
    """A duration from a caller: a string with a unit or a timedelta, never negative, never a bare number."""
    if isinstance(value, str):
        return parse(value, field=field)
    if not isinstance(value, timedelta):
        raise TypeError(
            f"{field}: expected a duration like '30s' or a timedelta, got {type(value).__name__}; "
            "a bare number has no unit"
        )
    if value < timedelta():
        raise Refused(f"{field}: must not be negative", field=field)
    if value > LONGEST:
        raise Refused(f"{field}: is longer than ten years", field=field)
    return value


def moment(value: object, *, field: str) -> datetime:
    """A moment from a caller: a datetime with a time zone, in a year that the database takes."""
    if not isinstance(value, datetime):
        raise TypeError(f"{field}: expected a datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        raise Refused(f"{field}: has no time zone; say which one, for example datetime.now(UTC)", field=field)
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise Refused(f"{field}: the year {value.year} is not between {FIRST_YEAR} and {LAST_YEAR}", field=field)
    return value


def render(value: timedelta) -> str:
    """One number with the largest unit, up to days, that leaves no rest; :func:`parse` reads it back."""
    micros = value // timedelta(microseconds=1)
    for unit in ("d", "h", "min", "s", "ms"):
        size = _UNITS[unit] // timedelta(microseconds=1)
        if micros and micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us" if micros else "0s"
