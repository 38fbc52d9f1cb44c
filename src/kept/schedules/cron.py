"""When the slots of a rule are. Pure: moments in, moments out, all of them in UTC.

A time of day that does not exist, because the clocks go forward over it, comes at the moment they do. One that
exists twice comes once, the first time. Expressions whose minute or hour begins with a star mean real time: they
come as often as the clocks show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kept.durations import Duration, duration
from kept.errors import Refused
from kept.schedules.model import Cron, Every

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MOST_EXPRESSION = 200
SHORTEST = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def every(period: Duration, *, tz: str = "UTC") -> Every:
    """A slot every so often, whatever the clocks on the wall do: ``every("2m")``. *tz*: whose days a blackout names."""
    length = duration(period, field="every")
    if length < SHORTEST:
        raise Refused(f"every: {period} is shorter than a second", field="every")
    return Every(length, check_zone(tz))


def cron(expression: str, *, tz: str = "UTC") -> Cron:
    """Slots by a cron expression, five fields or six with seconds first: ``cron("17 3 * * *", tz="Europe/Berlin")``.

    ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly`` are understood.
    """
    rule = Cron(_check_expression(expression), check_zone(tz))
    if next_cron(rule, _SOME_DAY) is None:
        raise Refused(f"cron: {rule.expression!r} never comes", field="cron")
    return rule


def _check_expression(expression: object) -> str:
    if not isinstance(expression, str):
        raise TypeError(f"cron: expected an expression such as '17 3 * * *', got {type(expression).__name__}")
    text = " ".join(expression.split())
    if len(text) > MOST_EXPRESSION:
        raise Refused(f"cron: an expression has at most {MOST_EXPRESSION} characters", field="cron")
    if text.startswith("@") and text.lower() not in ALIASES:
        raise Refused(f"cron: {text[:40]!r} is not known; there are {', '.join(ALIASES)}", field="cron")
    try:
        CronSim(_fields(text), _SOME_DAY)
    except (CronSimError, ValueError, AssertionError) as error:
        problem = str(error)[:1].lower() + str(error)[1:] or "not understood"
        raise Refused(
            f"cron: {text!r} is not a time that comes ({problem}); write minute, hour, day of month, month and day "
            "of week, as in '17 3 * * *'",
            field="cron",
        ) from None
    return text


def check_zone(name: object) -> str:
    """The name of a time zone, as in ``America/Santiago``."""
    if not isinstance(name, str):
        raise TypeError(f"tz: expected the name of a time zone, got {type(name).__name__}")
    try:
        _zone(name)
    except (KeyError, ValueError, OSError):  # unknown, a path that leads elsewhere, a directory
        raise Refused(
            f"tz: {name[:80]!r} is not a time zone that is known here; write a name like 'Europe/Berlin'", field="tz"
        ) from None
    return name


@lru_cache(maxsize=1000)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def local(moment: datetime, zone: str) -> datetime:
    """*moment* on the clocks of *zone*."""
    return moment.astimezone(_zone(zone))


def end_of_day(day: date, zone: str) -> datetime:
    """The last moment of *day* on the clocks of *zone*."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=_zone(zone)) + timedelta(days=1)
    return midnight.astimezone(UTC) - timedelta(microseconds=1)


def next_every(rule: Every, anchor: datetime, after: datetime) -> datetime:
    """The first moment after *after* that is a whole number of periods from *anchor*, and not before it."""
    if after < anchor:
        return anchor
    return anchor + ((after - anchor) // rule.period + 1) * rule.period


def next_cron(rule: Cron, after: datetime) -> datetime | None:
    """The first slot after *after*; None if there is none."""
    fields = _fields(rule.expression)
    try:
        if _is_wall_clock(fields):
            return next((slot for slot in _wall_clock_slots(fields, rule.zone, after) if slot > after), None)
        return _next_shown(fields, _zone(rule.zone), after)
    except (StopIteration, OverflowError):  # not within many years, or past the last one there is
        return None


def _fields(expression: str) -> str:
    return ALIASES.get(expression.lower(), expression)


def _is_wall_clock(fields: str) -> bool:
    """Whether it names times of the day, as cron on Debian judges it: neither minute nor hour begins with a star."""
    minute, hour = fields.split()[-5:][:2]
    return not minute.startswith("*") and not hour.startswith("*")


def _wall_clock_slots(fields: str, zone: str, after: datetime) -> Iterator[datetime]:
    # On a clock that never changes; what it shows is then looked up on the real one. From a second before: the
    # hand may have been set back, so that what it shows is later than what comes next.
    shown = local(after, zone).replace(tzinfo=None, fold=0, microsecond=0) - timedelta(seconds=1)
    for time in CronSim(fields, shown):
        yield _when(time, _zone(zone))


def _next_shown(fields: str, zone: ZoneInfo, after: datetime) -> datetime:
    """The first moment after *after* at which the clocks of *zone* show a time of *fields*.

    Looked for on a clock that never changes, as far as the real one does not either; then from the change on.
    """
    offset = _offset(after, zone)
    shown = after.replace(tzinfo=None) + offset
    while True:
        slot = (next(CronSim(fields, shown)) - offset).replace(tzinfo=UTC)
        change = _next_change(zone, after, slot)
        if change is None:
            return slot
        after, offset = change, _offset(change, zone)
        shown = change.replace(tzinfo=None) + offset - timedelta(seconds=1)  # the moment of the change counts


def _next_change(zone: ZoneInfo, after: datetime, upto: datetime) -> datetime | None:
    """The first moment after *after* and not after *upto* at which the clocks of *zone* are changed."""
    while after < upto:
        end = min(upto, after + _DAY)  # nobody changes them twice within a day
        if _offset(end, zone) != _offset(after, zone):
            return _change_between(zone, after, end)
        after = end
    return None


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    offset = _offset(before, zone)
    low, high = int(before.timestamp()), -int(-after.timestamp() // 1)  # clocks are changed at whole seconds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(datetime.fromtimestamp(middle, UTC), zone) == offset else (low, middle)
    return datetime.fromtimestamp(high, UTC)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _when(shown: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the clocks of *zone* show *shown*, or have gone past it."""
    while True:
        moment = shown.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == shown:
            return moment
        shown = shown.replace(second=0) + _MINUTE  # it was left out; clocks are set to whole minutes
