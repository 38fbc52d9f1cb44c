"""What a hostile reviewer once broke, and must not break again."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from fleet import KEPT, Fleet, Jobs, Member
from kept import App, Context, Defer, Refused, Retry
from kept.config import Settings
from kept.signals import ConnectionLost, ConnectionRestored, JobsReclaimed, LeaseRenewed, RunnerFailed, Signal
from proxy import Proxy, proxy_before
from support import Clock, aeventually, eventually

pytestmark = pytest.mark.acceptance

S = TypeVar("S", bound=Signal)
QUICKLY = Retry.fixed("100ms", max_attempts=3, jitter="0s")
ONCE = Retry(max_attempts=1)


FULL_DISK = """
create function public.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'could not extend file' using errcode = 'disk_full'; end $$;
create trigger full_disk before insert on kept.history for each row execute function public.refuse();
"""


def app_of(database: str, **settings: Any) -> App:
    """An App that no other process can find: nothing at the top of a module names it."""
    return App(database, settings=Settings(**{"grace": "1s", **settings}))


def heard(app: App, kind: type[S]) -> list[S]:
    """What the App reports from now on, of this kind."""
    found: list[S] = []
    app.signals.subscribe(lambda signal: found.append(signal) if isinstance(signal, kind) else None)
    return found


def enqueue_suspect(jobs: Jobs, task: str) -> int:
    """A job whose process died once."""
    with jobs.conn.transaction():
        job = jobs.enqueue(task)
        jobs.conn.execute("update kept.job set suspect = true, ready = false where id = %s", [job])
    return job


async def all_in(jobs: Jobs, state: str, ids: list[int], timeout: float = 10) -> None:
    """Wait until every one of *ids* is in *state*."""
    count = "select count(*) from kept.jobs where id = any(%s) and state = %s"
    await aeventually(lambda: jobs.value(count, ids, state) == len(ids), timeout, what=f"{len(ids)} jobs {state}")


# --- moments nobody can read


@pytest.mark.parametrize("moment", ["0044-03-15 BC", "0001-06-01", "10000-01-01", "infinity", "-infinity"])
def test_a_due_time_that_workers_cannot_read_is_refused_by_sql(conn: psycopg.Connection, moment: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="due_at"):
        conn.execute("select kept.enqueue('note', due_at => %s::timestamptz)", [moment])
    conn.execute("select kept.enqueue('note')")
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("update kept.job set due_at = %s::timestamptz", [moment])


@pytest.mark.parametrize("year", [1, 9999])
async def test_a_due_time_that_workers_cannot_read_is_refused_by_python(database: str, year: int) -> None:
    app = app_of(database)

    @app.task()
    async def note() -> None: ...

    async with app:
        with pytest.raises(Refused, match="due_at"):
            await note.using(due_at=datetime(year, 1, 1, tzinfo=UTC)).aenqueue()


@pytest.mark.parametrize("moment", ["0044-03-15 BC", "0001-06-01", "10000-01-01", "infinity", "-infinity"])
def test_a_creation_time_that_workers_cannot_read_gets_into_no_job(conn: psycopg.Connection, moment: str) -> None:
    conn.execute("select kept.enqueue('note')")
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("update kept.job set created_at = %s::timestamptz", [moment])
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            "insert into kept.job (lane, priority, ready, due_at, created_at, payload)"
            " values (1, 0, true, kept.now(), %s::timestamptz, '{}')",
            [moment],
        )


@pytest.mark.parametrize("year", [1, 9998, 9999])
async def test_a_defer_to_a_moment_nobody_can_read_says_so_and_harms_no_other_job(
    database: str, jobs: Jobs, year: int
) -> None:
    app = app_of(database)
    failures = heard(app, RunnerFailed)

    @app.task(retry=ONCE)
    async def far() -> None:
        raise Defer(datetime(year, 6, 1, tzinfo=UTC))

    @app.task()
    async def note() -> None: ...

    async with app.worker():
        ids = [jobs.enqueue("far"), jobs.enqueue("note")]
        await all_in(jobs, "done", ids[1:])
        await all_in(jobs, "failed", ids[:1])
    ended = jobs.one(ids[0])
    assert (ended["code"], ended["reason"]) == ("invalid_defer", "exhausted")
    assert f"the year {year} is not between" in ended["message"]
    assert not failures


# --- handlers that end more than themselves

EXITS = """
import asyncio, sys
from errands import QUICKLY, Context, app, write

@app.task(retry=QUICKLY)
async def exits(ctx: Context) -> None:
    write(ctx, "start")
    async def leave() -> None:
        sys.exit(3)
    task = asyncio.create_task(leave())
    await asyncio.Event().wait()
"""


def test_a_handler_whose_subtask_calls_sys_exit_is_charged_for_the_processes_it_ends(fleet: Fleet, jobs: Jobs) -> None:
    (fleet.folder / "leaving.py").write_text(EXITS)
    job = jobs.enqueue("exits")
    start(fleet, "leaving:app", "--processes", "2")  # with somebody who starts them again
    ended = jobs.settled(job, "failed")
    assert (ended["attempt"], ended["charged"]) == (3, 3)
    assert len(fleet.effects("start", job)) == 3


def test_a_job_that_ended_and_was_not_settled_when_its_process_died_is_charged(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start()
    jobs.conn.execute(FULL_DISK)
    job = jobs.enqueue("note")
    fleet.sees("end", job)
    worker.says("connection_lost")
    worker.kill()
    eventually(lambda: jobs.state(job) == "pending", what="the job given back by the keeper")
    found = jobs.one(job)
    assert (found["charged"], found["suspect"], jobs.log(job)) == (1, True, ["requeued:stale"])


def start(fleet: Fleet, location: str, *options: str) -> Member:
    """A member of the fleet that runs another App than the usual one."""
    log = fleet.folder / "other.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [KEPT, "worker", location, *options], cwd=fleet.folder, env=fleet.environment(), stderr=stderr
        )
    member = Member(process, log, fleet.mark)
    fleet.members.append(member)
    return member


async def test_a_worker_whose_tasks_somebody_cancelled_still_stops_and_gives_back(database: str, jobs: Jobs) -> None:
    app = app_of(database)
    started = asyncio.Event()

    @app.task()
    async def hold() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = app.worker(concurrency=1)
    async with worker:
        jobs.enqueue_many("hold", 3)
        await started.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait_for(worker.stop("100ms"), 15)
    assert jobs.states() == {"pending": 3}
    assert jobs.value("select state from kept.worker") == "closed"


# --- outages


@contextlib.contextmanager
def away(server: str, conn: psycopg.Connection) -> Iterator[None]:
    """The database lets no worker in; *conn* stays."""
    name = Identifier(conn.info.dbname)
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(SQL("alter database {} allow_connections false").format(name))
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and application_name ~ '^kept '",
            [conn.info.dbname],
        )
        yield
        admin.execute(SQL("alter database {} allow_connections true").format(name))


async def test_an_outage_longer_than_the_lease_charges_nobody(server: str, database: str, jobs: Jobs) -> None:
    app = app_of(database, lease="1s", renew="250ms", reclaim_scan="10ms")
    started, cancelled = [], []
    gate = asyncio.Event()

    @app.task(retry=ONCE)
    async def hold(ctx: Context) -> None:
        started.append(ctx.job.id)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append(ctx.job.id)
            raise

    async with app.worker():
        ids = jobs.enqueue_many("hold", 8)
        await aeventually(lambda: len(started) == 8, what="the start of all")
        await asyncio.to_thread(jobs.renewed)
        with away(server, jobs.conn):
            await aeventually(lambda: len(cancelled) == 8, what="the end of the lease")
        await aeventually(lambda: len(started) == 16, 20, what="all of them at once, so none is a suspect")
        gate.set()
        await all_in(jobs, "done", ids)
    assert {(job["attempt"], job["charged"]) for job in map(jobs.one, ids)} == {(2, 1)}
    assert not jobs.value("select count(*) from kept.job_log where event = 'requeued:stale'")


async def cut_off(proxy: Proxy) -> None:
    """Break every connection and let nobody in until told."""
    proxy.lose_answer_to(lambda _: True)
    assert await asyncio.to_thread(proxy.lost.wait, 10)
    proxy.cut()


async def test_whoever_comes_back_first_after_an_outage_does_not_take_the_others_for_dead(
    database: str, jobs: Jobs
) -> None:
    gate = asyncio.Event()
    started = []

    def other_app(database: str, queue: str) -> App:
        app = app_of(database, queues=(queue,), renew="250ms", reclaim_scan="10ms")

        @app.task(name=f"hold_{queue}", queue=queue, retry=ONCE)
        async def hold(ctx: Context) -> None:
            started.append(ctx.job.id)
            await gate.wait()

        @app.task(name=f"note_{queue}", queue=queue)
        async def note() -> None: ...

        return app

    with proxy_before(database) as here, proxy_before(database) as there:
        quick, slow = other_app(here.url, "quick"), other_app(there.url, "slow")
        back = [heard(app, ConnectionRestored) for app in (quick, slow)]
        reclaimed = heard(quick, JobsReclaimed)
        async with quick.worker(), slow.worker():
            ids = [jobs.enqueue(f"hold_{queue}") for queue in ("quick", "slow", "slow")]
            await aeventually(lambda: len(started) == 3, what="the start of all")
            await cut_off(here)
            await cut_off(there)
            jobs.conn.execute("update kept.worker set lease_until = kept.now() where queues = '{slow}'")
            here.admit()
            await aeventually(lambda: back[0], what="the quick one")
            for delay in (0.5, 0):  # the first proves that it looked around, the second that it went on after that
                await all_in(jobs, "done", [jobs.enqueue("note_quick", delay=delay)])
            there.admit()
            await aeventually(lambda: back[1], 20, what="the slow one")
            gate.set()
            await all_in(jobs, "done", ids)
    assert {job["attempt"] for job in map(jobs.one, ids)} == {1}
    assert not reclaimed


async def test_a_server_that_refuses_every_statement_is_asked_less_and_less_often(database: str, jobs: Jobs) -> None:
    app = app_of(database)
    lost = heard(app, ConnectionLost)

    @app.task()
    async def note() -> None: ...

    async with app.worker():
        jobs.conn.execute(FULL_DISK)
        job = jobs.enqueue("note")
        await aeventually(lambda: len(lost) >= 5, 20, what="five refusals")
        delays = [each.delay for each in lost[:5]]
        assert all(delay >= 0.05 * 2**tries for tries, delay in enumerate(delays)), delays
        jobs.conn.execute("drop trigger full_disk on kept.history")
        await all_in(jobs, "done", [job])
    assert jobs.one(job)["attempt"] == 1


# --- locks that somebody holds


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_left_open_after_complete_stalls_nobody(database: str, jobs: Jobs, commits: bool) -> None:
    app = app_of(database)
    gate = threading.Event()

    @app.task(timeout="300ms", retry=QUICKLY)
    def holds(ctx: Context) -> None:
        with psycopg.connect(database) as tx:
            ctx.complete(tx)
            gate.wait(60)
            if not commits and ctx.attempt == 1:
                tx.rollback()

    @app.task()
    async def note() -> None: ...

    async with app.worker():
        job = jobs.enqueue("holds")
        try:
            await aeventually(lambda: holds_a_transaction(jobs), what="the open transaction")
            first = monotonic()
            await all_in(jobs, "done", jobs.enqueue_many("note", 20), 5)
            while monotonic() < first + 1:  # it has run out of time by then
                await all_in(jobs, "done", jobs.enqueue_many("note", 20), 5)
            assert holds_a_transaction(jobs)
            assert jobs.state(job) == "running"
        finally:
            gate.set()
        await all_in(jobs, "done", [job])
    assert jobs.one(job)["attempt"] == (1 if commits else 2)
    assert jobs.log(job) == ([] if commits else ["failed"])
    assert jobs.value("select count(*) from kept.history where id = %s", job) == 1


def holds_a_transaction(jobs: Jobs) -> int:
    found = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
    return int(jobs.value(found))


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_worker_stops_in_time_while_somebody_locks_the_table(database: str, jobs: Jobs, hurried: bool) -> None:
    app = app_of(database)

    @app.task()
    async def note() -> None: ...

    with psycopg.connect(database) as locker:
        worker = app.worker()
        async with worker:
            await all_in(jobs, "done", [jobs.enqueue("note")])
            locker.execute("lock table kept.job in access exclusive mode")
            await aeventually(lambda: waits_for_a_lock(jobs, "kept worker"), what="a worker that waits")
            began = monotonic()
            stopping = asyncio.create_task(worker.stop("1h" if hurried else "1s"))
            if hurried:
                await aeventually(worker.not_ready)
                worker.hurry()
            await asyncio.wait([stopping], timeout=15)
            took = monotonic() - began
            locker.rollback()
            await stopping
    assert took < (5 if hurried else 15)
    # Closed; or, if a claim was cut off that may have taken effect, given back by its keeper.
    await aeventually(lambda: jobs.value("select state from kept.worker") in ("closed", "swept"), what="its end")


async def test_a_worker_with_a_job_in_hand_stops_in_time_while_somebody_locks_the_table(
    database: str, jobs: Jobs
) -> None:
    app = app_of(database)
    began = asyncio.Event()

    @app.task()
    async def hold() -> None:
        began.set()
        await asyncio.Event().wait()

    with psycopg.connect(database) as locker:
        worker = app.worker()
        async with worker:
            job = jobs.enqueue("hold")
            await began.wait()
            locker.execute("lock table kept.job in access exclusive mode")
            stopping = asyncio.create_task(worker.stop("1s"))
            _, late = await asyncio.wait([stopping], timeout=25)  # an orchestrator gives us 30 s
            locker.rollback()
            await stopping
    assert not late
    await aeventually(lambda: jobs.state(job) == "pending", what="the job given back by the keeper")


def waits_for_a_lock(jobs: Jobs, name: str) -> int:
    found = """select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock' and application_name ^@ %s"""
    return int(jobs.value(found, name))


def test_a_key_whose_holder_is_not_committed_yet_is_held_even_if_its_time_is_over(database: str, jobs: Jobs) -> None:
    take = "select kept.enqueue('note', key => 'k', unique_for => '0 seconds')"
    jobs.conn.execute("select kept.enqueue('note')")  # so that the lane is there
    with (
        ThreadPoolExecutor(1) as thread,
        psycopg.connect(database) as first,
        psycopg.connect(database, application_name="second") as second,
    ):
        held = first.execute(take).fetchone()
        waiting = thread.submit(lambda: second.execute(take).fetchone())
        eventually(lambda: waits_for_a_lock(jobs, "second"), what="the second to wait for the first")
        first.commit()
        assert waiting.result(10) == held
    assert jobs.value("select count(*) from kept.job where key = 'k'") == 1


# --- suspects where there is no child to run them


async def test_a_suspect_that_must_wait_for_a_slow_job_costs_no_storm_of_questions(database: str, jobs: Jobs) -> None:
    gate, started = asyncio.Event(), asyncio.Event()
    asked = 0

    def counted(_: bytes) -> bool:
        nonlocal asked
        asked += 1
        return False  # count it, and lose nothing

    with proxy_before(database) as proxy:
        app = app_of(proxy.url, lease="5s", renew="250ms")
        renewed = heard(app, LeaseRenewed)

        @app.task()
        async def slow() -> None:
            started.set()
            await gate.wait()

        @app.task()
        async def note() -> None: ...

        async with app.worker():
            ids = [jobs.enqueue("slow")]
            await started.wait()
            ids += [enqueue_suspect(jobs, "note"), jobs.enqueue("note")]
            await aeventually(lambda: len(renewed) >= 4, what="a second in which it may notice the suspect")
            proxy.lose_answer_to(counted)
            await aeventually(lambda: len(renewed) >= 12, what="two seconds more")
            assert asked < 80
            gate.set()
            await all_in(jobs, "done", ids)


async def test_a_suspect_that_does_not_listen_does_not_stop_its_worker_for_ever(database: str, jobs: Jobs) -> None:
    app = app_of(database)
    gate = asyncio.Event()

    @app.task(timeout="300ms", retry=ONCE)
    async def deaf() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    @app.task()
    async def note() -> None: ...

    async with app.worker():
        suspect = enqueue_suspect(jobs, "deaf")
        await all_in(jobs, "running", [suspect])
        note_id = jobs.enqueue("note")
        await all_in(jobs, "failed", [suspect])
        await all_in(jobs, "done", [note_id])
        assert not gate.is_set(), "the handler still runs"
        gate.set()
    assert jobs.one(suspect)["code"] == "timeout"


CHILD = """
from kept import App
app = App()
@app.task()
async def note() -> None: ...
"""


async def test_a_suspect_whose_child_cannot_be_started_waits_uncharged(
    database: str, jobs: Jobs, clock: Clock, tmp_path: Path
) -> None:
    module = tmp_path / "guarded.py"
    module.write_text("raise RuntimeError('no licence server reachable')")
    app = app_of(database)

    @app.task(retry=ONCE)
    async def note() -> None: ...

    app.configure(app.settings, f"{module}:app")
    async with app.worker():
        job = enqueue_suspect(jobs, "note")
        await aeventually(lambda: jobs.log(job), what="an entry in its log")
        found = jobs.one(job)
        assert (found["state"], found["charged"], found["suspect"]) == ("pending", 0, True)
        assert jobs.log(job) == ["deferred"]
        assert "no licence server reachable" in jobs.value("select message from kept.job_log where job = %s", job)
        module.write_text(CHILD)
        clock.advance("40s")
        await all_in(jobs, "done", [job])
    assert jobs.one(job)["charged"] == 1
