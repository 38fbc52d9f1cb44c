"""The schedules there are: declared, added at run time, changed and asked for (as steps; see :mod:`kept.db.tx`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from difflib import get_close_matches

import msgspec

from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.errors import NotFound, Refused
from kept.schedules.model import Definition
from kept.schedules.rows import (
    ChangeRow,
    OccurrenceRow,
    ScheduleRow,
    definition_params,
    describe,
    digest,
    schedule_of,
    timetable,
)
from kept.schedules.rules import check_table, next_slot, upcoming

MOST_LISTED = 100_000


# --- at run time


def add(sql: Queries, definition: Definition, *, who: str) -> Steps[ScheduleRow]:
    """A schedule that no App declares; its name must be free and it must fire some time."""
    found = yield from insert(sql, definition, origin="added", who=who)
    if found is None:
        taken = yield from find(sql, definition.name)
        raise Refused(
            f"schedule {taken.name!r} exists already ({taken.origin}); edit it, or take another name", field="name"
        )
    return found


def edit(sql: Queries, name: str, new: Callable[[Definition], Definition], *, who: str) -> Steps[ScheduleRow]:
    """Change a schedule that was added at run time; slots that have come are not judged anew.

    Nothing is written if nothing changes.
    """
    yield sql["lock"], {"name": name}
    found = yield from find(sql, name)
    _check_ours(found, "edit")
    wanted = new(found.definition)
    if wanted == found.definition:
        return found
    yield from change(sql, wanted, who=who, what="edited")
    return (yield from find(sql, name))


def remove(sql: Queries, name: str, *, who: str) -> Steps[ScheduleRow]:
    """Delete a schedule and its occurrences. Jobs it has become stay."""
    yield sql["lock"], {"name": name}
    found = yield from find(sql, name)
    if found.retired_at is None:
        _check_ours(found, "remove")
    yield sql["remove"], {"name": name}
    yield from note(sql, name, who, what="removed")
    return found


def pause(sql: Queries, name: str, *, who: str) -> Steps[bool]:
    """Fire no slot until it is resumed; False if it was paused already."""
    found = yield from find(sql, name)
    rows = yield sql["pause"], {"name": found.name}
    if rows:
        yield from note(sql, name, who, what="paused")
    return bool(rows)


def resume(sql: Queries, name: str, *, who: str) -> Steps[bool]:
    """Fire again, from the next slot on: those that went by meanwhile are left out. False if it was not paused."""
    yield sql["lock"], {"name": name}
    found = yield from find(sql, name)
    now = yield from database_now(sql)
    last = max(found.last_slot, now)
    rows = yield sql["resume"], {"name": name, "last_slot": last, "next_slot": next_slot(found.table, last)}
    if rows:
        yield from note(sql, name, who, what="resumed")
    return bool(rows)


def run_now(sql: Queries, name: str, *, who: str) -> Steps[int]:
    """A job at once, whatever the rule says; its id. The schedule's own slots are not touched."""
    found = yield from find(sql, name)
    rows = yield sql["run_now"], {"name": found.name}
    if not rows:
        raise NotFound(f"there is no schedule {name!r} any more")
    yield from note(sql, name, who, what="run by hand", detail=f"job {rows[0][0]}")
    return int(rows[0][0])


# --- asking


def list_schedules(
    sql: Queries,
    *,
    name: str | None = None,
    task: str | None = None,
    origin: str | None = None,
    retired: bool = True,
    limit: int = MOST_LISTED,
) -> Steps[list[ScheduleRow]]:
    """Schedules in the order of their names."""
    params = {"name": name, "task": task, "origin": origin, "retired": retired, "limit": limit}
    rows = yield sql["list"], params
    return [schedule_of(row) for row in rows]


def find(sql: Queries, name: str) -> Steps[ScheduleRow]:
    """The schedule of this name, or an error that names a near one."""
    found = yield from list_schedules(sql, name=name)
    if found:
        return found[0]
    rows = yield sql["names"], {}
    near = get_close_matches(name, [row[0] for row in rows], n=1)
    raise NotFound(f"there is no schedule {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def occurrences(sql: Queries, schedule: ScheduleRow, limit: int = 20) -> Steps[list[OccurrenceRow]]:
    """The newest slots that came, and what became of them."""
    rows = yield sql["occurrences"], {"schedule": schedule.id, "limit": limit}
    return [OccurrenceRow(*row) for row in rows]


def changes(sql: Queries, name: str, limit: int = 20) -> Steps[list[ChangeRow]]:
    """Who changed it, the newest first."""
    rows = yield sql["changes"], {"name": name, "limit": limit}
    return [ChangeRow(*row) for row in rows]


def coming_slots(schedule: ScheduleRow, now: datetime) -> Iterator[datetime]:
    """Its slots after *now*, without end if it has none; the first costs nothing, for it is known."""
    first = schedule.next_slot
    if first is not None and first > now:
        yield first
        yield from upcoming(schedule.table, first)
    elif first is not None:
        yield from upcoming(schedule.table, now)


# --- parts


def _check_ours(found: ScheduleRow, verb: str) -> None:
    if found.origin == "declared":
        raise Refused(
            f"schedule {found.name!r} is declared by an App, and its next deploy would undo this: {verb} it there, "
            "or pause it",
            field="name",
        )


def insert(sql: Queries, definition: Definition, *, origin: str, who: str) -> Steps[ScheduleRow | None]:
    """Write a new one; None if there is one of its name."""
    now = yield from database_now(sql)
    anchor = definition.terms.starts_at or now.replace(microsecond=0)  # times that people can read
    table = timetable(definition, anchor)
    first = check_table(table, now) if origin == "added" else next_slot(table, now)
    params = yield from _params(sql, definition, anchor=anchor, last_slot=now, next_slot=first)
    own = None if origin == "added" else digest(definition)
    rows = yield sql["add"], params | {"origin": origin, "digest": own}
    if not rows:
        return None
    yield from note(sql, definition.name, who, what="added" if origin == "added" else "declared")
    return (yield from find(sql, definition.name))


def change(sql: Queries, definition: Definition, *, who: str, what: str) -> Steps[None]:
    """Put another definition in force. With other times, only slots from now on are its own."""
    found = yield from find(sql, definition.name)
    now = yield from database_now(sql)
    anchor = definition.terms.starts_at or found.anchor
    table = timetable(definition, anchor)
    same = table == found.table
    last = found.last_slot if same else max(found.last_slot, now)
    # With the same times, one that has come to its end may still be given another owner.
    first = next_slot(table, last) if same or found.origin != "added" else check_table(table, last)
    params = yield from _params(sql, definition, anchor=anchor, last_slot=last, next_slot=first)
    own = None if found.origin == "added" else digest(definition)
    yield sql["change"], params | {"digest": own}
    yield from note(sql, definition.name, who, what=what, detail=_difference(found.definition, definition))


def _difference(before: Definition, after: Definition) -> str:
    """What a change changed, in a line."""
    old, new = (
        msgspec.to_builtins(
            {
                "rule": describe(d.rule),
                **msgspec.structs.asdict(d.terms),
                "target": d.target,
                "owner": d.owner,
                "description": d.description,
            }
        )
        for d in (before, after)
    )
    told = [f"{name}: {old[name]} -> {new[name]}" for name in new if old[name] != new[name]]
    return "; ".join(told)[:2000]


def _params(
    sql: Queries, definition: Definition, *, anchor: datetime, last_slot: datetime, next_slot: datetime | None
) -> Steps[dict[str, object]]:
    target = definition.target
    rows = yield sql["lane"], {"task": target.task, "queue": target.queue}
    standing = {"anchor": anchor, "last_slot": last_slot, "next_slot": next_slot, "lane": rows[0][0]}
    return definition_params(definition) | standing | {"blackout": array(definition.terms.blackout)}


def note(sql: Queries, name: str, who: str, *, what: str, detail: str | None = None) -> Steps[None]:
    yield sql["log"], {"name": name, "who": who[:200], "what": what, "detail": detail}


def database_now(sql: Queries) -> Steps[datetime]:
    """The moment by the database's clock, which decides."""
    rows = yield sql["now"], {}
    now: datetime = rows[0][0]
    return now
