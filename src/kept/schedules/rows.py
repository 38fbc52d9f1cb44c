"""Schedules as the database knows them, for those who look. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from kept.durations import render
from kept.schedules.model import Cron, Definition, Every, Rule, Standing, Target, Terms, Timetable


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule, its definition and where it stands."""

    id: int
    revision: int
    origin: str  # declared by an App, or added at run time
    definition: Definition
    anchor: datetime
    last_slot: datetime
    next_slot: datetime | None
    queued_slot: datetime | None
    paused_at: datetime | None
    retired_at: datetime | None
    created_at: datetime
    changed_at: datetime
    last_fired: datetime | None
    last_job: int | None
    last_outcome: str | None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def table(self) -> Timetable:
        """What decides when its slots are."""
        return timetable(self.definition, self.anchor)

    @property
    def state(self) -> str:
        """retired, paused, ended or active."""
        if self.retired_at is not None:
            return "retired"
        if self.paused_at is not None:
            return "paused"
        return "ended" if self.next_slot is None and self.queued_slot is None else "active"


class OccurrenceRow(Struct, frozen=True):
    """One slot that came, and what became of its job."""

    slot: datetime
    by_hand: bool
    state: str
    reason: str | None
    missed: int
    job: int | None
    outcome: str | None
    started_at: datetime | None
    finished_at: datetime | None
    code: str | None
    message: str | None

    @property
    def duration(self) -> float | None:
        """Seconds from the start of its last attempt to its end."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


class ChangeRow(Struct, frozen=True):
    """One line of the log: who changed what."""

    at: datetime
    who: str
    what: str
    detail: str | None


class Summary(Struct, frozen=True):
    """How many schedules there are, and which of the active ones comes next."""

    active: int
    paused: int
    ended: int
    retired: int
    next_name: str | None
    next_slot: datetime | None
    next_in: float | None  # seconds

    @property
    def total(self) -> int:
        return self.active + self.paused + self.ended + self.retired


class Failing(Struct, frozen=True):
    """A schedule whose last jobs all failed, and what the last one failed with."""

    name: str
    code: str | None
    message: str | None


def describe(rule: Rule) -> str:
    """A rule as people read it: ``every 5min``, ``17 3 * * * America/Santiago``."""
    match rule:
        case Cron(expression, zone):
            return f"{expression} {zone}"
        case Every(period, "UTC"):
            return f"every {render(period)}"
        case Every(period, zone):
            return f"every {render(period)} (days of {zone})"


def timetable(definition: Definition, anchor: datetime) -> Timetable:
    """When the slots of *definition* are, if its intervals count from *anchor*."""
    return _table(definition.rule, definition.terms, anchor)


def _table(rule: Rule, terms: Terms, anchor: datetime) -> Timetable:
    return Timetable(
        rule=rule, anchor=anchor, starts_at=terms.starts_at, ends_at=terms.ends_at, blackout=terms.blackout
    )


def standing_of(row: Sequence[Any]) -> tuple[Standing, datetime]:
    """A row of the statement ``due``, and the moment it was asked at."""
    id, revision, name, cron, every, zone, anchor, starts_at, ends_at, blackout, jitter, *rest = row
    misfire, most, within, overlap, last_slot, queued_slot, busy, now = rest
    rule = _rule(cron, every, zone)
    terms = _terms(starts_at, ends_at, blackout, jitter, misfire, most, within, overlap)
    table = _table(rule, terms, _utc(anchor))
    standing = Standing(
        id=id,
        revision=revision,
        name=name,
        table=table,
        terms=terms,
        last_slot=_utc(last_slot),
        queued_slot=_maybe_utc(queued_slot),
        busy=busy,
    )
    return standing, _utc(now)


def schedule_of(row: Sequence[Any]) -> ScheduleRow:
    """A row of the statement ``list``."""
    id, revision, name, origin, owner, description, cron, every, zone, anchor, *rest = row
    starts_at, ends_at, blackout, jitter, misfire, most, within, overlap, *rest = rest
    task, queue, priority, payload, last_slot, next_slot, queued_slot, paused_at, retired_at, *rest = rest
    created_at, changed_at, fired, job, outcome = rest
    definition = Definition(
        name=name,
        rule=_rule(cron, every, zone),
        terms=_terms(starts_at, ends_at, blackout, jitter, misfire, most, within, overlap),
        target=Target(task=task, queue=queue, payload=payload, priority=priority),
        owner=owner,
        description=description,
    )
    return ScheduleRow(
        id=id,
        revision=revision,
        origin=origin,
        definition=definition,
        anchor=_utc(anchor),
        last_slot=_utc(last_slot),
        next_slot=_maybe_utc(next_slot),
        queued_slot=_maybe_utc(queued_slot),
        paused_at=_maybe_utc(paused_at),
        retired_at=_maybe_utc(retired_at),
        created_at=_utc(created_at),
        changed_at=_utc(changed_at),
        last_fired=_maybe_utc(fired),
        last_job=job,
        last_outcome=outcome,
    )


def digest(definition: Definition) -> str:
    """The same for the same definition, whoever declares it."""
    return hashlib.blake2b(msgspec.json.encode(definition, order="sorted"), digest_size=8).hexdigest()


def definition_params(definition: Definition) -> dict[str, object]:
    """A definition as the statements ``add`` and ``change`` take it."""
    terms, target, rule = definition.terms, definition.target, definition.rule
    return {
        "name": definition.name,
        "owner": definition.owner,
        "description": definition.description,
        "cron": rule.expression if isinstance(rule, Cron) else None,
        "every": rule.period.total_seconds() if isinstance(rule, Every) else None,
        "zone": rule.zone,
        "starts_at": terms.starts_at,
        "ends_at": terms.ends_at,
        "jitter": terms.jitter.total_seconds(),
        "misfire": terms.misfire,
        "most": terms.most,
        "within": None if terms.within is None else terms.within.total_seconds(),
        "overlap": terms.overlap,
        "priority": target.priority,
        "payload": target.payload,
    }


def _rule(cron: str | None, every: float | None, zone: str) -> Rule:
    if cron is not None:
        return Cron(cron, zone)
    assert every is not None  # the table has it so
    return Every(timedelta(seconds=every), zone)


def _terms(
    starts_at: datetime | None,
    ends_at: datetime | None,
    blackout: Sequence[str],
    jitter: float,
    misfire: Any,
    most: int,
    within: float | None,
    overlap: Any,
) -> Terms:
    return Terms(
        starts_at=_maybe_utc(starts_at),
        ends_at=_maybe_utc(ends_at),
        blackout=tuple(blackout),
        jitter=timedelta(seconds=jitter),
        misfire=misfire,
        most=most,
        within=None if within is None else timedelta(seconds=within),
        overlap=overlap,
    )


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _maybe_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else _utc(moment)
