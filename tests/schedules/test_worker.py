"""Schedules as a worker fires them: real workers on a real database."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import psycopg

from kept import App, Context, cron, every
from kept.signals import Warned
from kernel import row, rows
from support import Clock, aeventually
from timetables import add, fired


async def test_a_slot_that_comes_becomes_a_job_with_its_nominal_time(database: str, conn: psycopg.Connection) -> None:
    app = App(database)
    seen: list[tuple[str | None, object]] = []

    @app.schedule(every("1s"))
    async def beat(ctx: Context) -> None:
        seen.append((ctx.schedule, ctx.slot))

    async with app, app.worker():
        await aeventually(lambda: len(seen) >= 2, what="two slots")
    (anchor,) = conn.execute("select anchor from kept.schedule").fetchone()
    assert [name for name, _ in seen[:2]] == ["beat", "beat"]
    assert [slot - anchor for _, slot in seen[:2]] == [timedelta(seconds=1), timedelta(seconds=2)]


async def test_a_tick_runs_what_has_come_due_in_one_pass(database: str, clock: Clock) -> None:
    app = App(database)
    seen: list[object] = []

    @app.schedule(cron("0 * * * *"))
    async def hourly(ctx: Context) -> None:
        seen.append(ctx.slot)

    async with app:
        await app.drain()
        assert seen == []
        clock.advance("1h")
        await app.drain()
        assert len(seen) == 1
        await app.drain()
        assert len(seen) == 1


async def test_a_worker_fires_schedules_of_tasks_that_it_does_not_know(database, conn, clock) -> None:
    add(conn, task="unheard_of")
    clock.advance("1h")
    app = App(database)
    async with app, app.worker():
        await aeventually(lambda: fired(conn), what="its job")
    assert row(conn, "select worker from kept.job")["worker"] is None


class Statements:
    """How many were sent to a database, as the server counts them: outside of a block each is a transaction."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn

    async def sent_within(self, seconds: float) -> int:
        before, began = self._count(), monotonic()
        await aeventually(lambda: monotonic() - began >= seconds, what="the end of the count")
        return self._count() - before - 2  # our own

    def _count(self) -> int:
        self._conn.execute("select pg_stat_clear_snapshot()")
        return row(self._conn, COUNT)["xact_commit"]


COUNT = "select xact_commit from pg_stat_database where datname = current_database()"


async def comes_down_to(most: float, database: str, app: App) -> None:
    """Wait until a worker sends no more than *most* statements a second; the server's own upkeep counts too."""

    @app.task(name="send")
    async def send() -> None: ...

    async def is_calm() -> bool:
        return await statements.sent_within(4) <= 4 * most

    with psycopg.connect(database, autocommit=True) as own:
        statements = Statements(own)
        async with app, app.worker():
            await aeventually(is_calm, 40, what=f"at most {most} statements a second")


async def test_an_idle_worker_with_schedules_sends_hardly_more_than_one_without(database, conn) -> None:
    for n in range(50):
        add(conn, f"s{n}", every("1h"))
    await comes_down_to(3, database, App(database))  # as without: two of its own, its keeper's, and the server's


async def test_a_schedule_that_cannot_be_read_here_does_not_make_a_worker_spin(database, conn) -> None:
    add(conn, "odd")
    conn.execute(
        "update kept.schedule set zone = 'Mars/Olympus', cron = '@hourly', every = null,"
        " look_at = kept.now() - interval '1 hour'"
    )
    app, told = App(database), []
    app.signals.subscribe(told.append)
    await comes_down_to(5, database, app)
    assert [signal.code for signal in told if isinstance(signal, Warned)] == ["odd_schedule"]


async def test_what_became_of_the_last_job_is_copied_when_no_slot_comes_any_more(database, conn, clock) -> None:
    app = App(database)
    done: list[int] = []

    @app.schedule(every("1h"))
    async def last(ctx: Context) -> None:
        done.append(ctx.job.id)

    async with app:
        await app.drain()
        clock.advance("1h")
        await app.drain()
        await app.schedules.apause("last")
        clock.advance("2h")
        await app.drain()
    (found,) = rows(conn, "select outcome from kept.occurrence")
    assert (len(done), found["outcome"]) == (1, "done")
