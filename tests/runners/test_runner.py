"""Runners of one's own in workers: when they run, how they end, and that nothing else suffers."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta

import psycopg
import pytest

from desk import make
from kept import Defer, Failure, LeaseLost, RunnerContext
from kept.signals import ConnectionLost, RunFinished, RunLeaseLost, RunnerSkipped, WorkerFenced
from recurrent import runner_row, runs
from support import aeventually

SHORT = {"lease": timedelta(seconds=2), "renew": timedelta(milliseconds=500)}


def ms(n: int) -> timedelta:
    return timedelta(milliseconds=n)


async def test_a_runner_runs_in_a_worker_and_its_counters_are_on_record(database, conn):
    app, told = make(database)
    seen = []

    @app.runner("sweep", singleton=True, every="1m", max_items=7, max_time="30s")
    async def sweep(ctx: RunnerContext):
        seen.append((ctx.name, ctx.budget.items, ctx.budget.left, ctx.shard_index, ctx.shard_count))
        assert 29 < ctx.budget.seconds <= 30
        assert ctx.budget.spend(5) == 2
        assert ctx.budget.spend(5) == 0
        ctx.logger.info("swept")
        return {"swept": 5, "left": 0}

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    (run,) = runs(conn)
    assert (run["name"], run["state"], run["counters"]) == ("sweep", "done", {"swept": 5, "left": 0})
    assert seen == [("sweep", 7, 7, 0, 1)]
    (finished,) = told.of(RunFinished)
    assert (finished.state, finished.counters, finished.run) == ("done", {"swept": 5, "left": 0}, run["id"])
    row = runner_row(conn)
    assert (row["run"], row["every"], row["singleton"]) == (None, timedelta(minutes=1), True)


async def test_a_plain_function_without_a_context_runs_in_a_thread(database, conn):
    app, told = make(database)

    @app.runner("sweep")
    def sweep():
        assert threading.current_thread() is not threading.main_thread()
        return 3

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    assert [each["counters"] for each in runs(conn)] == [{"items": 3}]


async def test_a_runner_comes_again_after_its_interval_and_not_before(database, conn, clock):
    app, told = make(database)
    passes = []

    @app.runner("sweep", every="300ms")
    async def sweep():
        passes.append(asyncio.get_running_loop().time())

    async with app.worker():
        await aeventually(lambda: len(passes) >= 4)
    between = [later - earlier for earlier, later in itertools.pairwise(passes)]
    assert all(0.25 < gap < 1.0 for gap in between), between
    assert {each.state for each in told.of(RunFinished)} == {"idle"}
    assert runs(conn) == []


async def test_two_workers_make_one_pass_in_an_interval(database):
    count, apps = [], [make(database)[0] for _ in range(2)]
    for app in apps:

        @app.runner("sweep", every="400ms")
        async def sweep():
            count.append(asyncio.get_running_loop().time())

    async with apps[0].worker(), apps[1].worker():
        await aeventually(lambda: len(count) >= 5)
    assert all(later - earlier > 0.3 for earlier, later in itertools.pairwise(count)), count


async def test_jobs_go_on_while_a_runner_takes_its_time(database, conn):
    app, told = make(database)
    go = asyncio.Event()

    @app.runner("sweep")
    async def sweep():
        await go.wait()
        return 1

    @app.task()
    async def note(n: int) -> None:
        return None

    async with app.worker():
        await aeventually(lambda: runs(conn))
        jobs = [await note.aenqueue(n) for n in range(20)]
        for job in jobs:
            await job.aresult(timeout="10s")
        assert not told.of(RunFinished)
        go.set()
        await aeventually(lambda: told.of(RunFinished))


# --- failing


async def test_a_failure_is_on_record_cleaned_and_the_worker_goes_on(database, conn):
    app, told = make(database)

    @app.runner("sweep", every="1h")
    async def sweep():
        raise ValueError("no \x00 postgresql://me:secret@host/db " + "x" * 100_000)

    @app.task()
    async def note() -> None:
        return None

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
        await (await note.aenqueue()).aresult(timeout="5s")
    (run,) = runs(conn)
    assert (run["state"], run["code"]) == ("failed", "value_error")
    assert "secret" not in run["error"]
    assert len(run["error"]) <= 32_000
    assert not told.of(ConnectionLost)


@pytest.mark.parametrize("odd", ["seven", [1], {"a": "b"}, float("nan")])
async def test_a_runner_that_returns_something_else_fails_by_its_name(database, conn, odd):
    app, told = make(database)

    @app.runner("sweep")
    async def sweep():
        return odd

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    (run,) = runs(conn)
    assert (run["state"], run["code"]) == ("failed", "refused")
    assert "'sweep'" in run["error"]


async def test_a_failure_or_a_defer_may_ask_for_a_longer_wait(database, conn):
    app, told = make(database)

    @app.runner("api", every="1s")
    async def api():
        raise Failure("busy", code="busy", after="10min")

    @app.runner("night", every="1s")
    async def night():
        raise Defer("10min", "not in the daytime")

    async with app.worker():
        await aeventually(lambda: len(told.of(RunFinished)) == 2)
    for name in ("api", "night"):
        wait = conn.execute("select next_at - kept.now() from kept.runner where name = %s", [name]).fetchone()[0]
        assert wait > timedelta(minutes=9)
    assert [(run["name"], run["state"], run["reason"]) for run in runs(conn)] == [("api", "failed", "retryable")]


# --- overrunning


async def test_an_async_runner_that_overruns_is_cancelled_and_nothing_else_suffers(database, conn):
    app, told = make(database, tick_runner=ms(200))
    cancelled = asyncio.Event()

    @app.runner("sweep", every="1h")
    async def sweep():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    assert cancelled.is_set()
    (run,) = runs(conn)
    assert (run["state"], run["code"]) == ("failed", "timeout")
    assert not told.of(ConnectionLost)


async def test_a_thread_that_will_not_stop_keeps_its_slot_until_it_has_ended(database, conn):
    app, _told = make(database)
    go, began = threading.Event(), []

    @app.runner("sweep", singleton=True, every="100ms", max_time="200ms")
    def sweep(ctx):
        began.append(1)
        go.wait(20)
        return 1

    other, heard = make(database)
    other.runner("sweep", singleton=True, every="100ms")(lambda: began.append(2))
    try:
        async with app.worker():
            await aeventually(lambda: began)
            async with other.worker():
                await aeventually(lambda: heard.of(RunnerSkipped))
                waited = "select kept.now() > started_at + '1 s' from kept.run"
                await aeventually(lambda: conn.execute(waited).fetchone()[0])
                assert began == [1]
                assert [run["state"] for run in runs(conn)] == ["running"]
                go.set()
                await aeventually(lambda: len(began) > 1)
    finally:
        go.set()
    assert (runs(conn)[0]["state"], runs(conn)[0]["code"]) == ("failed", "timeout")
    assert heard.of(RunnerSkipped)[0].holder == app.worker().name


async def test_a_thread_sees_in_its_budget_that_it_should_stop(database, conn):
    app, told = make(database)

    @app.runner("sweep", every="1h", max_time="200ms")
    def sweep(ctx):
        while ctx.budget.left:
            threading.Event().wait(0.01)

    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    assert told.of(RunFinished)[0].state in ("idle", "failed")


# --- ending


async def test_a_shutdown_waits_for_a_runner_within_the_grace(database, conn):
    app, _told = make(database)
    go = asyncio.Event()

    @app.runner("sweep")
    async def sweep():
        await go.wait()
        return 1

    worker = app.worker()
    async with worker:
        await aeventually(lambda: runs(conn))
        stopping = asyncio.create_task(worker.stop("10s"))
        await asyncio.sleep(0)
        go.set()
        await stopping
    assert [run["state"] for run in runs(conn)] == ["done"]
    assert conn.execute("select state from kept.worker").fetchone()[0] == "closed"


async def test_after_the_grace_a_runner_is_cancelled_and_its_slot_freed(database, conn):
    app, _told = make(database)

    @app.runner("sweep", singleton=True)
    async def sweep():
        await asyncio.Event().wait()

    worker = app.worker()
    async with worker:
        await aeventually(lambda: runs(conn))
        await worker.stop("100ms")
    (run,) = runs(conn)
    assert (run["state"], run["reason"]) == ("cancelled", "shutdown")
    assert runner_row(conn)["run"] is None
    assert conn.execute("select state from kept.worker").fetchone()[0] == "closed"


async def test_a_worker_that_lost_its_lease_cancels_its_runner_and_the_fence_says_so(database, conn):
    conn.execute("create table effect (n int)")
    app, told = make(database, **SHORT)
    went, errors = asyncio.Event(), []

    @app.runner("sweep", singleton=True, every="1h")
    async def sweep(ctx: RunnerContext):
        async with await psycopg.AsyncConnection.connect(database) as users:
            await ctx.afence(users)
            await users.execute("insert into effect values (%s)", [ctx.run])
        try:
            await went.wait()
        finally:
            try:
                async with await psycopg.AsyncConnection.connect(database) as users:
                    await users.execute("insert into effect values (%s)", [-ctx.run])
                    await ctx.afence(users)
            except LeaseLost as error:
                errors.append(error)
        return 1

    async with app.worker():
        await aeventually(lambda: conn.execute("select count(*) from effect").fetchone()[0])
        conn.execute("update kept.worker set state = 'lost'")
        await aeventually(lambda: told.of(RunLeaseLost))
        await aeventually(lambda: [run for run in runs(conn) if run["state"] == "abandoned"])
        first = runs(conn)[0]
        assert (first["state"], first["code"]) == ("abandoned", "worker_died")
        went.set()
    assert errors[0].runner == "sweep"
    assert errors[0].run == first["id"]
    effects = [n for (n,) in conn.execute("select n from effect").fetchall()]
    assert first["id"] in effects
    assert -first["id"] not in effects, "the transaction that was fenced off rolled back"


async def test_a_worker_that_lost_its_lease_closes_the_runs_it_left_open(database, conn):
    app, told = make(database, **SHORT, tick_runners=("promote", "jobs", "sweep"))

    @app.runner("sweep", every="1h")
    async def sweep():
        await asyncio.Event().wait()

    async with app.worker() as worker:
        await aeventually(lambda: runs(conn))
        conn.execute("update kept.worker set state = 'lost'")
        await aeventually(lambda: told.of(WorkerFenced))
        await aeventually(lambda: [run for run in runs(conn) if run["state"] == "abandoned"], 5, what="a closed run")
        await worker.stop("0s")


# --- who and where


async def test_shards_split_the_work_and_singletons_do_not_care(database, conn):
    seen = set()
    apps = [make(database, shard_index=index, shard_count=2)[0] for index in (0, 1)]
    for app in apps:

        @app.runner("part", every="1h")
        async def part(ctx):
            seen.add(("part", ctx.shard_index, ctx.shard_count))

        @app.runner("whole", every="1h", singleton=True)
        async def whole(ctx):
            seen.add(("whole", ctx.shard_index, ctx.shard_count))

    async with apps[0].worker(), apps[1].worker():
        await aeventually(lambda: len(seen) == 3)
    assert seen == {("part", 0, 2), ("part", 1, 2), ("whole", 0, 1)}


async def test_drain_runs_jobs_and_no_runner(database, conn):
    app, told = make(database, tick_runners=("sweep",))

    @app.runner("sweep")
    async def sweep():
        raise AssertionError

    @app.task()
    async def note() -> None:
        return None

    await note.aenqueue()
    assert [job.state for job in await app.drain()] == ["done"]
    assert not told.of(RunFinished)


async def test_only_chosen_runners_run(database, conn):
    app, told = make(database, tick_runners=("outbox", "two"))
    app.runner("one")(lambda: 1)
    app.runner("two")(lambda: 1)
    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    assert [run["name"] for run in runs(conn)] == ["two"]


async def test_runs_of_a_dead_worker_are_closed_by_whoever_reclaims(database, conn):
    """Also by a worker that does not know the runner."""
    dead = "00000000-0000-4000-8000-000000000001"
    conn.execute(
        "insert into kept.worker (id, name, host, pid, version, concurrency, lease_until)"
        " values (%s, 'gone', 'h', 1, '0', 1, kept.now() - interval '1 minute')",
        [dead],
    )
    conn.execute("insert into kept.run (name, worker, worker_name) values ('elsewhere', %s, 'gone')", [dead])
    app, told = make(database)
    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    (finished,) = told.of(RunFinished)
    assert (finished.name, finished.state) == ("elsewhere", "abandoned")
    assert [run["state"] for run in runs(conn)] == ["abandoned"]
