"""An App and a worker in one process: what handlers return, raise and complete becomes of their jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic

import psycopg
import pytest
import structlog

from kept import App, Context, Defer, Failure, JobCancelled, JobFailed, LeaseLost, Retry, Skip
from kept.config import Settings
from kept.jobs.store import Store
from kept.signals import ConnectionLost, JobsSettled, Signal, WorkerFenced, WorkerStopped
from kept.worker.listener import Listener
from support import Clock, aeventually

QUICKLY = Retry.fixed("0s", max_attempts=3, jitter="0s")
WORKERS_LOSE_THEIR_CONNECTION = """
select pg_terminate_backend(pid) from pg_stat_activity
 where application_name like 'kept worker%' and datname = current_database()
"""


@pytest.fixture
def app(database: str) -> App:
    return App(database, settings=Settings(reclaim_scan="100ms"))


@asynccontextmanager
async def at_work(app: App, **options: int) -> AsyncIterator[App]:
    async with app, app.worker(**options):
        yield app


def row(conn: psycopg.Connection, job: int, columns: str) -> tuple[object, ...] | None:
    return conn.execute(f"select {columns} from kept.jobs where id = %s", [job]).fetchone()


def log(conn: psycopg.Connection, job: int) -> list[tuple[str, str | None]]:
    rows = conn.execute("select event, code from kept.job_log where job = %s order by at", [job])
    return [(event, code) for event, code in rows.fetchall()]


# --- working inside the process


@dataclass
class Sum:
    of: list[int]
    total: int


async def test_a_result_comes_back_as_the_type_the_handler_returned(app: App) -> None:
    @app.task()
    async def add(numbers: list[int]) -> Sum:
        return Sum(numbers, sum(numbers))

    @app.task()
    def later(day: datetime, by: timedelta) -> datetime:
        return day + by

    async with at_work(app):
        added = await add.aenqueue([1, 2, 3])
        moved = await later.aenqueue(datetime(2026, 1, 31, tzinfo=UTC), timedelta(days=1))
        assert await added.aresult() == Sum([1, 2, 3], 6)
        assert await moved.aresult() == datetime(2026, 2, 1, tzinfo=UTC)


async def test_async_handlers_share_the_loop_and_plain_functions_run_in_threads(app: App) -> None:
    @app.task()
    async def on_the_loop() -> int:
        return threading.get_ident()

    @app.task()
    def in_a_thread() -> int:
        return threading.get_ident()

    async with at_work(app):
        assert await (await on_the_loop.aenqueue()).aresult() == threading.get_ident()
        assert await (await in_a_thread.aenqueue()).aresult() != threading.get_ident()


async def test_lifespan_works_beside_the_requests_and_stops_after_them(app: App) -> None:
    @app.task()
    async def greet(name: str) -> str:
        return f"hello {name}"

    stopped: list[Signal] = []
    app.signals.subscribe(lambda signal: stopped.append(signal) if isinstance(signal, WorkerStopped) else None)
    async with app.lifespan(object()):
        assert await (await greet.aenqueue("you")).aresult() == "hello you"
        assert not stopped
    assert len(stopped) == 1


async def test_a_handler_enqueues_on_the_loop_it_runs_on(app: App) -> None:
    @app.task()
    async def second(n: int) -> int:
        return n + 1

    @app.task()
    async def first(n: int) -> int:
        return (await second.aenqueue(n)).id

    async with at_work(app):
        followed_by = await (await first.aenqueue(1)).aresult()
        assert await (await app.ajob(followed_by)).aresult() == 2


async def test_stopping_gives_back_what_does_not_finish_in_time(app: App, conn: psycopg.Connection) -> None:
    started = asyncio.Event()

    @app.task()
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app:
        worker = app.worker()
        async with worker:
            job = await endless.aenqueue()
            await started.wait()
            await worker.stop("0s")
    assert row(conn, job.id, "state, attempt, charged") == ("pending", 1, 0)
    assert log(conn, job.id) == [("aborted:shutdown", None)]
    assert conn.execute("select state from kept.worker").fetchall() == [("closed",)]


async def test_a_worker_that_cannot_begin_leaves_no_lease_and_no_keeper_behind(
    app: App, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: Listener, schema: str) -> None:
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Listener, "start", refused)
    async with app:
        worker = app.worker()
        with pytest.raises(psycopg.OperationalError):
            await worker.__aenter__()
        keeper = worker._post.lease._keeper
        assert keeper is not None
        assert keeper.poll() is not None
    assert conn.execute("select state from kept.worker").fetchall() == [("closed",)]


async def test_two_workers_in_one_process_share_the_work_and_nothing_else(app: App) -> None:
    @app.task()
    async def work(n: int) -> int:
        return n

    async with app, app.worker(concurrency=1), app.worker(concurrency=1):
        jobs = await app.aenqueue_many([work.bind(n) for n in range(50)])
        assert [await job.aresult() for job in jobs] == list(range(50))


# --- draining, for tests


async def test_drain_runs_what_is_due_and_tells_how_it_ended(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def halve(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // 2

    async with app:
        even, odd = await halve.aenqueue(4), await halve.aenqueue(5)
        later = await halve.using(delay="1h").aenqueue(6)
        ended = await app.drain()
        assert [(job.id, job.state, job.code) for job in ended] == [
            (even.id, "done", None),
            (odd.id, "failed", "value_error"),
        ]
        assert (await app.ajob(later.id)).state == "pending"
        assert await app.drain() == []


async def test_drain_also_runs_what_handlers_enqueue_meanwhile(app: App) -> None:
    @app.task()
    async def count_down(n: int) -> int:
        if n:
            await count_down.aenqueue(n - 1)
        return n

    async with app:
        await count_down.aenqueue(3)
        assert [job.state for job in await app.drain()] == ["done"] * 4


# --- what handlers raise


async def test_a_deferred_job_comes_back_later_and_is_not_charged(
    app: App, conn: psycopg.Connection, clock: Clock
) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def patient(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise Defer("1h", "not yet")
        return ctx.attempt

    async with app:
        job = await patient.aenqueue()
        assert await app.drain() == []
        assert row(conn, job.id, "state, attempt, charged") == ("pending", 1, 0)
        assert log(conn, job.id) == [("deferred", None)]
        clock.advance("61m")
        assert await app.drain() == []
        clock.advance("61m")
        assert [ended.state for ended in await app.drain()] == ["done"]
        assert await job.aresult() == 3
    assert row(conn, job.id, "attempt, charged") == (3, 1)


async def test_a_skipped_job_has_no_result(app: App, conn: psycopg.Connection) -> None:
    @app.task()
    def unneeded() -> None:
        raise Skip("the order was cancelled")

    async with app:
        job = await unneeded.aenqueue()
        assert [ended.state for ended in await app.drain()] == ["skipped"]
        with pytest.raises(JobCancelled, match="the order was cancelled"):
            await job.aresult()
    assert row(conn, job.id, "state, message") == ("skipped", "the order was cancelled")


async def test_a_failure_that_is_not_retryable_ends_the_job_at_once(app: App) -> None:
    @app.task(retry=QUICKLY)
    async def pay() -> None:
        raise Failure("card declined", code="card_declined", retryable=False)

    async with app:
        job = await pay.aenqueue()
        (ended,) = await app.drain()
        assert (ended.state, ended.code, ended.reason, ended.attempt) == ("failed", "card_declined", "fatal", 1)
        with pytest.raises(JobFailed, match="card declined") as failed:
            await job.aresult()
    assert (failed.value.job_code, failed.value.reason) == ("card_declined", "fatal")


async def test_a_failure_may_say_when_to_try_again(app: App, conn: psycopg.Connection) -> None:
    @app.task(retry=QUICKLY)
    async def busy() -> None:
        raise Failure("too many requests", code="rate_limited", after="10m")

    async with app:
        job = await busy.aenqueue()
        await app.drain()
    wait = conn.execute("select extract(epoch from due_at - kept.now())::float8 from kept.job where id = %s", [job.id])
    assert 590 < wait.fetchone()[0] <= 600  # type: ignore[index]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_no_exception_ends_more_than_its_own_attempt(app: App, kind: str, error: BaseException) -> None:
    async def raises() -> None:
        raise error

    def raises_in_thread() -> None:
        raise error

    bad = app.task(name="bad", retry=Retry(max_attempts=1))(raises if kind == "async" else raises_in_thread)

    @app.task()
    async def good() -> str:
        return "fine"

    async with at_work(app, concurrency=1):
        failed, fine = await bad.aenqueue(), await good.aenqueue()
        assert await fine.aresult() == "fine"
        with pytest.raises(JobFailed):
            await failed.aresult()


async def test_a_cancellation_of_one_job_does_not_reach_the_next(app: App) -> None:
    # One slot, so both run in one task; a task group reacts to cancellations that are left over.
    @app.task(timeout="50ms", retry=Retry(max_attempts=1))
    async def swallows() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    @app.task(retry=Retry(max_attempts=1))
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @app.task()
    async def groups() -> str:
        async def fails() -> None:
            raise ValueError("inside")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        except ExceptionGroup:
            return "as it should"
        return "never"

    async with at_work(app, concurrency=1):
        first, second = await swallows.aenqueue(), await cancels_itself.aenqueue()
        third = await groups.aenqueue()
        assert await third.aresult() == "as it should"
        with pytest.raises(JobFailed, match="timeout"):
            await first.aresult()
        with pytest.raises(JobFailed, match="cancelled from inside"):
            await second.aresult()


# --- completing in one's own transaction


async def test_completion_commits_with_the_handlers_own_effect(
    app: App, conn: psycopg.Connection, database: str
) -> None:
    conn.execute("create table effect (job bigint)")

    @app.task()
    async def async_handler(ctx: Context) -> str:
        async with await psycopg.AsyncConnection.connect(database) as tx:
            await tx.execute("insert into effect values (%s)", [ctx.job.id])
            await ctx.acomplete(tx, result="completed")
        return "returned"

    @app.task()
    def sync_handler(ctx: Context) -> str:
        with psycopg.connect(database) as tx:
            tx.execute("insert into effect values (%s)", [ctx.job.id])
            ctx.complete(tx, result="completed")
        return "returned"

    settled: list[int] = []

    def note(signal: Signal) -> None:
        if isinstance(signal, JobsSettled):
            settled.extend(each.job_id for each in signal.jobs)

    app.signals.subscribe(note)
    async with at_work(app):
        jobs = [await async_handler.aenqueue(), await sync_handler.aenqueue()]
        assert [await job.aresult() for job in jobs] == ["completed", "completed"]
        await aeventually(lambda: len(settled) == 2, what="both to be reported as settled")
    assert sorted(row[0] for row in conn.execute("select job from effect")) == [job.id for job in jobs]


async def test_a_completion_that_was_rolled_back_is_a_failed_attempt(
    app: App, conn: psycopg.Connection, database: str
) -> None:
    @app.task(retry=QUICKLY)
    async def forgets_to_commit(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(database) as tx:
            await ctx.acomplete(tx)
            if ctx.attempt == 1:
                await tx.rollback()

    async with at_work(app):
        job = await forgets_to_commit.aenqueue()
        assert await job.aresult() is None
    assert row(conn, job.id, "state, attempt") == ("done", 2)
    assert log(conn, job.id) == [("failed", "completion_rolled_back")]


async def test_an_error_after_a_committed_completion_changes_nothing(
    app: App, conn: psycopg.Connection, database: str
) -> None:
    @app.task(retry=QUICKLY)
    async def stumbles(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(database) as tx:
            await ctx.acomplete(tx, result=1)
        raise ValueError("too late to matter")

    async with at_work(app):
        job = await stumbles.aenqueue()
        assert await job.aresult() == 1
    assert row(conn, job.id, "state, attempt") == ("done", 1)
    assert log(conn, job.id) == []


async def test_a_handler_that_wrongly_believes_its_lease_lost_is_retried(app: App, conn: psycopg.Connection) -> None:
    @app.task(retry=QUICKLY)
    async def mistaken(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise LeaseLost(job_id=ctx.job.id, attempt=1, worker="nobody")
        return "done after all"

    async with at_work(app):
        job = await mistaken.aenqueue()
        assert await job.aresult() == "done after all"
    assert log(conn, job.id) == [("failed", "lease_lost")]


# --- suspects, where no child process can be had


async def test_without_a_child_process_a_suspect_runs_when_nothing_else_does(
    app: App, conn: psycopg.Connection
) -> None:
    # This App lives in a function: no other process could find it.
    assert app.location is None
    running: set[str] = set()
    seen: list[set[str]] = []
    release = asyncio.Event()

    def runs(name: str) -> Callable[[], None]:
        running.add(name)
        seen.append(set(running))
        return lambda: running.discard(name)

    @app.task()
    async def plain() -> None:
        ended = runs("plain")
        await release.wait()
        ended()

    @app.task()
    async def suspect() -> None:
        ended = runs("suspect")
        for _ in range(20):  # time enough for others to be claimed, if they could be
            await app.ajob(first.id)
        ended()

    async with at_work(app, concurrency=4):
        first = await plain.aenqueue()
        await aeventually(lambda: "plain" in running)
        with conn.transaction():
            blamed = suspect.using(tx=conn).enqueue()
            conn.execute("update kept.job set suspect = true, ready = false where id = %s", [blamed.id])
            conn.execute("select pg_notify('kept:wake', 'suspects')")
        release.set()
        others = [await plain.aenqueue() for _ in range(5)]
        for job in (first, blamed, *others):
            assert await job.aresult() is None
    assert {"suspect"} in seen
    assert all(together == {"suspect"} for together in seen if "suspect" in together)


def test_a_handlers_logger_writes_to_the_programs_own_log_and_names_the_job(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()  # a program that has not set structlog up
    app = App("postgresql://localhost/nowhere")

    @app.task()
    def tell(ctx: Context) -> None:
        ctx.logger.info("paid\nlevel=error forged", amount=7)

    with caplog.at_level(logging.INFO, "kept.job"):
        tell()
    (line,) = caplog.messages
    assert "\n" not in line
    assert "amount=7" in line
    assert "task='tell'" in line


def test_a_spare_is_for_workers_whose_command_was_told_where_the_app_is(database):
    app = App(database)
    assert not app.plan().spare
    app.configure(app.settings, "tests.somewhere:app")
    assert app.plan().spare
    assert not app.plan(spare=False).spare
    assert not app.plan(once=True).spare


# --- what a worker holds, and when it looks


async def test_jobs_that_wait_behind_slow_ones_are_given_back_and_not_taken_again(
    app: App, conn: psycopg.Connection
) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work(*, blocks: bool) -> None:
        if blocks:
            await gate.wait()

    def held() -> int:
        return conn.execute("select count(*) from kept.job where worker is not null").fetchone()[0]  # type: ignore[index]

    async with at_work(app, concurrency=4):
        await app.aenqueue_many([work.bind(blocks=False) for _ in range(500)])
        await aeventually(lambda: not conn.execute("select from kept.job").fetchall(), what="an empty table")
        await app.aenqueue_many([work.bind(blocks=True) for _ in range(500)])
        await aeventually(lambda: held() > 4, what="jobs in hand, as the lane is quick")
        await aeventually(lambda: held() == 4, what="only what runs in hand")
        attempts = conn.execute("select sum(attempt) from kept.job").fetchone()
        await app.aenqueue_many([work.bind(blocks=True)])
        await aeventually(lambda: conn.execute("select count(*) from kept.job").fetchone() == (501,))
        assert conn.execute("select sum(attempt) from kept.job").fetchone() == attempts
        gate.set()
        await aeventually(lambda: not conn.execute("select from kept.job").fetchall(), what="the end of all of them")


async def test_a_lane_that_is_new_is_one_that_its_worker_wants_to_be_woken_for(
    app: App, conn: psycopg.Connection
) -> None:
    @app.task()
    async def note() -> None: ...

    wanted = "select count(*) from kept.sleeper s join kept.lane l on l.id = s.lane where l.queue = %s"
    async with at_work(app):
        await aeventually(lambda: conn.execute(wanted, ["default"]).fetchone() == (1,), what="a worker asleep")
        await (await note.using(queue="fresh").aenqueue()).aresult()
        await aeventually(
            lambda: conn.execute(wanted, ["fresh"]).fetchone() == (1,), timeout=5.0, what="its wish to be woken"
        )


@pytest.mark.slow
async def test_every_retry_on_an_idle_worker_starts_within_100_ms_of_its_time(app: App) -> None:
    ended: list[float] = []
    late: list[float] = []

    @app.task(retry=Retry.fixed("150ms", max_attempts=3, jitter="0s"))
    async def flaky() -> None:
        if ended:
            late.append(monotonic() - ended[-1] - 0.15)
        await asyncio.sleep(0.03)
        ended.append(monotonic())
        raise LookupError("not yet")

    async with at_work(app):
        for _ in range(8):
            ended.clear()
            with pytest.raises(JobFailed):
                await (await flaky.aenqueue()).aresult()
    assert len(late) == 16
    assert -0.005 < min(late) <= max(late) < 0.1


# --- woken, not polling


async def test_a_sleeping_worker_hears_of_a_job_and_of_the_loss_of_its_connection_on_that_very_connection(
    database: str, conn: psycopg.Connection
) -> None:
    app = App(database, settings=Settings(idle_max="10min", idle_jitter="0s"))
    lost: list[Signal] = []

    @app.task()
    async def work() -> int:
        return 7

    app.signals.subscribe(lambda signal: lost.append(signal) if isinstance(signal, ConnectionLost) else None)
    asleep = "select count(*) from kept.sleeper where until > now()"
    async with at_work(app):
        for _ in range(3):
            await aeventually(lambda: conn.execute(asleep).fetchone() != (0,), what="a sleeping worker")
            assert await (await work.aenqueue()).aresult(timeout="20s") == 7
        conn.execute(WORKERS_LOSE_THEIR_CONNECTION)
        await aeventually(lambda: lost, what="the worker noticing that its connection is gone")
        assert await (await work.aenqueue()).aresult(timeout="20s") == 7


@pytest.mark.parametrize(("timeout", "meanwhile"), [("1h", "present"), ("100ms", "next_session")])
async def test_a_job_that_completes_while_its_worker_finds_its_connection_again_is_no_claim_that_was_forgotten(
    database: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, timeout: str, meanwhile: str
) -> None:
    app, began, may_complete, completed = App(database), threading.Event(), threading.Event(), threading.Event()
    fenced: list[Signal] = []
    app.signals.subscribe(lambda signal: fenced.append(signal) if isinstance(signal, WorkerFenced) else None)

    @app.task(timeout=timeout)
    def complete(ctx: Context) -> None:
        began.set()
        assert may_complete.wait(20)
        with psycopg.connect(app.database) as own:
            ctx.complete(own)
        completed.set()

    asked = getattr(Store, meanwhile)

    async def after_it_completed(*args: object) -> object:
        if timeout == "100ms":
            await aeventually(lambda: not worker.running, what="the end of its time")
        may_complete.set()
        assert await asyncio.to_thread(completed.wait, 20)
        return await asked(*args)

    monkeypatch.setattr(Store, meanwhile, after_it_completed)
    async with app, app.worker() as worker:
        job = await complete.aenqueue()
        assert await asyncio.to_thread(began.wait, 20)
        conn.execute(WORKERS_LOSE_THEIR_CONNECTION)
        await job.aresult(timeout="20s")
    assert fenced == []
