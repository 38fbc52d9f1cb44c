"""For tests of the kernel: stores over real connections, workers that are only a row, and what the tables say."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from kept.db.connect import Link
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs import door
from kept.jobs.declaration import Declaration, wants_context
from kept.jobs.model import Claimed, Lane
from kept.jobs.payload import Signature
from kept.jobs.retry import Retry
from kept.jobs.rows import Want
from kept.jobs.store import Store
from support import aeventually

SQL = load("kept.jobs")


@asynccontextmanager
async def stores(database: str, count: int = 1) -> AsyncIterator[list[Store]]:
    """As many stores as asked for, each over a connection of its own."""
    links = [await Link.open(database, name=f"store {number}") for number in range(count)]
    try:
        yield [Store(link) for link in links]
    finally:
        for link in links:
            await link.close()


async def live(store: Store, *, lease: float = 60.0, name: str = "worker") -> UUID:
    """A worker under a new identity."""
    worker = uuid4()
    await store.register(
        worker, name=name, host="here", pid=1, version="0", queues=None, concurrency=10, declared="{}", lease=lease
    )
    return worker


def add(conn: psycopg.Connection, count: int = 1, *, task: str = "send", queue: str = "mail", **options) -> list[int]:
    """Enqueue *count* equal jobs."""
    request = door.Request(queue=queue, task=task, **{"payload": "{}"} | options)
    return [ticket.id for ticket in run(conn, door.enqueue_many(SQL, [request] * count))]


def lane_of(conn: psycopg.Connection, task: str = "send", queue: str = "mail") -> int:
    """The lane of a task, made if need be."""
    return conn.execute("select kept.lane_id(%s, %s)", [task, queue]).fetchone()[0]


async def declare(store: Store, task: str = "send", **numbers) -> int:
    """Declare a task's lane with these numbers."""
    given = {"max_attempts": 3, "priority": 0, "retry_base": 5.0, "retry_max": 120.0} | numbers
    await store.declare([Lane(id=0, queue="mail", task=task, **given)])
    return next(lane.id for lane in await store.lanes(["mail"]) if lane.task == task)


def declared(handler) -> Declaration:
    """A task that was declared with nothing but its handler."""
    takes = wants_context(handler, "send")
    return Declaration(
        name="send",
        aliases=(),
        queue="mail",
        retry=Retry(),
        timeout=60.0,
        priority=0,
        handler=handler,
        is_async=inspect.iscoroutinefunction(handler),
        takes_context=takes,
        signature=Signature(handler, task="send", takes_context=takes),
    )


async def claim(
    store: Store,
    worker: UUID,
    most: int = 10,
    *,
    lanes: Iterable[int] = (1,),
    session: int = 0,
    priorities: Iterable[int] = (0,),
    floor: int = 0,
) -> list[Claimed]:
    """Claim up to *most* jobs of these lanes, at these priorities."""
    wants = [Want(lane, priority, most, floor) for priority in priorities for lane in lanes]
    return (await store.step(worker, session, [], wants, most)).claimed


def ids(jobs: Iterable[Claimed]) -> list[int]:
    return sorted(job.id for job in jobs)


def rows(conn: psycopg.Connection, query: str, *params: object) -> list[dict]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, params).fetchall()


def row(conn: psycopg.Connection, query: str, *params: object) -> dict:
    found = rows(conn, query, *params)
    assert len(found) == 1, found
    return found[0]


def job_row(conn: psycopg.Connection, id: int) -> dict:
    return row(conn, "select * from kept.job where id = %s", id)


def record(conn: psycopg.Connection, id: int) -> dict:
    return row(conn, "select * from kept.history where id = %s", id)


def states(conn: psycopg.Connection) -> dict[int, str]:
    return {each["id"]: each["state"] for each in rows(conn, "select id, state from kept.jobs")}


async def blocked(conn: psycopg.Connection, store: Store) -> None:
    """Wait until the connection of *store* waits for somebody's lock."""
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    pid = store.link.conn.info.backend_pid
    await aeventually(lambda: conn.execute(query, [pid]).fetchone()[0], what="a statement that waits for a lock")
