"""What a schedule is made of, as data. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "queue"]
Origin = Literal["declared", "added"]


class Every(Struct, frozen=True, tag=True):
    """Slots a fixed stretch of real time apart; *zone* says whose days are left out."""

    period: timedelta
    zone: str = "UTC"


class Cron(Struct, frozen=True, tag=True):
    """Slots by a cron expression, on the clocks of a time zone."""

    expression: str
    zone: str = "UTC"


Rule = Every | Cron


class Terms(Struct, frozen=True, kw_only=True):
    """When a schedule fires, besides its rule, and what happens to slots that came too late or too early."""

    starts_at: datetime | None = None
    ends_at: datetime | None = None
    blackout: tuple[str, ...] = ()  # days in its zone: 2026-12-24, 2026-12-24..2026-12-31, or 12-25 of every year
    jitter: timedelta = timedelta()
    misfire: Misfire = "once"
    most: int = 1
    within: timedelta | None = None
    overlap: Overlap = "skip"


class Target(Struct, frozen=True, kw_only=True):
    """The job that a slot becomes."""

    task: str
    queue: str
    payload: str
    priority: int | None = None


class Definition(Struct, frozen=True, kw_only=True):
    """A schedule as somebody defined it, checked."""

    name: str
    rule: Rule
    terms: Terms
    target: Target
    owner: str | None = None
    description: str | None = None


class Timetable(Struct, frozen=True, kw_only=True):
    """All that decides when the slots of a schedule are."""

    rule: Rule
    anchor: datetime  # an interval counts from here
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    blackout: tuple[str, ...] = ()


class Standing(Struct, frozen=True, kw_only=True):
    """A schedule as the database knows it, as far as the next decision needs it."""

    id: int
    revision: int
    name: str
    table: Timetable
    terms: Terms
    last_slot: datetime
    queued_slot: datetime | None = None
    busy: bool = False  # a job of an earlier slot lives


class Slot(Struct, frozen=True):
    """What is decided about one slot."""

    at: datetime
    state: Literal["fired", "queued", "skipped", "missed"]
    reason: str | None = None
    missed: int = 0  # slots before it that nobody fired
    due_at: datetime | None = None  # if it fires


class Decision(Struct, frozen=True):
    """What is decided about a schedule, and where it stands then."""

    slots: tuple[Slot, ...]
    last_slot: datetime
    next_slot: datetime | None
    queued_slot: datetime | None
    look_at: datetime | None
