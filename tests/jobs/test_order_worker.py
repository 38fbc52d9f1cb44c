"""A worker and its ordered lanes: what runs, what waits, what is given back."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from kept import App, Context, Defer, Failure, Retry, Skip
from kept.config import Settings
from kernel import job_row, record, row, rows
from support import aeventually


def quick(**changes):
    return Settings(**{"poll_only": True} | changes)


class Seen:
    """What handlers did, by key, and whether two of one key ever ran at once."""

    def __init__(self):
        self.ran = defaultdict(list)
        self.now = defaultdict(int)
        self.overlaps = 0

    def __call__(self, key, number):
        self.ran[key].append(number)
        self.overlaps += self.now[key] > 0

    async def during(self, key, number):
        self(key, number)
        self.now[key] += 1
        await asyncio.sleep(0)
        self.now[key] -= 1


def make(database, **task):
    app = App(database, settings=quick())
    seen = Seen()
    troubles = {}

    @app.task(**{"ordered": True, "retry": Retry(max_attempts=3, delay="1h", jitter="0s")} | task)
    async def work(ctx: Context, key: str, number: int) -> None:
        await seen.during(key, number)
        if (key, number) in troubles:
            raise troubles[key, number]

    return app, work, seen, troubles


async def fill(app, work, keys, count):
    """So many jobs of each key, in turn; their ids by key and number."""
    places = [(key, number) for number in range(count) for key in keys]
    jobs = await app.aenqueue_many([work.using(order_key=key).bind(key, number) for key, number in places])
    return {place: job.id for place, job in zip(places, jobs, strict=True)}


async def idle(app, conn, left):
    """Let a worker work until nobody runs and so many jobs are left."""
    query = "select count(*) n, count(worker) r from kept.job"
    async with app, app.worker():
        await aeventually(lambda: row(conn, query) == {"n": left, "r": 0}, what=f"{left} jobs left", timeout=30)


async def test_jobs_of_one_key_run_one_at_a_time_in_their_order_and_keys_side_by_side(database, conn):
    app, work, seen, _ = make(database)
    await fill(app, work, ["a", "b", "c"], 400)
    await idle(app, conn, 0)
    assert seen.ran == {key: list(range(400)) for key in "abc"}
    assert seen.overlaps == 0
    assert row(conn, "select max(attempt - uncharged) n from kept.history")["n"] == 1


@pytest.mark.parametrize("trouble", [Failure("no", code="no"), Defer("1h")])
async def test_a_job_that_comes_back_later_blocks_its_key_and_the_rest_is_given_back_uncharged(database, conn, trouble):
    app, work, seen, troubles = make(database)
    jobs = await fill(app, work, ["a", "b"], 300)
    troubles["a", 100] = trouble
    await idle(app, conn, 200)
    assert seen.ran == {"a": list(range(101)), "b": list(range(300))}
    head = job_row(conn, jobs["a", 100])
    assert (head["attempt"] - head["uncharged"], head["ready"]) == (int(isinstance(trouble, Failure)), False)
    behind = rows(conn, "select * from kept.job where id > %s", head["id"])
    assert {(each["attempt"] - each["uncharged"], each["ready"], each["order_key"]) for each in behind} == {
        (0, True, "a")
    }
    conn.execute("update kept.job set due_at = now() where id = %s", [head["id"]])
    del troubles["a", 100]
    await idle(app, conn, 0)
    assert seen.ran["a"] == [*range(101), *range(100, 300)]


@pytest.mark.parametrize("trouble", [Failure("no", code="no", retryable=False), Skip("not needed")])
async def test_a_job_that_ends_for_good_lets_the_next_go_on(database, conn, trouble):
    app, work, seen, troubles = make(database)
    jobs = await fill(app, work, ["a"], 200)
    troubles["a", 100] = trouble
    await idle(app, conn, 0)
    assert seen.ran["a"] == list(range(200))
    assert record(conn, jobs["a", 100])["state"] == ("skipped" if isinstance(trouble, Skip) else "failed")


async def test_a_job_that_steps_aside_is_retried_later_and_the_rest_goes_on(database, conn):
    app, work, seen, troubles = make(database, ordered="step_aside")
    jobs = await fill(app, work, ["a"], 200)
    troubles["a", 100] = Failure("no", code="no")
    await idle(app, conn, 1)
    assert seen.ran["a"] == list(range(200))
    assert job_row(conn, jobs["a", 100])["order_key"] == f"#{jobs['a', 100]}"


async def test_a_handler_that_completes_by_itself_is_followed_in_order(database, conn):
    app = App(database, settings=quick())
    ran = []

    @app.task(ordered=True)
    async def work(ctx: Context, number: int) -> None:
        ran.append(number)
        async with app._pool()[1].connection() as own, own.transaction():
            await ctx.acomplete(own)

    await app.aenqueue_many([work.using(order_key="a").bind(number) for number in range(100)])
    await idle(app, conn, 0)
    assert ran == list(range(100))


async def test_a_worker_that_stops_gives_back_the_whole_run_uncharged(database, conn):
    app = App(database, settings=quick())
    began, ran = asyncio.Event(), []

    @app.task(ordered=True)
    async def work(number: int) -> None:
        ran.append(number)
        if number == 150:
            began.set()
            await asyncio.sleep(60)

    await app.aenqueue_many([work.using(order_key="a").bind(number) for number in range(300)])
    async with app:
        worker = app.worker()
        async with worker:
            await asyncio.wait_for(began.wait(), 30)
            await worker.stop("0s")
    left = rows(conn, "select attempt - uncharged as charged, ready, worker from kept.job order by id")
    assert left == [{"charged": 0, "ready": True, "worker": None}] * 150
    assert ran == list(range(151))


async def test_a_tick_runs_no_more_than_its_budget_and_keeps_the_order(database, conn):
    app, work, seen, _ = make(database)
    await fill(app, work, ["a", "b"], 100)
    done = await app.drain()
    assert len(done) == 200
    assert seen.ran == {key: list(range(100)) for key in "ab"}


async def test_ordered_and_ordinary_lanes_share_the_slots(database, conn):
    app = App(database, settings=quick(concurrency=2))
    ran = []

    @app.task(ordered=True)
    async def in_order(number: int) -> None:
        ran.append("ordered")
        await asyncio.sleep(0.02)

    @app.task()
    async def plain(number: int) -> None:
        ran.append("plain")
        await asyncio.sleep(0.02)

    await app.aenqueue_many([plain.bind(number) for number in range(100)])
    await app.aenqueue_many([in_order.using(order_key=f"k{number}").bind(number) for number in range(100)])
    await idle(app, conn, 0)
    half = ran[:100]
    assert 20 < half.count("plain") < 80


async def test_a_wake_up_starts_an_ordered_job_at_once(database, conn):
    app = App(database)
    ran = asyncio.Event()

    @app.task(ordered=True)
    async def work() -> None:
        ran.set()

    async with app, app.worker():
        query = "select count(*) n from kept.sleeper where until > now()"
        await aeventually(lambda: row(conn, query)["n"], what="a worker that sleeps")
        await work.using(order_key="a").aenqueue()
        await asyncio.wait_for(ran.wait(), 0.9)
