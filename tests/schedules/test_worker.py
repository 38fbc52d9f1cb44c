"""Schedules as a worker fires them: real workers on a real database."""

from __future__ import annotations

from datetime import timedelta

import psycopg

from kept import App, Context, cron, every
from support import Clock, aeventually


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
