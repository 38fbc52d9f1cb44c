"""For tests of schedules: made by hand over any connection, and fired by workers that do nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import psycopg

from kept import every
from kept.db.connect import Link
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs.door import Request
from kept.schedules import catalogue, declared
from kept.schedules.book import define
from kept.schedules.model import Definition
from kept.schedules.rows import ScheduleRow
from kept.schedules.runner import Firing
from kept.signals import Signals
from kernel import rows

SQL = load("kept.schedules")


class Call:
    """What ``task.bind()`` is to a schedule."""

    def __init__(self, task: str = "send") -> None:
        self.request = Request(queue="mail", task=task, payload="{}")


def definition(name: str = "it", rule=None, **options) -> Definition:
    return define(name, rule or every("1h"), Call(options.pop("task", "send")), **options)


def add(conn: psycopg.Connection, name: str = "it", rule=None, **options) -> ScheduleRow:
    """A schedule made at run time."""
    return run(conn, catalogue.add(SQL, definition(name, rule, **options), who="test"))


def edit(conn: psycopg.Connection, name: str = "it", rule=None, **options) -> None:
    with conn.transaction():
        run(conn, catalogue.edit(SQL, name, lambda _old: definition(name, rule, **options), who="test"))


def declare(conn: psycopg.Connection, *definitions: Definition, exact: bool = False) -> declared.Synchronised:
    with conn.transaction():
        return run(conn, declared.synchronise(SQL, definitions, who="test", exact=exact))


def standing(conn: psycopg.Connection, name: str = "it") -> ScheduleRow:
    return run(conn, catalogue.find(SQL, name))


@asynccontextmanager
async def firings(database: str, count: int = 1, schema: str = "kept") -> AsyncIterator[list[Firing]]:
    """As many workers' firing as asked for, each over a connection of its own."""
    links = [await Link.open(database, name=f"firing {number}") for number in range(count)]
    try:
        yield [Firing(link, Signals(), schema) for link in links]
    finally:
        for link in links:
            await link.close()


def fired(conn: psycopg.Connection) -> list[datetime]:
    """The slots that became jobs, as their jobs tell: a slot with two of them stands here twice."""
    query = (
        "select (headers ->> 'kept-slot')::timestamptz as slot from kept.jobs where headers ->> 'kept-slot' is not null"
    )
    return sorted(each["slot"] for each in rows(conn, query))


def recorded(conn: psycopg.Connection) -> list[dict]:
    """What is on record of slots, in their order."""
    return rows(conn, "select * from kept.occurrence order by slot, id")


async def look_after(firing: Firing, who: str) -> list[str]:
    """What a worker's turn comes to: copy what became of all jobs, retire what nobody declares."""
    position = await firing.close()
    while position is not None:
        position = await firing.close(position)
    return await firing.retire(who)
