"""Which partitions there must be. Pure: the database's clock and registry in, decisions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

AHEAD = timedelta(days=30)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept after a job was settled or a line was logged.

    A partition goes as a whole, so a record stays up to one partition longer: a day, or a month for failures.
    """

    done: timedelta = 7 * DAY
    failed: timedelta = 90 * DAY
    log: timedelta = 90 * DAY
    events: timedelta = 30 * DAY


@dataclass(frozen=True, slots=True)
class Parent:
    """A partitioned table: how long a stretch of time one partition holds, and how long it is kept."""

    name: str
    span: Literal["day", "month"]
    keep: timedelta


@dataclass(frozen=True, slots=True)
class Partition:
    """A row of the registry; *due* says that the database's clock lets it be dropped."""

    name: str
    parent: str
    starts_at: datetime
    ends_at: datetime
    due: bool


@dataclass(frozen=True, slots=True)
class Stray:
    """A day of which a parent's default partition holds rows."""

    parent: str
    day: datetime


@dataclass(frozen=True, slots=True)
class Make:
    """A partition to be made, for [starts_at, ends_at)."""

    parent: str
    starts_at: datetime
    ends_at: datetime
    keep: timedelta


def parents(keep: Retention) -> tuple[Parent, ...]:
    """The partitioned tables. Failures by the month: docs/decisions/0002-failures-by-the-month.md."""
    return (
        Parent("history_done", "day", keep.done),
        Parent("history_failed", "month", keep.failed),
        Parent("job_log", "day", keep.log),
        Parent("event", "day", keep.events),
    )


def to_make(
    now: datetime, existing: Iterable[Partition], strays: Iterable[Stray], wanted: Iterable[Parent]
) -> list[Make]:
    """What is missing: from now to 30 days ahead, and wherever a default partition holds rows.

    What settling needs next comes first; a range that another partition covers, even partly, is left out.
    """
    covered = list(existing)
    strays = list(strays)
    makes: list[Make] = []
    for parent in wanted:
        taken = [(p.starts_at, p.ends_at) for p in covered if p.parent == parent.name]
        days = [stray.day for stray in strays if stray.parent == parent.name]
        for starts, ends in sorted({*_ahead(now, parent), *(_range(day, parent) for day in days)}):
            if not any(starts < end and start < ends for start, end in taken):
                makes.append(Make(parent.name, starts, ends, parent.keep))
    return sorted(makes, key=lambda make: (make.ends_at <= now, make.starts_at))


def to_drop(existing: Iterable[Partition]) -> list[Partition]:
    """The partitions whose time is over, oldest first."""
    return sorted((p for p in existing if p.due), key=lambda p: (p.ends_at, p.name))


def _ahead(now: datetime, parent: Parent) -> Iterator[tuple[datetime, datetime]]:
    starts, ends = _range(now, parent)
    while starts <= now + AHEAD:
        yield starts, ends
        starts, ends = _range(ends, parent)


def _range(moment: datetime, parent: Parent) -> tuple[datetime, datetime]:
    """The day or month of *moment*, in UTC."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if parent.span == "day":
        return day, day + DAY
    first = day.replace(day=1)
    return first, (first + 31 * DAY).replace(day=1)
