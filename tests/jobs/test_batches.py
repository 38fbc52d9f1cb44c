"""Batches: a handler is given several jobs and answers for each; it has a place of its own beside the slots."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from kept import App, Defer, Retry
from kept.config import Settings
from kept.jobs.model import NOTHING, Deferred, Raised, Released, Returned
from kernel import job_row, record, row, rows
from support import aeventually


def batched(app, handler, *, name="publish", batch=50, **changes):
    """Declare *handler* as one that takes batches: nobody can do that from outside yet."""

    @app.task(name=name, retry=Retry(max_attempts=3, delay="1h", jitter="0s"))
    async def task(number: int) -> None: ...

    declaration = dataclasses.replace(app.registry[name], handler=handler, batch=batch, **changes)
    app.registry._declared[name] = app.registry._names[name] = declaration
    return type(task)(app, declaration)


def make(database, handler, **changes):
    app = App(database, settings=Settings(poll_only=True))
    return app, batched(app, handler, **changes)


def numbers(jobs):
    return [int(job.payload.partition(":")[2][:-1]) for job in jobs]


async def fill(app, task, count):
    return [job.id for job in await app.aenqueue_many([task.bind(number) for number in range(count)])]


async def idle(app, conn, left):
    """Let a worker work until all that is left is parked."""
    query = "select count(*) n, count(*) filter (where ready or suspect or worker is not null) r from kept.job"
    async with app, app.worker():
        await aeventually(lambda: row(conn, query) == {"n": left, "r": 0}, what=f"{left} jobs parked", timeout=30)


async def test_a_handler_gets_up_to_a_batch_at_once_and_one_call_at_a_time(database, conn):
    sizes, running, most = [], 0, 0

    async def handler(jobs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        sizes.append(len(jobs))
        await asyncio.sleep(0.001)
        running -= 1
        return [NOTHING] * len(jobs)

    app, task = make(database, handler)
    await fill(app, task, 500)
    await idle(app, conn, 0)
    assert (sum(sizes), max(sizes), most) == (500, 50, 1)
    assert len(sizes) < 40


async def test_each_job_is_settled_by_its_own_outcome(database, conn):
    answers = [
        NOTHING,
        Returned('{"sent":1}'),
        Raised("refused", "no"),
        Raised("fatal", "never", retryable=False),
        Deferred(3600),
    ]

    async def handler(jobs):
        return [answers[number] for number in numbers(jobs)]

    app, task = make(database, handler)
    jobs = await fill(app, task, 5)
    await idle(app, conn, 2)
    assert [record(conn, id)["state"] for id in (jobs[0], jobs[1], jobs[3])] == ["done", "done", "failed"]
    assert record(conn, jobs[1])["result"] == {"sent": 1}
    charged = [job_row(conn, id)["attempt"] - job_row(conn, id)["uncharged"] for id in (jobs[2], jobs[4])]
    assert charged == [1, 0]


@pytest.mark.parametrize("answer", ["raises", "too_few", "no_outcomes", "nothing", "defers"])
async def test_a_handler_that_raises_or_answers_wrongly_does_so_for_every_job(database, conn, answer):
    async def handler(jobs):
        match answer:
            case "raises":
                raise ValueError("no broker")
            case "defers":
                raise Defer("1h")
            case "too_few":
                return [NOTHING]
            case "no_outcomes":
                return ["sent"] * len(jobs)

    app, task = make(database, handler)
    await fill(app, task, 5)
    await idle(app, conn, 5)
    code = {"raises": "value_error", "defers": None}.get(answer, "invalid_outcomes")
    assert [each["code"] for each in rows(conn, "select code from kept.job_log")] == [code] * 5
    assert {each["ready"] for each in rows(conn, "select ready from kept.job")} == {False}


async def test_a_batch_that_takes_too_long_is_stopped_and_every_job_of_it_timed_out(database, conn):
    async def handler(jobs):
        await asyncio.sleep(60)

    app, task = make(database, handler, timeout=0.2)
    await fill(app, task, 5)
    await idle(app, conn, 5)
    assert [each["code"] for each in rows(conn, "select code from kept.job_log")] == ["timeout"] * 5


async def test_a_worker_that_stops_gives_back_the_batch_and_what_waits_behind_it(database, conn):
    began = asyncio.Event()

    async def handler(jobs):
        began.set()
        await asyncio.sleep(60)

    app, task = make(database, handler)
    await fill(app, task, 120)
    async with app:
        worker = app.worker()
        async with worker:
            await asyncio.wait_for(began.wait(), 30)
            await worker.stop("0s")
    assert row(conn, "select count(*) n, count(worker) r, sum(attempt - uncharged) c from kept.job") == {
        "n": 120,
        "r": 0,
        "c": 0,
    }


async def test_a_handler_of_batches_that_hangs_delays_nobody_else(database, conn):
    ran = []
    gate = asyncio.Event()

    async def dead(jobs):
        await gate.wait()
        return [NOTHING] * len(jobs)

    async def alive(jobs):
        ran.extend(numbers(jobs))
        return [NOTHING] * len(jobs)

    app, stuck = make(database, dead)
    app._settings = dataclasses.replace(app.settings, concurrency=1)
    other = batched(app, alive, name="other")

    @app.task()
    async def plain(number: int) -> None:
        ran.append(number)

    for task in (stuck, other, plain):
        await fill(app, task, 300)
    async with app, app.worker():
        await aeventually(lambda: len(ran) == 600, what="all others", timeout=20)
        assert row(conn, "select count(*) n from kept.job j join kept.lane l on l.id = j.lane")["n"] >= 300
        gate.set()
        await aeventually(lambda: not rows(conn, "select from kept.job"), what="an empty table")


async def test_a_batch_of_an_ordered_lane_holds_keys_whole_and_goes_on_behind_what_was_held_back(database, conn):
    calls, failed = [], set()

    async def handler(jobs):
        calls.append([(job.order_key, job.id) for job in jobs])
        outcomes, blocked = [], set()
        for job, number in zip(jobs, numbers(jobs), strict=True):
            if job.order_key in blocked:
                outcomes.append(Released())
            elif number == 15 and job.id not in failed:
                failed.add(job.id)
                blocked.add(job.order_key)
                outcomes.append(Raised("refused", "no", after=0.05))
            else:
                outcomes.append(NOTHING)
        return outcomes

    app, task = make(database, handler, ordered="block")
    for number in range(20):
        await app.aenqueue_many([task.using(order_key=key).bind(number) for key in "abcdefgh"])
    await idle(app, conn, 0)
    assert max(map(len, calls)) <= 50
    assert any(len({key for key, _ in call}) > 1 for call in calls)
    for key in "abcdefgh":
        order = [id for call in calls for k, id in call if k == key]
        firsts = list(dict.fromkeys(order))
        assert firsts == sorted(firsts)
    assert row(conn, "select max(attempt - uncharged) n from kept.history") == {"n": 2}


async def test_a_suspect_of_a_batch_lane_is_given_to_its_handler_alone(database, conn):
    calls = []

    async def handler(jobs):
        calls.append(numbers(jobs))
        return [NOTHING] * len(jobs)

    app, task = make(database, handler)
    jobs = await fill(app, task, 10)
    conn.execute("update kept.job set suspect = true, ready = false where id = %s", [jobs[3]])
    app._made_in = ""  # nobody else could load it: no child process
    await idle(app, conn, 0)
    assert [3] in calls
    assert sorted(number for call in calls for number in call) == list(range(10))
