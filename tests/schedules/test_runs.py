"""What schedules' jobs leave behind: runs on record, signals, and figures for the whole cluster."""

from __future__ import annotations

import psycopg

from kept import App, every
from kept.db.connect import Link
from kept.schedules.runner import Firing
from kept.signals import RunFinished, Signal, Signals
from kernel import rows
from support import Clock
from timetables import look_after

RUNS = "select name, kind, state, slot, started_at, finished_at, counters, code, error, job from kept.runs order by id"


def hourly_app(database: str) -> App:
    app = App(database)

    @app.schedule(every("1h"))
    async def good() -> dict[str, int]:
        return {"sent": 3, "name": "not a number"}

    @app.schedule(every("1h"))
    async def bad() -> None:
        raise ValueError("no such customer")

    return app


async def an_hour_of(app: App, clock: Clock) -> None:
    async with app:
        await app.drain()
        clock.advance("1h")
        await app.drain()


async def test_every_occurrence_is_a_run_with_what_became_of_its_job(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    app = hourly_app(database)
    await an_hour_of(app, clock)
    bad, good = sorted(rows(conn, RUNS), key=lambda run: run["name"])
    assert (good["kind"], good["state"]) == ("schedule", "done")
    assert good["slot"] <= good["started_at"] <= good["finished_at"]
    assert bad["state"] == "pending", "it will be retried"
    assert bad["job"] is not None


async def test_what_became_of_jobs_is_copied_once_and_told_as_runs(
    database: str, conn: psycopg.Connection, clock: Clock
) -> None:
    await an_hour_of(hourly_app(database), clock)
    told: list[Signal] = []
    link = await Link.open(database)
    try:
        firing = Firing(link, Signals(told.append))
        await look_after(firing, "test")
        await look_after(firing, "test")
        (succeeded,) = await firing.successes(10)
    finally:
        await link.close()
    (finished,) = [signal for signal in told if isinstance(signal, RunFinished)]
    assert (finished.name, finished.state, finished.counters) == ("good", "done", {"sent": 3})
    (good,) = [run for run in rows(conn, RUNS) if run["name"] == "good"]
    assert good["counters"] == {"sent": 3}
    assert succeeded == ("good", good["finished_at"].timestamp())


async def test_figures_tell_of_schedules_that_nobody_fires(database: str, clock: Clock) -> None:
    app = hourly_app(database)
    async with app:
        await app.drain()
        await app.schedules.apause("bad")
        clock.advance("1h2min")
    link = await Link.open(database)
    try:
        figures = await Firing(link, Signals()).figures()
    finally:
        await link.close()
    assert (figures.active, figures.paused, figures.retired, figures.late) == (1, 1, 0, 1)
    assert 120 <= figures.lateness < 180
