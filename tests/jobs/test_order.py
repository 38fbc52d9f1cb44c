"""Order per key: one at a time, in the order of ids, whatever fails, dies or is given back; other keys do not wait."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from kept import App, Refused
from kept.db.tx import run
from kept.jobs import door
from kept.jobs.model import Close, Park
from kept.jobs.order import LOOKS
from kept.jobs.rows import OrderWant
from kernel import SQL, add, claim, declare, ids, job_row, live, row, rows, stores
from support import eventually


async def ordered(store, task="send", **numbers):
    return await declare(store, task, ordered=True, **numbers)


async def take(store, worker, lane, *, want=100, reach=100, after="", looks=LOOKS):
    """A claim of one ordered lane."""
    return await store.claim_ordered(worker, 0, [OrderWant(lane, want, want, reach, after)], looks)


async def test_a_claim_takes_keys_from_their_heads_on_without_a_gap(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        a, b = add(conn, 3, order_key="a"), add(conn, 2, order_key="b")
        conn.execute("update kept.job set ready = false, due_at = now() + '1 hour' where id = %s", [a[1]])
        brought = await take(store, await live(store), lane)
        assert ids(brought.claimed) == [a[0], *b]
        assert brought.gaps == {}
        assert [job.order_key for job in brought.claimed] == ["a", "b", "b"]


@pytest.mark.parametrize("state", ["parked", "running", "suspect"])
async def test_a_head_that_cannot_run_blocks_its_key_and_no_other(database, conn, state):
    change = {
        "parked": "ready = false, due_at = now() + '1 hour'",
        "running": "worker = gen_random_uuid(), claimed_at = now(), attempt = 1",
        "suspect": "ready = false, suspect = true",
    }
    async with stores(database) as [store]:
        lane = await ordered(store)
        a, b = add(conn, 3, order_key="a"), add(conn, 2, order_key="b")
        conn.execute(f"update kept.job set {change[state]} where id = %s", [a[0]])
        assert ids((await take(store, await live(store), lane)).claimed) == b


async def test_what_waits_behind_a_blocked_head_keeps_no_worker_from_its_rest(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        jobs = add(conn, 3, order_key="a")
        conn.execute("update kept.job set ready = false, due_at = now() + '1 hour' where id = %s", [jobs[0]])
        survey = await store.survey([lane], bottom=True, most=9)
        assert (survey.ready, survey.promoted) == ({}, {})
        assert survey.due_in == pytest.approx(3600, abs=60)


async def test_nobody_else_gets_a_key_while_one_of_its_jobs_is_in_hand(database, conn):
    async with stores(database, 2) as [one, two]:
        lane = await ordered(one)
        jobs = add(conn, 4, order_key="a")
        worker = await live(one)
        brought = await take(one, worker, lane, want=2)
        assert ids(brought.claimed) == jobs[:2]
        assert (await take(two, await live(two), lane)).claimed == []
        await one.settle(worker, [(brought.claimed[0], Close("done"))])
        assert (await take(two, await live(two), lane)).claimed == []
        await one.settle(worker, [(brought.claimed[1], Close("done"))])
        assert ids((await take(two, await live(two), lane)).claimed) == jobs[2:]


async def test_a_head_that_somebody_locks_is_passed_by_with_all_behind_it(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        a, b = add(conn, 2, order_key="a"), add(conn, 2, order_key="b")
        with psycopg.connect(database) as other:
            other.execute("select from kept.job where id = %s for update", [a[0]])
            assert ids((await take(store, await live(store), lane)).claimed) == b


async def test_a_follower_that_went_while_we_looked_is_told_as_a_gap(database, conn):
    """Between its snapshot and its update a claim may have to wait for a follower, and then find it taken."""
    async with stores(database, 2) as [store, other]:
        lane = await ordered(store)
        jobs = add(conn, 3, order_key="a")
        worker, thief = await live(store), await live(other)
        async with other.link.conn.transaction():
            await other.link.conn.execute(
                "update kept.job set worker = %s, claimed_at = now(), attempt = 1 where id = %s", [thief, jobs[1]]
            )
            claiming = asyncio.create_task(take(store, worker, lane))
            while not row(conn, "select count(*) n from pg_stat_activity where wait_event_type = 'Lock'")["n"]:
                await asyncio.sleep(0.01)
        brought = await claiming
        assert ids(brought.claimed) == [jobs[0], jobs[2]]
        assert brought.gaps == {(lane, "a"): jobs[1]}


async def test_a_claim_goes_on_after_the_key_it_is_told_and_says_how_far_it_looked(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        made = {key: add(conn, 1, order_key=key)[0] for key in "cabde"}
        worker = await live(store)
        brought = await take(store, worker, lane, looks=2)
        assert ids(brought.claimed) == sorted([made["a"], made["b"]])
        assert brought.looked[lane].last == "b"
        brought = await take(store, worker, lane, after="b")
        assert ids(brought.claimed) == sorted(made[key] for key in "cde")
        assert (brought.looked[lane].keys, brought.looked[lane].last) == (3, "e")
        assert (await take(store, worker, lane, after="e")).looked == {}


@pytest.mark.parametrize("state", ["paused", "lost"])
async def test_a_paused_lane_and_a_lost_lease_bring_nothing(database, conn, state):
    async with stores(database) as [store]:
        lane = await ordered(store)
        add(conn, 3, order_key="a")
        worker = await live(store)
        if state == "paused":
            conn.execute("update kept.lane set paused_until = 'infinity'")
        else:
            conn.execute("update kept.worker set lease_until = now() - interval '1 second'")
        assert (await take(store, worker, lane)).claimed == []


async def test_an_ordinary_claim_never_touches_an_ordered_lane(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        add(conn, 3, order_key="a")
        assert await claim(store, await live(store), lanes=[lane]) == []


async def test_a_suspect_is_claimed_only_as_the_head_of_its_key(database, conn, clock):
    async with stores(database) as [store]:
        lane = await ordered(store)
        first, second, other = *add(conn, 2, order_key="a"), *add(conn, 1, order_key="b")
        conn.execute("update kept.job set suspect = true, ready = false where id in (%s, %s)", [second, other])
        worker = await live(store, lease=9e5)
        assert (await store.survey([lane], bottom=True, most=9)).suspect_in <= 0
        assert ids(await store.claim_suspects(worker, 0, [lane], 9)) == [other]
        assert (await store.survey([lane], bottom=True, most=9)).suspect_in is None
        conn.execute("delete from kept.job where id = %s", [first])
        assert (await store.survey([lane], bottom=True, most=9)).suspect_in <= 0
        assert ids(await store.claim_suspects(worker, 0, [lane], 9)) == [second]


async def test_a_job_that_steps_aside_leaves_its_key_to_those_behind_it(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        jobs = add(conn, 3, order_key="a")
        worker = await live(store)
        (head,) = (await take(store, worker, lane, want=1)).claimed
        await store.settle(worker, [(head, Park(3600, charged=True, aside=True))])
        assert job_row(conn, head.id)["order_key"] == f"#{head.id}"
        assert ids((await take(store, worker, lane)).claimed) == jobs[1:]


# --- the door


async def test_in_an_ordered_lane_a_job_without_an_order_key_stands_alone(database, conn):
    async with stores(database) as [store]:
        lane = await ordered(store)
        made = [
            run(conn, door.enqueue(SQL, door.Request(queue="mail", task="send", payload="{}"))).id,
            run(conn, door.enqueue(SQL, door.Request(queue="mail", task="send", payload="{}", delay=0.0, key="k"))).id,
            *add(conn, 60),
            conn.execute("select kept.enqueue('send', queue => 'mail')").fetchone()[0],
        ]
        kept = rows(conn, "select id, order_key from kept.jobs order by id")
        assert [each["order_key"] for each in kept] == [f"#{id}" for id in sorted(made)]
        assert ids((await take(store, await live(store), lane)).claimed) == sorted(made)


def test_elsewhere_nobody_has_an_order_key(database, conn):
    add(conn, 60)
    conn.execute("select kept.enqueue('send')")
    assert row(conn, "select count(order_key) n from kept.job")["n"] == 0


def waits(database, statement):
    """A thread that runs *statement* in a transaction of its own; what it returned, in the end."""
    answer = []

    def work():
        with psycopg.connect(database) as conn:
            answer.append(statement(conn))

    thread = threading.Thread(target=work)
    thread.start()
    return thread, answer


def request(**options):
    return door.Request(queue="mail", task="send", payload="{}", **options)


@pytest.mark.parametrize("by", ["enqueue", "enqueue_many", "sql"])
def test_ids_of_one_key_follow_the_order_of_commits(database, conn, by):
    statements = {
        "enqueue": lambda other: run(other, door.enqueue(SQL, request(order_key="a"))).id,
        "enqueue_many": lambda other: run(other, door.enqueue_many(SQL, [request(order_key=k) for k in "ba"]))[1].id,
        "sql": lambda other: other.execute("select kept.enqueue('send', queue => 'mail', order_key => 'a')").fetchone()[
            0
        ],
    }
    asyncio.run(_declared(database))
    with psycopg.connect(database) as first:
        run(first, door.enqueue(SQL, request(order_key="a")))
        thread, answer = waits(database, statements[by])
        query = "select count(*) = 1 ok from pg_stat_activity where wait_event = 'advisory'"
        eventually(lambda: row(conn, query)["ok"], what="a transaction that waits for the first")
        # Another key, and what has none, do not wait.
        with psycopg.connect(database) as other:
            later = [run(other, door.enqueue(SQL, request(order_key=key))).id for key in ("z", None)]
        last = run(first, door.enqueue(SQL, request(order_key="a"))).id
        assert last > max(later)
    thread.join(10)
    assert answer[0] > last


async def _declared(database):
    async with stores(database) as [store]:
        return await ordered(store)


def test_bulk_enqueues_with_the_same_keys_the_other_way_round_do_not_deadlock(database, conn):
    asyncio.run(_declared(database))
    keys = [f"k{n}" for n in range(100)]
    threads = []
    for turn in range(20):
        shuffled = keys if turn % 2 else keys[::-1]
        threads.append(
            waits(
                database, lambda c, k=shuffled: len(run(c, door.enqueue_many(SQL, [request(order_key=x) for x in k])))
            )
        )
    for thread, _ in threads:
        thread.join(30)
    assert [answer for _, answer in threads] == [[100]] * 20


def test_a_bulk_of_very_many_keys_takes_one_lock_and_still_waits_for_a_single_one(database, conn):
    asyncio.run(_declared(database))
    many = [request(order_key=f"k{n}") for n in range(5000)]
    with psycopg.connect(database) as first:
        run(first, door.enqueue(SQL, request(order_key="k7")))
        thread, answer = waits(database, lambda other: [each.id for each in run(other, door.enqueue_many(SQL, many))])
        query = "select count(*) n from pg_locks where locktype = 'advisory' and not granted"
        eventually(lambda: row(conn, query)["n"], what="a bulk that waits")
        assert row(conn, "select count(*) n from pg_locks where locktype = 'advisory'")["n"] < 10
        last = run(first, door.enqueue(SQL, request(order_key="k7"))).id
    thread.join(30)
    assert min(answer[0]) > last


def test_an_order_key_for_a_task_that_is_not_ordered_is_refused(database, conn):
    app = App(database)

    @app.task()
    def plain() -> None: ...

    @app.task(ordered=True)
    def in_order() -> None: ...

    with pytest.raises(Refused, match="'plain' is not declared as ordered"):
        plain.using(order_key="a")
    for bad in ("", "#7", "x" * 513, "a\0b"):
        with pytest.raises(Refused, match="order_key"):
            in_order.using(order_key=bad)
    with pytest.raises(TypeError, match="order_key"):
        in_order.using(order_key=7)
    with pytest.raises(Refused, match="neither True, False nor 'step_aside'"):
        app.task(name="odd", ordered="sometimes")(lambda: None)


def test_sql_refuses_an_order_key_that_python_would_refuse(database, conn):
    asyncio.run(_declared(database))
    asyncio.run(_plain(database))
    for bad in ("''", "'#7'", "repeat('x', 513)"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="order_key"):
            conn.execute(f"select kept.enqueue('send', queue => 'mail', order_key => {bad})")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="not declared as ordered"):
        conn.execute("select kept.enqueue('plain', queue => 'mail', order_key => 'a')")
    conn.execute("select kept.enqueue('unknown', order_key => 'a')")


async def _plain(database):
    async with stores(database) as [store]:
        return await declare(store, "plain")


async def test_a_lane_that_becomes_ordered_takes_along_what_waits_in_it(database, conn):
    async with stores(database) as [store]:
        await declare(store)
        plain = add(conn, 3)
        keyed = add(conn, 2, order_key="a")  # by a producer that knew first
        lane = await ordered(store)
        assert ids((await take(store, await live(store), lane)).claimed) == [*plain, *keyed]
        (seen,) = [each for each in await store.lanes(None) if each.id == lane]
        assert seen.ordered
    conn.execute("select kept.enqueue('send', queue => 'elsewhere')")
    assert rows(conn, "select ordered from kept.lane order by id") == [{"ordered": True}] * 2
