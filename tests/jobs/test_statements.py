"""No statement per job: what a worker says to the database, counted by the database itself."""

from __future__ import annotations

import asyncio

import psycopg

from kept import App
from kept.config import Settings
from kept.signals import JobsSettled
from support import eventually

JOBS = 5_000
UPKEEP = 150  # partitions are looked after once in a new database, a statement or two for each


def transactions(conn: psycopg.Connection) -> int:
    """Of all sessions that have ended; outside a transaction block every statement is one."""
    query = "select xact_commit from pg_stat_database where datname = current_database()"
    alone = (
        "select count(*) = 1 from pg_stat_activity"
        " where datname = current_database() and backend_type = 'client backend'"
    )
    eventually(lambda: conn.execute(alone).fetchone()[0], what="the end of every other session")
    conn.execute("select pg_stat_force_next_flush()")
    conn.execute("select pg_stat_clear_snapshot()")
    return conn.execute(query).fetchone()[0]


async def drain(app: App, count: int) -> None:
    settled, over = 0, asyncio.Event()

    def note(signal: object) -> None:
        nonlocal settled
        if isinstance(signal, JobsSettled):
            settled += len(signal.jobs)
            if settled >= count:
                over.set()

    forget = app.signals.subscribe(note)
    async with app, app.worker():
        await asyncio.wait_for(over.wait(), 60)
    forget()


def test_a_batch_of_jobs_takes_a_few_statements(database: str, conn: psycopg.Connection) -> None:
    app = App(database, settings=Settings(poll_only=True))

    @app.task()
    async def work(number: int) -> None: ...

    app.enqueue_many([work.bind(n) for n in range(JOBS)])
    app.close()
    before = transactions(conn)
    asyncio.run(drain(app, JOBS))
    assert transactions(conn) - before < UPKEEP + JOBS / 10
