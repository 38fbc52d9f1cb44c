"""Schedules beside everything else: transactions that stay open, what cannot be read, and long records."""

from __future__ import annotations

from datetime import timedelta

import psycopg

from kept import App, every
from support import Clock, aeventually
from timetables import add, edit, fired, firings, look_after, standing


async def test_a_transaction_that_holds_a_schedule_does_not_hold_up_those_who_look_after_jobs(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    add(conn)
    clock.advance("1h")
    async with firings(database) as (worker,):
        await worker.fire()
        conn.execute("delete from kept.job")
        with psycopg.connect(database) as user:
            user.execute("select from kept.schedule for update")
            conn.execute("set statement_timeout = '5s'")
            await worker.link.conn.execute("set statement_timeout = '5s'")
            await look_after(worker, "test")
    assert conn.execute("select outcome from kept.occurrence").fetchall() == [("unknown",)]


async def test_a_whole_batch_of_schedules_that_somebody_is_at_does_not_stop_the_others(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    app = App(database)
    app.task(name="send", queue="mail")(lambda: None)
    with conn.transaction():
        for number in range(201):
            add(conn, f"held-{number}")
    clock.advance("30min")
    add(conn, "free")
    with psycopg.connect(database) as user:
        user.execute("select from kept.schedule where name like 'held-%' for update")
        clock.advance("1h")
        async with app, app.worker():
            await aeventually(lambda: fired(conn), what="the one that nobody holds")
        assert len(fired(conn)) == 1


async def test_a_schedule_that_could_not_be_read_is_decided_on_once_it_was_mended(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    add(conn)
    conn.execute("update kept.schedule set zone = 'Mars/Olympus', cron = '@hourly', every = null")
    clock.advance("2h")
    async with firings(database) as (worker,):
        assert (await worker.fire()).decided == 0
        assert (await worker.fire()).looked == 0, "it is not tried again as it is"
        conn.execute("update kept.schedule set zone = 'UTC', revision = revision + 1")
        edit(conn, rule=every("1h"))
        clock.advance("1h")
        assert (await worker.fire()).decided == 1


async def test_the_last_job_of_a_schedule_that_has_ended_is_looked_after_too(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    app = App(database)
    app.task(name="send", queue="mail")(lambda: None)
    now = conn.execute("select kept.now()").fetchone()[0]
    add(conn, rule=every("1m"), end=now + timedelta(minutes=1))
    clock.advance("61s")
    async with app:
        await app.drain()
        assert (len(fired(conn)), standing(conn).next_slot) == (1, None)
        clock.advance("1min")  # to the next turn of looking after jobs
        await app.drain()
    assert conn.execute("select outcome from kept.occurrence").fetchall() == [("done",)]


def test_what_is_on_record_already_is_not_looked_for_in_history(conn: psycopg.Connection) -> None:
    add(conn)
    conn.execute(
        "insert into kept.occurrence (schedule, slot, state, job, recorded_at, outcome, finished_at)"
        " select s.id, kept.now() - n * interval '1 min', 'fired', n, kept.now(), 'done', kept.now()"
        " from kept.schedule s, generate_series(1, 1000) n"
    )
    plan = "\n".join(row[0] for row in conn.execute("explain (analyze, costs off) select * from kept.runs"))
    looked = [line for line in plan.splitlines() if "find_settled" in line]
    assert looked and all("never executed" in line for line in looked), plan
