"""Claim, settle and park on a real PostgreSQL, with two connections wherever two could collide."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from msgspec.structs import replace

from kept.jobs.model import Close, Leave, Note, Park
from kept.jobs.rows import Want
from kernel import add, blocked, claim, declare, ids, job_row, lane_of, live, record, row, rows, states, stores
from support import aeventually

DONE = Close("done")
RETRY = Park(30.0, charged=True, note=Note("failed", "boom", "it broke", "Traceback"))


# --- claim


async def test_a_claim_takes_jobs_by_priority_and_then_in_their_order(database, conn):
    low, high = add(conn, 3), add(conn, 3, priority=5)
    async with stores(database) as [store]:
        worker = await live(store)
        first = await claim(store, worker, 4, priorities=[5, 0])
        assert ids(first) == sorted([*high, low[0]])
        assert ids(await claim(store, worker, 4, priorities=[5, 0])) == low[1:]


async def test_what_is_asked_first_is_served_first_however_small_the_lane_table(database, conn):
    """The order of the wants, not of the lanes' ids, decides who gets the last free slots."""
    lanes = [lane_of(conn, f"task{n}") for n in range(8)]
    first = add(conn, 2, task="task7")
    add(conn, 9, task="task0")
    conn.execute("vacuum analyze")
    async with stores(database) as [store]:
        worker = await live(store)
        assert ids(await claim(store, worker, 2, lanes=lanes[::-1])) == first


async def test_a_claim_hands_out_the_whole_job_under_its_fence(database, conn):
    [id] = add(conn, payload='{"a":1}', headers='{"h":"x"}', key="k", retry_of=99)
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker)
    assert (job.id, job.attempt, job.uncharged, job.charged, job.worker) == (id, 1, 0, 1, worker)
    assert (job.payload, job.headers, job.key, job.retry_of, job.suspect) == ('{"a":1}', '{"h":"x"}', "k", 99, False)
    assert job.due_at == job.created_at <= job.claimed_at
    assert job_row(conn, id)["worker"] == worker
    assert states(conn) == {id: "running"}


async def test_a_claim_brings_no_more_than_wanted_and_no_more_than_most(database, conn):
    one, two = lane_of(conn, "one"), lane_of(conn, "two")
    add(conn, 5, task="one")
    add(conn, 5, task="two")
    async with stores(database) as [store]:
        worker = await live(store)
        stepped = await store.step(worker, 0, [], [Want(one, 0, 3, 0), Want(two, 0, 3, 0)], 5)
        assert [job.lane for job in stepped.claimed].count(one) == 3
        assert [job.lane for job in stepped.claimed].count(two) == 2


async def test_a_claim_does_not_look_below_its_floor(database, conn):
    made = add(conn, 4)
    async with stores(database) as [store]:
        worker = await live(store)
        assert ids(await claim(store, worker, floor=made[2])) == made[2:]


async def test_two_claimers_never_share_a_job(database, conn):
    made = add(conn, 200)
    async with stores(database, 2) as both:
        workers = [await live(store) for store in both]

        async def drain(store, worker):
            found = []
            while jobs := await claim(store, worker, 7):
                found += jobs
            return found

        taken = await asyncio.gather(*map(drain, both, workers))
    assert ids(taken[0] + taken[1]) == made
    assert all(taken)


async def test_a_job_in_a_claim_that_is_not_committed_is_skipped_and_not_waited_for(database, conn):
    made = add(conn, 3)
    async with stores(database, 2) as [one, two]:
        mine, theirs = await live(one), await live(two)
        async with one.link.conn.transaction(force_rollback=True):
            assert ids(await claim(one, mine, 1)) == made[:1]
            assert ids(await claim(two, theirs)) == made[1:]
        assert ids(await claim(two, theirs)) == made[:1]


async def test_rows_locked_by_others_are_skipped_and_not_waited_for(database, conn):
    made = add(conn, 3)
    async with stores(database) as [store]:
        worker = await live(store)
        with conn.transaction():
            conn.execute("select from kept.job where id = %s for update", [made[1]])
            assert ids(await claim(store, worker)) == [made[0], made[2]]


async def test_jobs_of_the_future_are_not_claimed(database, conn):
    add(conn, delay=3600.0)
    async with stores(database) as [store]:
        worker = await live(store)
        assert await claim(store, worker) == []
        assert await store.claim_suspects(worker, 0, [1], 5) == []


async def test_a_paused_lane_is_not_claimed_until_its_pause_is_over(database, conn, clock):
    made = add(conn, 2)
    open_ = add(conn, 1, task="other")
    lanes = [lane_of(conn), lane_of(conn, "other")]
    conn.execute("update kept.lane set paused_until = kept.now() + interval '1 hour' where task = 'send'")
    async with stores(database) as [store]:
        worker = await live(store, lease=100_000)
        assert ids(await claim(store, worker, lanes=lanes)) == open_
        clock.advance("1h")
        assert ids(await claim(store, worker, lanes=lanes)) == made


@pytest.mark.parametrize("ending", ["expired", "lost", "closed", "old session", "unknown"])
async def test_a_claim_needs_a_live_lease_and_the_right_session(ending, database, conn, clock):
    add(conn, 2)
    suspects = add(conn, 2)
    conn.execute("update kept.job set suspect = true, ready = false where id = any(%s)", [suspects])
    async with stores(database) as [store]:
        worker = await live(store, lease=60)
        match ending:
            case "expired":
                clock.advance("60s")
            case "lost":
                await store.lose(worker)
            case "closed":
                await store.close(worker)
            case "old session":
                assert await store.next_session(worker) == 1
            case "unknown":
                conn.execute("delete from kept.worker")
        assert await claim(store, worker) == []
        assert await store.claim_suspects(worker, 0, [1], 5) == []
    assert set(states(conn).values()) == {"pending"}


# --- suspects


async def test_suspects_are_never_in_the_ordinary_claim(database, conn):
    [suspect, other] = add(conn, 2)
    async with stores(database) as [store]:
        worker = await live(store)
        [job, _] = await claim(store, worker)
        await store.settle(worker, [(job, Park(0, charged=True, suspect=True))])
        await store.survey([1], bottom=True, most=100)
        assert await claim(store, worker) == []
        [again] = await store.claim_suspects(worker, 0, [1], 5)
    assert (again.id, again.suspect, again.attempt) == (suspect, True, 2)
    assert other != suspect


async def test_suspects_come_in_the_order_of_their_due_times_and_only_when_due(database, conn, clock):
    made = add(conn, 3)
    async with stores(database) as [store]:
        worker = await live(store, lease=100_000)
        jobs = await claim(store, worker)
        delays = {made[0]: 30.0, made[1]: 10.0, made[2]: 3600.0}
        await store.settle(worker, [(job, Park(delays[job.id], charged=True, suspect=True)) for job in jobs])
        assert await store.claim_suspects(worker, 0, [1], 5) == []
        clock.advance("60s")
        assert [job.id for job in await store.claim_suspects(worker, 0, [1], 1)] == [made[1]]
        assert [job.id for job in await store.claim_suspects(worker, 0, [1], 5)] == [made[0]]


async def test_a_paused_lanes_suspects_wait_too(database, conn):
    add(conn)
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker)
        await store.settle(worker, [(job, Park(0, charged=True, suspect=True))])
        conn.execute("update kept.lane set paused_until = 'infinity'")
        assert await store.claim_suspects(worker, 0, [1], 5) == []
        assert (await store.survey([1], bottom=True, most=5)).suspect_in is None


# --- settle


async def test_a_settled_job_leaves_the_table_and_stands_in_history(database, conn):
    add(conn, payload='{"a":1}', headers='{"h":"x"}', key="k", priority=4, retry_of=12)
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker, priorities=[4])
        note = Note("failed", "boom", "it broke", "Traceback")
        assert await store.settle(worker, [(job, Close("failed", "boom", "fatal", "it broke", note=note))]) == set()
    assert rows(conn, "select * from kept.job") == []
    settled = record(conn, job.id)
    assert settled.pop("settled_at") >= job.claimed_at
    assert settled == {
        "id": job.id,
        "created_at": job.created_at,
        "claimed_at": job.claimed_at,
        "retry_of": 12,
        "worker": worker,
        "lane": job.lane,
        "priority": 4,
        "attempt": 1,
        "uncharged": 0,
        "state": "failed",
        "code": "boom",
        "reason": "fatal",
        "message": "it broke",
        "key": "k",
        "headers": {"h": "x"},
        "payload": {"a": 1},
        "result": None,
    }
    logged = row(conn, "select job, attempt, worker, event, code, message, detail from kept.job_log")
    assert list(logged.values()) == [job.id, 1, worker, "failed", "boom", "it broke", "Traceback"]


async def test_a_plain_success_leaves_no_line_in_the_log(database, conn):
    add(conn)
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker)
        await store.settle(worker, [(job, Close("done", result='{"n":[1,"a\\"b"]}'))])
    assert record(conn, job.id)["result"] == {"n": [1, 'a"b']}
    assert rows(conn, "select * from kept.job_log") == []


async def test_many_settlements_of_all_kinds_keep_their_details_apart(database, conn):
    made = add(conn, 7)
    async with stores(database) as [store]:
        worker = await live(store)
        jobs = sorted(await claim(store, worker), key=lambda job: job.id)
        decided = [
            DONE,
            Close("failed", "boom", "fatal", "it broke", note=Note("failed", "boom")),
            RETRY,
            Close("done", result="[1]"),
            DONE,
            Close("skipped", reason="skipped", message="not wanted"),
            Leave(),
        ]
        assert await store.settle(worker, list(zip(jobs, decided, strict=True))) == set()
    assert list(states(conn).values()).count("done") == 3
    assert states(conn)[made[1]] == "failed"
    assert states(conn)[made[2]] == "pending"
    assert states(conn)[made[6]] == "running"
    assert record(conn, made[3])["result"] == [1]
    assert record(conn, made[0])["result"] is None
    assert record(conn, made[5])["message"] == "not wanted"
    assert [each["job"] for each in rows(conn, "select job from kept.job_log order by job")] == [made[1], made[2]]


@pytest.mark.parametrize("settlement", [DONE, RETRY], ids=["close", "park"])
@pytest.mark.parametrize("part", ["id", "attempt", "worker"])
async def test_every_part_of_the_fence_counts(part, settlement, database, conn):
    [id] = add(conn)
    async with stores(database) as [store]:
        worker, other = await live(store), await live(store)
        [job] = await claim(store, worker)
        sender = other if part == "worker" else worker
        sent = replace(job, **{"id": {"id": 999}, "attempt": {"attempt": 2}, "worker": {}}[part])
        assert await store.settle(sender, [(sent, settlement)]) == {sent.id}
    assert states(conn) == {id: "running"}
    assert rows(conn, "select * from kept.history") == []
    assert rows(conn, "select * from kept.job_log") == []


async def test_a_settlement_sent_twice_counts_once(database, conn):
    add(conn)
    async with stores(database) as [store]:
        worker = await live(store)
        [job] = await claim(store, worker)
        assert await store.settle(worker, [(job, DONE)]) == set()
        assert await store.settle(worker, [(job, DONE)]) == {job.id}
        assert await store.settled_by(worker, [(job.id, job.attempt)]) == {job.id}
        assert await store.settled_by(worker, [(job.id, job.attempt + 1)]) == set()
    assert len(rows(conn, "select * from kept.history")) == 1


async def test_a_late_settlement_of_an_earlier_attempt_changes_nothing(database, conn):
    add(conn)
    async with stores(database) as [store]:
        worker = await live(store)
        [first] = await claim(store, worker)
        await store.settle(worker, [(first, Park(0, charged=True))])
        [second] = await claim(store, worker)
        assert second.attempt == 2
        assert await store.settle(worker, [(first, DONE)]) == {first.id}
        assert await store.settle(worker, [(second, DONE)]) == set()


async def test_a_settlement_that_waited_for_an_earlier_one_still_finds_the_fence(database, conn):
    """The row it waited for has the right id and the right worker again, but another attempt."""
    add(conn)
    async with stores(database, 2) as [one, two]:
        worker = await live(one)
        [first] = await claim(one, worker)
        async with one.link.conn.transaction():
            await one.settle(worker, [(first, Park(0, charged=True))])
            await claim(one, worker)
            late = asyncio.create_task(two.settle(worker, [(first, DONE)]))
            await blocked(conn, two)
        assert await late == {first.id}
    assert states(conn) == {first.id: "running"}


async def test_settling_and_claiming_happen_in_one_statement_or_not_at_all(database, conn):
    made = add(conn, 4)
    async with stores(database) as [store]:
        worker = await live(store)
        jobs = await claim(store, worker, 2)
        stepped = await store.step(worker, 0, [(job, DONE) for job in jobs], [Want(1, 0, 9, 0)], 9)
        assert ids(stepped.claimed) == made[2:]
        with pytest.raises(psycopg.DataError):
            await store.step(worker, 0, [(stepped.claimed[0], Close("done", result="{"))], [Want(1, 0, 9, 0)], 9)
    assert [states(conn)[id] for id in made] == ["done", "done", "running", "running"]


# --- park


async def test_a_retry_comes_back_after_its_delay_and_counts(database, conn, clock):
    [id] = add(conn)
    async with stores(database) as [store]:
        worker = await live(store, lease=100_000)
        [job] = await claim(store, worker)
        await store.settle(worker, [(job, RETRY)])
        parked = job_row(conn, id)
        assert (parked["ready"], parked["worker"], parked["claimed_at"], parked["uncharged"]) == (False, None, None, 0)
        clock.advance("29s")
        assert (await store.survey([1], bottom=False, most=9)).count == 0
        clock.advance("2s")
        assert (await store.survey([1], bottom=False, most=9)).promoted == {(1, 0): id}
        [again] = await claim(store, worker)
        assert (again.attempt, again.charged) == (2, 2)


async def test_a_defer_is_not_charged_and_a_release_is_back_at_once(database, conn):
    deferred, released = add(conn, 2)
    async with stores(database) as [store]:
        worker = await live(store)
        one, two = sorted(await claim(store, worker), key=lambda job: job.id)
        await store.settle(worker, [(one, Park(30, charged=False)), (two, Park(0, charged=False))])
        [again] = await claim(store, worker)
    assert (again.id, again.attempt, again.charged, again.due_at) == (released, 2, 1, two.due_at)
    assert (job_row(conn, deferred)["attempt"], job_row(conn, deferred)["uncharged"]) == (1, 1)


# --- one bad value


@pytest.mark.parametrize(
    "bad",
    [
        Close("failed", "boom", "fatal", "a\0b"),
        Close("failed", "boom", "fatal", "\ud800"),
        Close("done", result="{oops"),
        Close("done", result='{"a":"\0"}'),
        Park(1.0, charged=True, note=Note("failed", "boom", "\0")),
        Park(1e300, charged=True),
        Park(8000 * 366 * 86_400.0, charged=True),
    ],
)
async def test_one_bad_value_does_not_stop_the_others(bad, database, conn):
    made = add(conn, 21)
    async with stores(database) as [store]:
        worker = await live(store)
        jobs = sorted(await claim(store, worker, 21), key=lambda job: job.id)
        decisions = [(job, bad if job.id == made[13] else DONE) for job in jobs]
        assert await store.settle(worker, decisions) == set()
    assert {states(conn)[id] for id in made if id != made[13]} == {"done"}
    offender = record(conn, made[13])
    assert (offender["state"], offender["code"], offender["reason"]) == ("failed", "unrecordable", "fatal")


async def test_even_a_batch_of_bad_values_only_is_settled(database, conn):
    add(conn, 5)
    async with stores(database) as [store]:
        worker = await live(store)
        jobs = await claim(store, worker)
        assert await store.settle(worker, [(job, Close("done", result="{")) for job in jobs]) == set()
    assert set(states(conn).values()) == {"failed"}


# --- after a lost reply


async def test_a_new_session_waits_for_a_claim_in_flight_and_shuts_out_a_late_one(database, conn):
    made = add(conn, 3)
    async with stores(database, 3) as [one, two, keeper]:
        worker = await live(one)
        async with one.link.conn.transaction():
            assert ids(await claim(one, worker, 1)) == made[:1]
            asking = asyncio.create_task(two.next_session(worker))
            await blocked(conn, two)
            assert await keeper.renew(worker, 60)  # a renewal neither waits for a claim nor spoils the question
        assert await asking == 1
        assert ids(await two.adopt(worker, known=[])) == made[:1]
        assert await claim(one, worker, session=0) == []
        assert ids(await claim(two, worker, session=1)) == made[1:]


async def test_a_worker_that_lost_its_lease_gets_no_new_session(database):
    async with stores(database) as [store]:
        worker = await live(store)
        await store.lose(worker)
        assert await store.next_session(worker) is None


async def test_only_jobs_we_never_heard_of_are_adopted(database, conn):
    made = add(conn, 4)
    async with stores(database) as [store]:
        worker, other = await live(store), await live(store)
        await claim(store, other, 1)
        jobs = await claim(store, worker)
        adopted = await store.adopt(worker, known=[made[1]])
        assert ids(adopted) == made[2:]
        assert adopted[0] in jobs


async def test_a_close_waits_for_a_claim_in_flight(database, conn):
    add(conn)
    async with stores(database, 2) as [one, two]:
        worker = await live(one)
        async with one.link.conn.transaction():
            assert await claim(one, worker)
            closing = asyncio.create_task(two.close(worker))
            await blocked(conn, two)
        assert await closing
        assert not await two.close(worker)
        assert await claim(one, worker) == []


# --- completion inside the handler's own transaction


async def test_jobs_a_handler_is_about_to_complete_are_present_but_not_ours_to_touch(database, conn):
    made = add(conn, 2)
    async with stores(database, 2) as [store, other]:
        worker = await live(store)
        await claim(store, worker)
        async with other.link.conn.transaction():
            await other.link.rows("select from kept.job where id = %(id)s for update", {"id": made[0]})
            assert await store.present(worker, made) == set(made)
            assert await store.still_ours(worker, made) == {made[1]}
        assert await store.still_ours(worker, made) == set(made)


# --- leases, lanes, turns


async def test_a_renewed_lease_lasts_and_a_lost_one_is_never_renewed(database, clock, conn):
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        clock.advance("9s")
        assert await store.renew(worker, 10)
        clock.advance("9s")
        assert await store.lose_expired() == {}
        clock.advance("1s")
        assert await store.lose_expired() == {worker: "worker"}
        assert not await store.renew(worker, 10)
        assert not await store.close(worker)


async def test_a_lease_that_ran_out_unnoticed_may_be_renewed(database, clock):
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        clock.advance("1h")
        assert await store.renew(worker, 10)
        assert await store.lose_expired() == {}


async def test_a_lane_that_an_enqueue_makes_at_the_same_moment_is_as_declared_all_the_same(database, conn):
    waiting = "select exists (select from pg_locks where not granted)"
    async with stores(database, 1) as (store,):
        with psycopg.connect(database) as producer:
            producer.execute("select kept.enqueue('send', '{}', 'mail')")
            declaring = asyncio.create_task(declare(store, ordered=True, max_attempts=9))
            await aeventually(lambda: conn.execute(waiting).fetchone()[0], what="a declaration that waits for the lane")
            producer.commit()
        await declaring
    lane = row(conn, "select ordered, max_attempts from kept.lane where task = 'send'")
    assert lane == {"ordered": True, "max_attempts": 9}
    assert row(conn, "select order_key from kept.job")["order_key"] is not None, "without one no claim would see it"


async def test_declaring_a_task_twice_changes_nothing_and_its_other_lanes_follow_its_numbers(database, conn):
    lane_of(conn, queue="bulk")
    async with stores(database) as [store]:
        lane = await declare(store, max_attempts=9, retry_base=0.25)
        [declared] = [each for each in await store.lanes(["mail"]) if each.id == lane]
        assert await store.declare([declared]) == (0, 0)
        lanes = await store.lanes(None)
        assert {(each.queue, each.max_attempts, each.retry_base) for each in lanes} == {
            ("mail", 9, 0.25),
            ("bulk", 9, 0.25),
        }
        assert await store.lanes(["nowhere"]) == []


async def test_a_turn_is_taken_once_per_interval_by_whoever_comes_first(database, clock):
    async with stores(database, 2) as [one, two]:
        assert await one.turn("upkeep", None, 60)
        assert not await two.turn("upkeep", None, 60)
        clock.advance("60s")
        assert await two.turn("upkeep", None, 60)


async def test_a_turn_taken_by_a_clock_that_went_ahead_is_not_waited_for(database, clock):
    async with stores(database) as [store]:
        clock.advance("30d")
        assert await store.turn("upkeep", None, 60)
        clock.set_back("30d")
        assert await store.turn("upkeep", None, 60)
        assert not await store.turn("upkeep", None, 60)


async def test_waiting_tasks_are_those_with_a_job_nobody_has_claimed(database, conn):
    lanes = [lane_of(conn, "idle"), lane_of(conn, "busy"), lane_of(conn, "waiting")]
    add(conn, task="busy")
    add(conn, task="waiting")
    async with stores(database) as [store]:
        await claim(store, await live(store), lanes=[lanes[1]])
        assert await store.waiting_tasks(lanes) == [("mail", "waiting")]
