"""``kept schedules list``, ``show`` and ``next``: which rules there are, what became of their slots, what comes."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import NamedTuple

import click

from kept.cli.main import Desk, Session
from kept.cli.schedule_changes import COMMANDS, statements
from kept.cli.schedule_options import as_texts
from kept.cli.show import (
    as_dict,
    as_moment,
    as_text,
    brief,
    document,
    echo_json,
    echo_table,
    json_option,
    lines,
    moment,
)
from kept.durations import render
from kept.schedules import catalogue
from kept.schedules.cron import local
from kept.schedules.model import Cron, Every
from kept.schedules.rows import ChangeRow, OccurrenceRow, ScheduleRow, describe
from kept.showable import escape

STATES = ("active", "paused", "ended", "retired")
SOME_RUNS, SOME_CHANGES, SOME_SLOTS = 10, 10, 5


def add_to(group: click.Group) -> None:
    for command in (list_, show, next_, *COMMANDS):
        schedules.add_command(command)
    group.add_command(schedules)


@click.group()
def schedules() -> None:
    """Look at schedules, and change those that no deploy owns."""


@click.command("list")
@click.option("--task", callback=as_text, metavar="NAME", help="Schedules of this task.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--origin", type=click.Choice(("declared", "added")), help="Declared by an App, or added at run time.")
@click.option("--all", "everything", is_flag=True, help="Also those that are retired.")
@json_option
@click.pass_obj
def list_(
    session: Session, /, task: str | None, state: str | None, origin: str | None, everything: bool, as_json: bool
) -> None:
    """List schedules by name: when they fire, what they fire, and how that went."""
    retired = everything or state == "retired"
    with session.desk() as desk:
        sql = statements(desk)
        now = desk.ask(catalogue.database_now(sql))
        found = desk.ask(catalogue.list_schedules(sql, task=task, origin=origin, retired=retired))
    shown = [each for each in found if state is None or each.state == state]
    if as_json:
        echo_json({"schedules": [as_json_row(each) for each in shown]})
        return
    if not shown:
        click.echo("no schedule matches" if task or state or origin else "there are no schedules yet")
        return
    names = ("schedule", "when", "task", "next", "last", "state", "origin")
    echo_table(names, [_row(each, now) for each in shown])


def _row(each: ScheduleRow, now: datetime) -> tuple[object, ...]:
    rule, task = each.definition.rule, each.definition.target.task
    last = "" if each.last_fired is None else f"{in_zone(each.last_fired, rule.zone)} {each.last_outcome}"
    return each.name, describe(rule), task, _next(each, now), last, each.state, each.origin


def _next(each: ScheduleRow, now: datetime) -> str:
    if each.next_slot is None or each.state != "active":
        return ""
    return f"{in_zone(each.next_slot, each.definition.rule.zone)} ({_away(each.next_slot, now)})"


def _away(at: datetime, now: datetime) -> str:
    seconds = (at - now).total_seconds()
    return f"in {brief(seconds)}" if seconds >= 0 else f"{brief(-seconds)} late"


def in_zone(at: datetime, zone: str) -> str:
    """A moment on the clocks of *zone*, with how far they are from UTC: ``2026-03-29 03:00:00+02:00``.

    In UTC if this machine does not know the zone.
    """
    try:
        return moment(at) if zone == "UTC" else local(at, zone).isoformat(sep=" ", timespec="seconds")
    except (KeyError, ValueError, OSError):
        return moment(at)


def as_json_row(each: ScheduleRow) -> dict[str, object]:
    """A schedule as ``--json`` shows it, everywhere alike; stretches of time in seconds."""
    definition = each.definition
    rule, terms, target = definition.rule, definition.terms, definition.target
    return {
        "name": each.name,
        "state": each.state,
        "origin": each.origin,
        "owner": definition.owner,
        "description": definition.description,
        "when": describe(rule),
        "cron": rule.expression if isinstance(rule, Cron) else None,
        "every": rule.period.total_seconds() if isinstance(rule, Every) else None,
        "zone": rule.zone,
        "task": target.task,
        "queue": target.queue,
        "priority": target.priority,
        "args": document(target.payload),
        **as_dict(terms, without=("blackout", "jitter", "within")),
        "blackout": list(terms.blackout),
        "jitter": terms.jitter.total_seconds(),
        "within": None if terms.within is None else terms.within.total_seconds(),
        **as_dict(each, without=("id", "origin", "definition", "anchor")),
    }


# --- one of them


@click.command()
@click.argument("name", callback=as_text)
@click.option("--runs", type=click.IntRange(0, 10_000), default=SOME_RUNS, show_default=True, metavar="N")
@json_option
@click.pass_obj
def show(session: Session, /, name: str, runs: int, as_json: bool) -> None:
    """Show everything about one schedule: its terms, its last runs, who changed it."""
    with session.desk() as desk:
        sql = statements(desk)
        now = desk.ask(catalogue.database_now(sql))
        found = desk.ask(catalogue.find(sql, name))
        occurrences = desk.ask(catalogue.occurrences(sql, found, runs))
        changes = desk.ask(catalogue.changes(sql, name, SOME_CHANGES))
    slots = list(islice(catalogue.coming_slots(found, now), SOME_SLOTS)) if found.state == "active" else []
    if as_json:
        parts = {
            "coming": [_slot_as_json(Coming(at, found)) for at in slots],
            "runs": [as_dict(each) | {"duration": each.duration} for each in occurrences],
            "changes": [as_dict(each) for each in changes],
        }
        echo_json(as_json_row(found) | parts)
        return
    click.echo("\n".join(_told(found, now, slots, occurrences)))
    if changes:
        click.echo("changes\n" + "\n".join(map(_change, changes)))


def _told(
    found: ScheduleRow, now: datetime, slots: Sequence[datetime], occurrences: Sequence[OccurrenceRow]
) -> Iterator[str]:
    zone = found.definition.rule.zone
    for name, value in _facts(found, now):
        if value:
            yield f"{name:<12} {escape(value)}"
    payload = json.dumps(document(found.definition.target.payload), indent=2, ensure_ascii=False)
    yield from ("args", *(f"  {line}" for line in lines(payload)))
    if slots:
        yield "coming"
        yield from (f"  {in_zone(at, zone)}  {_utc(at, zone)}".rstrip() for at in slots)
    if occurrences:
        yield "runs"
        yield from (f"  {_run(each, zone)}" for each in occurrences)


def _facts(found: ScheduleRow, now: datetime) -> Iterator[tuple[str, str]]:
    definition, zone = found.definition, found.definition.rule.zone
    terms, target = definition.terms, definition.target
    since = found.retired_at or found.paused_at
    priority = "" if target.priority is None else f", priority {target.priority}"
    yield "schedule", found.name
    yield "description", definition.description or ""
    yield "owner", definition.owner or ""
    yield "when", describe(definition.rule)
    yield "from", "" if terms.starts_at is None else in_zone(terms.starts_at, zone)
    yield "until", "" if terms.ends_at is None else in_zone(terms.ends_at, zone)
    yield "left out", ", ".join(terms.blackout)
    yield "jitter", f"up to {render(terms.jitter)}" if terms.jitter else ""
    yield "misfire", _misfire(found)
    yield "overlap", terms.overlap
    yield "task", f"{target.task} in queue {target.queue}{priority}"
    yield "origin", found.origin
    yield "state", f"{found.state} since {moment(since)}" if since else found.state
    yield "next", _next(found, now)
    yield "queued", "" if found.queued_slot is None else f"{in_zone(found.queued_slot, zone)} waits for the job before"
    yield "decided", f"up to {in_zone(found.last_slot, zone)}"


def _misfire(found: ScheduleRow) -> str:
    terms = found.definition.terms
    most = f", at most {terms.most}" if terms.misfire == "all" else ""
    return terms.misfire + most + (f", within {render(terms.within)}" if terms.within else "")


def _run(each: OccurrenceRow, zone: str) -> str:
    """One line: the slot, what became of it, and how long that took."""
    started = "" if each.started_at is None else f"started {moment(each.started_at)}"
    took = "" if each.duration is None else f"took {each.duration:.1f}s"
    job = "" if each.job is None else f"job {each.job}"
    why = f"{each.state} ({each.reason})" if each.reason else each.state
    said = ": ".join(part for part in (each.code, each.message) if part)
    missed = f"{each.missed} missed before it" if each.missed else ""
    hand = "by hand" if each.by_hand else ""
    parts = (in_zone(each.slot, zone), each.outcome or why, job, started, took, hand, missed, said)
    return escape("  ".join(part for part in parts if part))


def _change(each: ChangeRow) -> str:
    return f"  {escape('  '.join(part for part in (moment(each.at), each.who, each.what, each.detail) if part))}"


def _utc(at: datetime, zone: str) -> str:
    return "" if zone == "UTC" else moment(at)


# --- what comes


class Coming(NamedTuple):
    """A slot that is to come; of two at one moment the names decide."""

    at: datetime
    schedule: ScheduleRow


@click.command("next")
@click.argument("names", nargs=-1, callback=as_texts, metavar="[NAME]...")
@click.option("--count", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N")
@click.option("--until", callback=as_moment, metavar="TIME", help="Not after this: 2026-11-17T08:00 (UTC).")
@json_option
@click.pass_obj
def next_(session: Session, /, names: tuple[str, ...], count: int, until: datetime | None, as_json: bool) -> None:
    """Show which slots come next, of all schedules or of those named.

    Each in the schedule's own zone and in UTC. Those that are paused or retired do not fire and are left out.
    """
    with session.desk() as desk:
        now = desk.ask(catalogue.database_now(statements(desk)))
        found = _wanted(desk, names)
    active = [each for each in found if each.state == "active"]
    coming = _coming(active, now, until)
    shown = list(islice(coming, count))
    silent = [each for each in found if each.state != "active"]
    if as_json:
        left_out = [{"name": each.name, "state": each.state} for each in silent]
        echo_json({"coming": [_slot_as_json(each) for each in shown], "left_out": left_out})
        return
    if shown:
        names_ = ("schedule", "slot", "zone", "UTC", "due", "task")
        echo_table(names_, [_coming_row(each, now) for each in shown])
    else:
        click.echo("no slot comes")
    for each in silent if names else ():
        click.echo(f"{escape(each.name)} is {each.state}: it does not fire", err=True)


def _wanted(desk: Desk, names: Sequence[str]) -> list[ScheduleRow]:
    sql = statements(desk)
    if not names:
        return desk.ask(catalogue.list_schedules(sql, retired=False))
    return [desk.ask(catalogue.find(sql, name)) for name in dict.fromkeys(names)]


def _coming(found: Sequence[ScheduleRow], now: datetime, until: datetime | None) -> Iterator[Coming]:
    """Slots of all of them in the order of time; no more are worked out than are asked for."""
    merged = heapq.merge(*(_of(each, now) for each in found), key=lambda coming: (coming.at, coming.schedule.name))
    return takewhile(lambda coming: until is None or coming.at <= until, merged)


def _of(schedule: ScheduleRow, now: datetime) -> Iterator[Coming]:
    return (Coming(at, schedule) for at in catalogue.coming_slots(schedule, now))


def _coming_row(coming: Coming, now: datetime) -> tuple[object, ...]:
    definition = coming.schedule.definition
    jitter = definition.terms.jitter
    due = _away(coming.at, now) + (f", up to {render(jitter)} later" if jitter else "")
    zone = definition.rule.zone
    return coming.schedule.name, in_zone(coming.at, zone), zone, moment(coming.at), due, definition.target.task


def _slot_as_json(coming: Coming) -> dict[str, object]:
    definition = coming.schedule.definition
    return {
        "schedule": coming.schedule.name,
        "task": definition.target.task,
        "slot": coming.at.astimezone(UTC).isoformat(),
        "local": local(coming.at, definition.rule.zone).isoformat(),
        "zone": definition.rule.zone,
        "latest": (coming.at + definition.terms.jitter).astimezone(UTC).isoformat(),
    }
