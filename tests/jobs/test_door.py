"""The front door in anybody's transaction: jobs exist with the commit, keys hold, and only sleepers are woken."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest

from kept.db.tx import arun, run
from kept.jobs import door
from kept.jobs.door import COPY_FROM
from kept.jobs.model import Close
from kernel import SQL, add, claim, job_row, lane_of, live, record, rows, states, stores
from support import aeventually


def request(**options):
    return door.Request(**{"queue": "mail", "task": "send", "payload": "{}"} | options)


def enqueue(conn, **options):
    return run(conn, door.enqueue(SQL, request(**options)))


def enqueue_many(conn, *requests):
    return run(conn, door.enqueue_many(SQL, requests))


async def settle_all(database, conn):
    async with stores(database) as [store]:
        worker = await live(store, lease=1e6)
        jobs = await claim(store, worker, 100)
        assert await store.settle(worker, [(job, Close("done")) for job in jobs]) == set()


@pytest.fixture
def other(database):
    with psycopg.connect(database) as other:
        yield other


# --- one job


def test_a_job_is_there_if_and_only_if_the_transaction_commits(conn, other):
    with conn.transaction(force_rollback=True):
        enqueue(conn)
        assert len(states(conn)) == 1
        assert states(other) == {}
    assert states(conn) == {}


def test_the_first_enqueue_of_a_task_makes_its_lane(conn):
    ticket = enqueue(conn)
    assert ticket.created
    assert job_row(conn, ticket.id)["lane"] == lane_of(conn)


def test_a_job_takes_its_lanes_priority_unless_it_has_one(conn):
    lane_of(conn)
    conn.execute("update kept.lane set priority = 7")
    for tickets in (
        [enqueue(conn), enqueue(conn, priority=-3)],
        enqueue_many(conn, request(key="a"), request(key="b", priority=-3)),
    ):
        assert [job_row(conn, ticket.id)["priority"] for ticket in tickets] == [7, -3]


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
def test_a_job_of_the_future_is_parked_and_one_of_the_past_is_ready(key, conn):
    past, future = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
    lane_of(conn)
    for n, (options, ready) in enumerate(
        [({}, True), ({"delay": 5.0}, False), ({"due_at": future}, False), ({"due_at": past}, True)]
    ):
        ticket = enqueue(conn, key=key and f"{key}{n}", **options)
        assert job_row(conn, ticket.id)["ready"] is ready
        assert "due_at" not in options or job_row(conn, ticket.id)["due_at"] == options["due_at"]


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
def test_everything_a_request_says_is_stored(key, conn):
    payload = '{"text":"quote \\" back\\\\slash, {brace}, null, é😀 \\\\u0000"}'
    ticket = enqueue(conn, key=key, payload=payload, headers='{"a":"b"}', priority=9)
    stored = conn.execute("select key, priority, headers::text, payload::text from kept.job").fetchone()
    assert stored == (key, 9, '{"a":"b"}', payload)
    found = run(conn, door.find(SQL, ticket.id))
    assert (found.id, found.queue, found.task, found.state, found.key) == (ticket.id, "mail", "send", "pending", key)


def test_enqueuing_nothing_does_nothing(conn):
    assert enqueue_many(conn) == []


def test_tickets_come_in_the_order_of_the_requests_and_so_do_ids(conn):
    requests = [request(task=f"task{n % 7}", key=f"k{n * 37 % 100}" if n % 2 else None) for n in range(100)]
    tickets = enqueue_many(conn, *requests)
    assert [ticket.id for ticket in tickets] == sorted(ticket.id for ticket in tickets)
    for ticket, asked in zip(tickets, requests, strict=True):
        assert job_row(conn, ticket.id)["key"] == asked.key
        assert job_row(conn, ticket.id)["lane"] == lane_of(conn, asked.task)


# --- copied in


def all_kinds():
    """As many requests as it takes to copy them, of every kind that has no key."""
    odd = '{"text":"quote \\" back\\\\slash \\\\N \\\\. tab \\t line\\n, é😀 \\\\u0000"}'
    kinds = [
        {},
        {"payload": odd},
        {"headers": '{"traceparent":"00-\\\\-\\t"}'},
        {"priority": -3},
        {"delay": 90.0},
        {"due_at": datetime(2200, 1, 1, 13, 30, 0, 5, tzinfo=timezone(timedelta(hours=5, minutes=30)))},
        {"due_at": datetime(2000, 1, 1, tzinfo=UTC)},
        {"task": "new"},
        {"queue": "other"},
    ]
    return [request(**kinds[n % len(kinds)]) for n in range(COPY_FROM)]


def stored(conn, tickets):
    """What the table says of each, without what differs from one enqueue to the next."""
    query = (
        "select lane, priority, ready, date_trunc('hour', due_at), key, headers::text, payload::text, retry_of,"
        " attempt, uncharged, suspect, worker, abs(extract(epoch from kept.now() - created_at)) < 60 as new"
        " from kept.job where id = %s"
    )
    return [conn.execute(query, [ticket.id]).fetchone() for ticket in tickets]


def test_jobs_that_are_copied_in_are_the_same_as_those_enqueued_one_by_one(conn):
    lane_of(conn)
    conn.execute("update kept.lane set priority = 7")
    copied = enqueue_many(conn, *all_kinds())
    single = [run(conn, door.enqueue(SQL, each)) for each in all_kinds()]
    assert stored(conn, copied) == stored(conn, single)
    assert None not in stored(conn, copied)
    assert [ticket.id for ticket in copied] == sorted({ticket.id for ticket in copied})
    assert all(ticket.created for ticket in copied)


async def test_async_callers_copy_too_and_their_jobs_go_with_their_transaction(database, conn):
    async with await psycopg.AsyncConnection.connect(database) as caller:
        async with caller.transaction(force_rollback=True):
            await arun(caller, door.enqueue_many(SQL, all_kinds()))
        assert states(conn) == {}
        tickets = await arun(caller, door.enqueue_many(SQL, all_kinds()))
        await caller.commit()
    assert sorted(states(conn)) == [ticket.id for ticket in tickets]


def test_in_a_pipeline_where_nothing_can_be_copied_the_jobs_are_the_same(conn):
    lane_of(conn)
    with conn.pipeline():
        piped = enqueue_many(conn, *all_kinds())
    assert stored(conn, piped) == stored(conn, enqueue_many(conn, *all_kinds()))


async def test_async_callers_get_the_same(database, conn):
    async with await psycopg.AsyncConnection.connect(database) as caller, caller.transaction():
        ticket = await arun(caller, door.enqueue(SQL, request(key="k")))
        [again] = await arun(caller, door.enqueue_many(SQL, [request(key="k")]))
    assert (ticket.created, again) == (True, door.Ticket(ticket.id, False))
    assert list(states(conn)) == [ticket.id]


# --- keys


def test_a_key_gives_back_the_job_that_holds_it(conn):
    first, again, other = enqueue(conn, key="a"), enqueue(conn, key="a"), enqueue(conn, key="b")
    assert first.created
    assert again == door.Ticket(first.id, False)
    assert other.created
    assert len(states(conn)) == 2


def test_a_key_belongs_to_its_lane(conn):
    assert enqueue(conn, key="a").created
    assert enqueue(conn, key="a", task="other").created
    assert enqueue(conn, key="a", queue="bulk").created


def test_the_same_key_twice_in_one_batch_is_one_job(conn):
    held = enqueue(conn, key="held")
    tickets = enqueue_many(
        conn, request(key="a"), request(), request(key="held"), request(key="a"), request(key="held"), request(key="b")
    )
    assert [ticket.created for ticket in tickets] == [True, True, False, False, False, True]
    assert tickets[0].id == tickets[3].id
    assert tickets[2].id == tickets[4].id == held.id
    assert len(states(conn)) == 4


async def test_a_key_is_held_for_its_time_although_its_job_is_done(database, conn, clock):
    first = enqueue(conn, key="a", unique_for=3600.0)
    await settle_all(database, conn)
    clock.advance("3599s")
    assert enqueue(conn, key="a") == door.Ticket(first.id, False)
    clock.advance("2s")
    again = enqueue(conn, key="a")
    assert again.created
    assert again.id != first.id
    assert states(conn) == {first.id: "done", again.id: "pending"}


def test_a_key_is_held_while_its_job_lives_however_long_that_takes(conn, clock):
    first = enqueue(conn, key="a", unique_for=1.0)
    clock.advance("30d")
    assert enqueue(conn, key="a") == door.Ticket(first.id, False)


async def test_a_key_that_was_taken_over_is_held_for_the_new_jobs_time(database, conn, clock):
    enqueue(conn, key="a", unique_for=1.0)
    await settle_all(database, conn)
    clock.advance("2s")
    second = enqueue(conn, key="a", unique_for=1000.0)
    await settle_all(database, conn)
    clock.advance("900s")
    assert enqueue(conn, key="a") == door.Ticket(second.id, False)


def test_a_key_of_a_transaction_that_was_rolled_back_is_free(conn):
    with conn.transaction(force_rollback=True):
        enqueue(conn, key="a")
    assert enqueue(conn, key="a").created


async def waiting(conn, caller):
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    await aeventually(lambda: conn.execute(query, [caller.info.backend_pid]).fetchone()[0])


@pytest.mark.parametrize("unique_for", [86_400.0, 0.0], ids=["for a day", "while it lives"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_two_open_transactions_with_one_key_wait_for_each_other(commits, unique_for, database, conn, other):
    lane_of(conn)
    first = enqueue(other, key="a", unique_for=unique_for)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as caller:
        second = asyncio.create_task(
            arun(caller, door.enqueue_many(SQL, [request(key="a", unique_for=unique_for), request(key="b")]))
        )
        await waiting(conn, caller)
        other.commit() if commits else other.rollback()
        tickets = await second
    assert tickets[0].created is not commits
    assert (tickets[0].id == first.id) is commits
    assert tickets[1].created
    assert len(states(conn)) == 2


async def test_bulk_enqueues_of_the_same_keys_in_any_order_cannot_deadlock(database, conn):
    lane_of(conn)
    keys = [f"k{n}" for n in range(300)]

    async def bulk(caller, ordered):
        return await arun(caller, door.enqueue_many(SQL, [request(key=key) for key in ordered]))

    async with (
        await psycopg.AsyncConnection.connect(database, autocommit=True) as one,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as two,
    ):
        for _ in range(5):
            conn.execute("delete from kept.unique_key")
            conn.execute("delete from kept.job")
            ups, downs = await asyncio.gather(bulk(one, keys), bulk(two, keys[::-1]))
            assert [ticket.id for ticket in ups] == [ticket.id for ticket in downs[::-1]]
            assert len(states(conn)) == 300


async def test_under_repeatable_read_a_conflict_is_a_serialisation_error(database, conn, other):
    lane_of(conn)
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("select 1")
    enqueue(conn, key="a")
    with pytest.raises(psycopg.errors.SerializationFailure):
        enqueue(other, key="a")


# --- outcome, completion, cancel


async def test_a_job_completed_in_the_handlers_own_transaction_is_done_with_it(database, conn, other):
    [id] = add(conn, payload='{"a":1}', key="k")
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker)
    step = {"id": id, "attempt": job.attempt, "worker": worker}
    assert run(other, door.complete(SQL, **step, result='{"n":1}'))
    assert states(conn) == {id: "running"}
    other.rollback()
    assert states(conn) == {id: "running"}
    assert run(other, door.complete(SQL, **step, result='{"n":1}'))
    other.commit()
    assert states(conn) == {id: "done"}
    assert record(conn, id)["payload"] == {"a": 1}
    assert run(conn, door.outcome(SQL, id)) == ("done", None, None, None, '{"n":1}')
    assert not run(other, door.complete(SQL, **step, result=None))


@pytest.mark.parametrize("wrong", ["attempt", "worker"])
async def test_a_completion_under_the_wrong_fence_changes_nothing(wrong, database, conn):
    [id] = add(conn)
    async with stores(database) as [store]:
        worker, other = await live(store), await live(store)
        await claim(store, worker)
    fence = {"attempt": 2 if wrong == "attempt" else 1, "worker": other if wrong == "worker" else worker}
    assert not run(conn, door.complete(SQL, id=id, **fence, result=None))
    assert states(conn) == {id: "running"}


def test_a_live_job_has_no_outcome_and_an_unknown_one_no_record(conn):
    assert run(conn, door.outcome(SQL, enqueue(conn).id)) is None
    assert run(conn, door.find(SQL, 12345)) is None


async def test_only_a_pending_job_is_cancelled(database, conn):
    claimed, waiting_, parked = *add(conn, 2), *add(conn, delay=60.0)
    async with stores(database) as [store]:
        await claim(store, await live(store), 1)
    assert [run(conn, door.cancel(SQL, id)) for id in (claimed, waiting_, parked, 999)] == [
        "running",
        "pending",
        "pending",
        None,
    ]
    assert states(conn) == {claimed: "running", waiting_: "cancelled", parked: "cancelled"}
    assert run(conn, door.cancel(SQL, waiting_)) == "cancelled"


# --- wake-ups


@pytest.fixture
def listener(database):
    """Returns what was heard up to now: a marker of our own says when to stop."""
    with psycopg.connect(database, autocommit=True) as ears, psycopg.connect(database, autocommit=True) as mouth:
        ears.execute('listen "kept:wake"')

        def heard():
            mouth.execute("select pg_notify('kept:wake', 'marker')")
            payloads = []
            for note in ears.notifies(timeout=10):
                if note.payload == "marker":
                    return payloads
                payloads.append(note.payload)
            raise AssertionError("the marker never came")

        yield heard


ways = pytest.mark.parametrize(
    "put",
    [
        enqueue,
        lambda conn, **options: enqueue_many(conn, request(**options), request(**options)),
        lambda conn, **options: enqueue_many(conn, *[request(**options)] * COPY_FROM),
    ],
    ids=["enqueue", "enqueue_many", "copied"],
)


async def sleep(database, lanes, seconds=60.0):
    async with stores(database) as [store]:
        await store.sleep(await live(store), lanes, seconds)


@ways
async def test_nobody_is_woken_while_nobody_sleeps(put, conn, listener):
    lane_of(conn)
    listener()
    put(conn)
    assert listener() == []


@ways
async def test_a_sleeper_of_the_lane_is_woken_once_with_lane_and_priority(put, database, conn, listener):
    lane = lane_of(conn)
    await sleep(database, [lane])
    listener()
    put(conn, priority=4)
    assert listener() == [f"{lane}:4"]


@ways
async def test_only_a_live_sleeper_of_this_very_lane_is_woken(put, database, conn, clock, listener):
    lane, other = lane_of(conn), lane_of(conn, "other")
    await sleep(database, [other])
    await sleep(database, [lane], seconds=5.0)
    clock.advance("5s")
    listener()
    put(conn)
    assert listener() == []


@ways
async def test_a_job_of_the_far_future_wakes_nobody_and_one_due_in_a_moment_does(put, database, conn, listener):
    lane = lane_of(conn)
    await sleep(database, [lane])
    listener()
    put(conn, delay=60.0)
    assert listener() == []
    put(conn, delay=1.0)
    assert listener() == [f"{lane}:0"]


@ways
async def test_nobody_is_woken_for_a_key_that_is_held(put, database, conn, listener):
    lane = lane_of(conn)
    put(conn, key="a")
    await sleep(database, [lane])
    listener()
    put(conn, key="a")
    assert listener() == []


async def test_nobody_is_woken_before_the_commit(database, conn, other, listener):
    lane = lane_of(conn)
    await sleep(database, [lane])
    listener()
    enqueue(other)
    assert listener() == []
    other.commit()
    assert listener() == [f"{lane}:0"]


async def test_a_new_lane_is_announced(conn, listener):
    enqueue(conn)
    assert "lanes" in listener()


async def test_an_awake_worker_is_left_alone(database, conn, listener):
    lane = lane_of(conn)
    async with stores(database) as [store]:
        worker = await live(store)
        await store.sleep(worker, [lane], 60)
        await store.sleep(worker, [lane], 60)
        assert len(rows(conn, "select * from kept.sleeper")) == 1
        await store.awake(worker)
    listener()
    enqueue(conn)
    assert listener() == []


def test_a_key_may_be_taken_over_by_exactly_one_of_many(database, conn, clock):
    """Everybody sees the key expire at once; one of them gets it."""
    first = enqueue(conn, key="a", unique_for=1.0)
    conn.execute("delete from kept.job")
    clock.advance("1h")

    async def everybody():
        callers = [await psycopg.AsyncConnection.connect(database, autocommit=True) for _ in range(8)]
        try:
            return await asyncio.gather(*(arun(each, door.enqueue(SQL, request(key="a"))) for each in callers))
        finally:
            for caller in callers:
                await caller.close()

    tickets = asyncio.run(everybody())
    assert sum(ticket.created for ticket in tickets) == 1
    assert len({ticket.id for ticket in tickets}) == 1
    assert tickets[0].id != first.id
    assert list(states(conn)) == [tickets[0].id]
