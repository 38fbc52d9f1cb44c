"""Which slots fire, which are passed by, and when to look again. Pure: the moment is an argument."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import assert_never

from msgspec import structs

from kept.durations import Duration, duration, moment
from kept.errors import Refused
from kept.schedules.cron import SHORTEST, end_of_day, local, next_cron, next_every
from kept.schedules.model import Cron, Decision, Every, Misfire, Overlap, Slot, Standing, Terms, Timetable

ON_TIME = timedelta(seconds=60)  # a slot no older than this is not late, even where late ones are skipped
AGAIN = timedelta(seconds=1)  # between looks whether the job has ended that a queued slot waits for
MOST_SLOTS = 1000  # that may be made up for after a downtime
MOST_COUNTED = 100  # slots that nobody fired; more are not worth counting
MOST_BLACKOUT = 1000
EARLIEST = timedelta(microseconds=1)
BLACKED_OUT = 4000  # days in a row without a slot: no more are looked through
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_YEARLY = re.compile(r"\d{2}-\d{2}")


# --- when the slots are


def next_slot(table: Timetable, after: datetime) -> datetime | None:
    """The first slot after *after*; None if there is none, or none within ten years of days left out."""
    at: datetime | None = after if table.starts_at is None else max(after, table.starts_at - EARLIEST)
    for _ in range(BLACKED_OUT):
        at = _next(table, at) if at is not None else None
        if at is None or (table.ends_at is not None and at > table.ends_at):
            return None
        day = local(at, table.rule.zone).date()
        if not is_left_out(day, table.blackout):
            return at
        at = max(at, end_of_day(day, table.rule.zone))
    return None


def _next(table: Timetable, after: datetime) -> datetime | None:
    match table.rule:
        case Every():
            return next_every(table.rule, table.anchor, after)
        case Cron():
            return next_cron(table.rule, after)


def slots(table: Timetable, after: datetime, upto: datetime) -> Iterator[datetime]:
    """Every slot after *after* and not after *upto*, in order."""
    return takewhile(lambda at: at <= upto, upcoming(table, after))


def upcoming(table: Timetable, after: datetime) -> Iterator[datetime]:
    """Every slot after *after*, in order; of most schedules there is no end of them."""
    at = next_slot(table, after)
    while at is not None:
        yield at
        at = next_slot(table, at)


def latest(table: Timetable, after: datetime, upto: datetime, most: int) -> list[datetime]:
    """The last *most* of :func:`slots`, without going through all that a long downtime has left.

    Looks back twice as far each time; where that goes from too few to too many, it looks in between.
    """
    few, many, back = upto, None, most * SHORTEST
    while True:
        start = max(after, upto - back) if many is None else many + (few - many) / 2
        found = list(islice(slots(table, start, upto), 2 * most + 1))
        if len(found) > 2 * most:
            many = start
        elif len(found) >= most or start == after:
            return found[-most:]
        else:
            few, back = start, min(2 * back, upto - after)


def is_left_out(day: date, blackout: Iterable[str]) -> bool:
    """Whether *day* is one of the *blackout*."""
    shown = day.isoformat()
    for entry in blackout:
        first, _, last = entry.partition("..")
        if (first <= shown <= last) if last else shown.endswith(entry):
            return True
    return False


# --- what happens to those that have come


def decide(schedule: Standing, now: datetime) -> Decision:
    """What becomes of every slot up to *now*, and where the schedule stands then."""
    first = next_slot(schedule.table, schedule.last_slot)
    second = next_slot(schedule.table, first) if first is not None and first <= now else None
    come, missed = _come(schedule, now, first, second)
    waiting = [*([] if schedule.queued_slot is None else [schedule.queued_slot]), *come]  # first come
    queued = None
    match schedule.terms.overlap:
        case "allow":
            decided = [_fired(schedule, at, now) for at in waiting]
        case "skip":
            decided = _one_of(schedule, waiting, now)
        case "queue":
            decided, queued = _in_line(schedule, waiting, now)
        case _:
            assert_never(schedule.terms.overlap)
    if missed and not come:
        decided.append(Slot(_last_missed(schedule, now), "missed", "misfire", missed))
    elif missed:
        decided = [structs.replace(each, missed=missed) if each.at == come[0] else each for each in decided]
    last = max((schedule.last_slot, *(each.at for each in decided)))
    # Looking for a slot is what a decision costs, so none is looked for twice.
    known = {schedule.last_slot: first, first: second}
    coming = known[last] if last in known else next_slot(schedule.table, last)
    look_at = coming if queued is None else min(coming or now + AGAIN, now + AGAIN)
    return Decision(tuple(decided), last, coming, queued, look_at)


def _come(
    schedule: Standing, now: datetime, first: datetime | None, second: datetime | None
) -> tuple[list[datetime], int]:
    """The slots that are to fire by the misfire policy, and how many others came."""
    if first is None or first > now:
        return [], 0
    terms, after = schedule.terms, schedule.last_slot
    within = ON_TIME if terms.misfire == "skip" else terms.within
    floor = after if within is None else max(after, now - within - EARLIEST)
    if second is None or second > now:  # one has come, as mostly
        return ([first], 0) if first > floor else ([], 1)
    come = latest(schedule.table, floor, now, terms.most if terms.misfire == "all" else 1)
    before = come[0] - EARLIEST if come else now
    missed = sum(1 for _ in islice(slots(schedule.table, after, before), MOST_COUNTED))
    return come, missed


def _last_missed(schedule: Standing, now: datetime) -> datetime:
    return latest(schedule.table, schedule.last_slot, now, 1)[0]


def _fired(schedule: Standing, at: datetime, now: datetime) -> Slot:
    delayed = at + spread(schedule.name, at, schedule.terms.jitter)
    return Slot(at, "fired", due_at=max(now, delayed))


def _passed_by(at: datetime) -> Slot:
    return Slot(at, "skipped", "overlap")


def _one_of(schedule: Standing, waiting: list[datetime], now: datetime) -> list[Slot]:
    """One job at a time; a slot that waits may be left from when this schedule queued them."""
    free = 0 if schedule.busy else 1
    return [_fired(schedule, at, now) for at in waiting[:free]] + [_passed_by(at) for at in waiting[free:]]


def _in_line(schedule: Standing, waiting: list[datetime], now: datetime) -> tuple[list[Slot], datetime | None]:
    """One job at a time, and one slot that waits for it to end; those that come meanwhile are passed by."""
    free = 0 if schedule.busy else 1
    decided = [_fired(schedule, at, now) for at in waiting[:free]]
    queued = waiting[free] if len(waiting) > free else None
    if queued is not None and queued != schedule.queued_slot:
        decided.append(Slot(queued, "queued"))
    return decided + [_passed_by(at) for at in waiting[free + 1 :]], queued


def spread(name: str, at: datetime, jitter: timedelta) -> timedelta:
    """How much later than its slot a job is due: the same whoever asks, different for every schedule and slot."""
    if not jitter:
        return jitter
    drawn = hashlib.blake2b(f"{name} {at.astimezone(UTC).isoformat()}".encode(), digest_size=4).digest()
    return jitter * (int.from_bytes(drawn) / 2**32)


# --- what somebody asks for


def check_terms(
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    blackout: Iterable[date | str] = (),
    jitter: Duration | None = None,
    misfire: str = "once",
    most: int | None = None,
    within: Duration | None = None,
    overlap: str = "skip",
) -> Terms:
    """The terms of a schedule, checked one by one and together."""
    if start is not None and end is not None and moment(end, field="end") <= moment(start, field="start"):
        raise Refused("end: must be after start", field="end")
    checked = _check_misfire(misfire)
    return Terms(
        starts_at=None if start is None else moment(start, field="start"),
        ends_at=None if end is None else moment(end, field="end"),
        blackout=tuple(sorted({_check_blackout(each) for each in _entries(blackout)})),
        jitter=timedelta() if jitter is None else duration(jitter, field="jitter"),
        misfire=checked,
        most=_check_most(most, checked, overlap),
        within=_check_within(within, checked),
        overlap=_check_overlap(overlap),
    )


def check_table(table: Timetable, after: datetime) -> datetime:
    """The first slot, or a refusal: a schedule without one is a mistake."""
    first = next_slot(table, after)
    if first is None:
        raise Refused("this schedule never fires: no slot of its rule lies before its end and on a day left in")
    return first


def _check_misfire(misfire: str) -> Misfire:
    match misfire:
        case "skip" | "once" | "all":
            return misfire
        case _:
            raise Refused(f"misfire: {misfire!r} is none of skip, once and all", field="misfire")


def _check_overlap(overlap: str) -> Overlap:
    match overlap:
        case "allow" | "skip" | "queue":
            return overlap
        case _:
            raise Refused(f"overlap: {overlap!r} is none of allow, skip and queue", field="overlap")


def _check_most(most: int | None, misfire: Misfire, overlap: str) -> int:
    if misfire != "all":
        if most is not None:
            raise Refused("most: goes with misfire='all'", field="most")
        return 1
    if overlap != "allow":
        raise Refused("misfire='all' starts several jobs at once, so it needs overlap='allow'", field="misfire")
    if most is None:
        raise Refused("most: say how many slots misfire='all' may make up for", field="most")
    if isinstance(most, bool) or not isinstance(most, int):
        raise TypeError(f"most: expected a whole number, got {type(most).__name__}")
    if not 1 <= most <= MOST_SLOTS:
        raise Refused(f"most: {most} is not between 1 and {MOST_SLOTS}", field="most")
    return most


def _check_within(within: Duration | None, misfire: Misfire) -> timedelta | None:
    if within is None:
        return None
    if misfire == "skip":
        raise Refused("within: late slots are skipped anyway; it goes with misfire='once' or 'all'", field="within")
    checked = duration(within, field="within")
    if not checked:
        raise Refused("within: must not be zero", field="within")
    return checked


def _entries(blackout: Iterable[date | str]) -> list[date | str]:
    if isinstance(blackout, str):
        raise TypeError("blackout: expected a list of days, got one string")
    if not isinstance(blackout, Iterable):
        raise TypeError(f"blackout: expected a list of days, got {type(blackout).__name__}")
    entries = list(blackout)
    if len(entries) > MOST_BLACKOUT:
        raise Refused(f"blackout: has {len(entries)} entries; at most {MOST_BLACKOUT} are taken", field="blackout")
    return entries


def _check_blackout(entry: date | str) -> str:
    if isinstance(entry, date) and not isinstance(entry, datetime):
        return entry.isoformat()
    if not isinstance(entry, str):
        raise TypeError(f"blackout: expected days, got {type(entry).__name__}")
    first, dots, last = entry.partition("..")
    if _YEARLY.fullmatch(entry) and _is_day(f"2024-{entry}"):
        return entry
    if not (_is_day(first) and (not dots or _is_day(last))):
        raise Refused(
            f"blackout: {entry[:40]!r} is not a day; write 2026-12-24, 2026-12-24..2026-12-31, or 12-25 for every year",
            field="blackout",
        )
    if dots and last < first:
        raise Refused(f"blackout: {entry} ends before it begins", field="blackout")
    return entry


def _is_day(text: str) -> bool:
    if not _DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
