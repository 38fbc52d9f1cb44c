"""Jobs of the dead come back exactly once, and only the guilty pay for it."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest

from kept.jobs.model import Close, Park
from kept.jobs.reclaim import Reclaimed, hand_back, hand_back_with_word, reclaim_abandoned, reclaim_expired, take_word
from kernel import add, blocked, claim, declare, ids, job_row, lane_of, live, record, row, rows, states, stores
from support import eventually


async def test_a_live_worker_keeps_its_jobs(database, conn):
    add(conn, 3)
    async with stores(database) as [store]:
        await claim(store, await live(store))
        assert await reclaim_expired(store) == []
    assert set(states(conn).values()) == {"running"}


async def test_a_dead_workers_jobs_come_back_charged_and_suspect(database, conn, clock):
    made = add(conn, 3)
    async with stores(database) as [store]:
        dead, alive = await live(store, lease=10, name="dead"), await live(store, lease=100_000)
        await claim(store, dead, 2)
        await claim(store, alive, 1)
        clock.advance("10s")
        [back] = await reclaim_expired(store)
        assert (back.worker, back.name, back.jobs, back.failed) == (dead, "dead", 2, 0)
        assert ids(await store.claim_suspects(alive, 0, [1], 9)) == made[:2]
    assert job_row(conn, made[0])["uncharged"] == 0
    assert job_row(conn, made[2])["worker"] == alive
    logged = rows(conn, "select job, event, worker from kept.job_log order by job")
    assert [(each["job"], each["event"], each["worker"]) for each in logged] == [
        (made[0], "requeued:stale", dead),
        (made[1], "requeued:stale", dead),
    ]


async def test_a_keepers_word_charges_only_what_had_started(database, conn):
    made = add(conn, 4)
    async with stores(database) as [store]:
        dead, alive = await live(store, lease=3600), await live(store)
        await claim(store, dead)
        [back] = await hand_back(store, dead, started=[made[1]])
        assert (back.jobs, back.failed) == (4, 0)
        innocent = await claim(store, alive)
        [suspect] = await store.claim_suspects(alive, 0, [1], 9)
    assert ids(innocent) == [made[0], made[2], made[3]]
    assert {(job.attempt, job.charged) for job in innocent} == {(2, 1)}
    assert (suspect.id, suspect.attempt, suspect.charged) == (made[1], 2, 2)
    assert [each["job"] for each in rows(conn, "select job from kept.job_log")] == [made[1]]


async def test_a_keepers_word_is_left_with_what_it_gave_back_and_told_once(database, conn):
    made = add(conn, 3)
    async with stores(database, 3) as [keeper, one, two]:
        dead = await live(keeper, name="dead")
        await declare(keeper, max_attempts=1)
        await claim(keeper, dead)
        conn.execute("update kept.job set suspect = true, ready = false where id = %s", [made[0]])
        assert not (await one.survey([], bottom=False, most=9)).expired
        async with keeper.link.conn.transaction():
            await hand_back_with_word(keeper, dead, "dead", made[:2], "worker_died")
            assert not (await one.survey([], bottom=False, most=9)).expired
            assert await take_word(one) == []
        assert (await one.survey([], bottom=False, most=9)).expired
        async with one.link.conn.transaction():
            told = await take_word(one)
            assert await take_word(two) == []
        assert sorted(told) == [Reclaimed(dead, "dead", jobs, jobs - 1, "worker_died") for jobs in (1, 2)]
        assert not (await two.survey([], bottom=False, most=9)).expired
        assert await take_word(two) == []
    assert sorted(states(conn).values()) == ["failed", "pending", "pending"]


async def test_what_had_started_is_back_before_the_rest_is_looked_for_and_the_rest_stays_uncharged(database, conn):
    made = add(conn, 3)
    async with stores(database, 2) as [keeper, other]:
        dead, alive = await live(keeper, lease=100_000), await live(other, lease=100_000)
        await claim(keeper, dead)
        with conn.transaction():
            conn.execute("select from kept.worker where id = %s for update", [dead])  # holds up the second half
            giving = asyncio.create_task(hand_back_with_word(keeper, dead, "dead", made[:1], "worker_died"))
            await blocked(conn, keeper)
            assert ids(await other.claim_suspects(alive, 0, [1], 9)) == made[:1]
            assert await reclaim_expired(other) == []
        await giving
    rest = rows(
        conn, "select id, attempt - uncharged as charged, suspect from kept.job where worker is null order by id"
    )
    assert [(each["id"], each["charged"], each["suspect"]) for each in rest] == [(id, 0, False) for id in made[1:]]


async def test_a_keeper_that_came_second_or_was_undone_leaves_no_word(database, conn, clock):
    add(conn, 2)
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        await claim(store, worker)
        async with store.link.conn.transaction(force_rollback=True):
            await hand_back_with_word(store, worker, "dead", [], "worker_died")
        assert await take_word(store) == []
        clock.advance("10s")
        [back] = await reclaim_expired(store)
        assert (back.jobs, back.reason) == (2, "expired")
        await hand_back_with_word(store, worker, "dead", [], "worker_died")
        assert await take_word(store) == []


async def test_handing_back_twice_or_after_a_reclaim_does_nothing(database, conn, clock):
    add(conn, 2)
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        await claim(store, worker)
        assert len(await hand_back(store, worker, started=[])) == 1
        assert await hand_back(store, worker, started=[]) == []
        clock.advance("10s")
        assert await reclaim_expired(store) == []
    assert {each["uncharged"] for each in rows(conn, "select uncharged from kept.job")} == {1}


async def test_a_suspect_that_used_up_its_attempts_fails_as_worker_died(database, conn, clock):
    async with stores(database) as [store]:
        lane = await declare(store, max_attempts=3, retry_base=10.0, retry_max=15.0)
        [id] = add(conn)
        delays = []
        for attempt in (1, 2, 3):
            worker = await live(store, lease=60)
            taken = await claim(store, worker, lanes=[lane]) or await store.claim_suspects(worker, 0, [lane], 1)
            assert [job.attempt for job in taken] == [attempt]
            clock.advance("60s")
            [back] = await reclaim_expired(store)
            assert (back.jobs, back.failed) == (1, attempt == 3)
            if attempt < 3:
                delays.append(row(conn, "select extract(epoch from due_at - kept.now()) s from kept.job")["s"])
                clock.advance("60s")
    assert delays[0] <= 0
    assert float(delays[1]) == pytest.approx(15, abs=1)  # the lane's own backoff: 10 s doubled, at most 15
    ended = record(conn, id)
    assert (ended["state"], ended["code"], ended["reason"]) == ("failed", "worker_died", "worker_died")
    assert ended["attempt"] - ended["uncharged"] == 3
    events = [each["event"] for each in rows(conn, "select event from kept.job_log order by attempt")]
    assert events == ["requeued:stale", "requeued:stale", "failed"]


async def test_one_poison_job_among_many_is_the_only_one_that_fails(database, conn):
    made = add(conn, 50)
    poison = made[17]
    async with stores(database) as [store]:
        lane = await declare(store, max_attempts=2, retry_base=0.0, retry_max=0.0)
        for _ in range(20):
            worker = await live(store)
            jobs = sorted(await claim(store, worker, 50, lanes=[lane]), key=lambda job: job.id)
            alone = [] if jobs else await store.claim_suspects(worker, 0, [lane], 1)
            started = [job.id for job in jobs or alone]
            if poison in started:
                await hand_back(store, worker, started=started[: started.index(poison) + 1][-10:])
                continue
            await store.settle(worker, [(job, Close("done")) for job in jobs or alone])
            if not started:
                break
    assert {id: state for id, state in states(conn).items() if state != "done"} == {poison: "failed"}
    assert record(conn, poison)["reason"] == "worker_died"


async def test_a_settlement_in_flight_keeps_its_job_from_a_reclaim(database, conn, clock):
    made = add(conn, 2)
    async with stores(database, 2) as [holder, reclaimer]:
        worker = await live(holder, lease=10)
        jobs = sorted(await claim(holder, worker), key=lambda job: job.id)
        clock.advance("10s")
        async with holder.link.conn.transaction():
            assert await holder.settle(worker, [(jobs[0], Close("done"))]) == set()
            [back] = await reclaim_expired(reclaimer)
            assert back.jobs == 1
            assert row(conn, "select state from kept.worker")["state"] == "lost"
        assert states(conn) == {made[0]: "done", made[1]: "pending"}
        [back] = await reclaim_expired(reclaimer)
        assert back.jobs == 0
    assert row(conn, "select state from kept.worker")["state"] == "swept"


async def test_a_settlement_that_was_rolled_back_is_reclaimed_the_next_time(database, conn, clock):
    [id] = add(conn)
    async with stores(database, 2) as [holder, reclaimer]:
        worker = await live(holder, lease=10)
        [job] = await claim(holder, worker)
        clock.advance("10s")
        async with holder.link.conn.transaction(force_rollback=True):
            await holder.settle(worker, [(job, Close("done"))])
            await reclaim_expired(reclaimer)
        [back] = await reclaim_expired(reclaimer)
        assert back.jobs == 1
    assert job_row(conn, id)["suspect"]


async def test_a_settlement_that_comes_after_a_reclaim_changes_nothing(database, conn, clock):
    [id] = add(conn)
    async with stores(database, 2) as [holder, reclaimer]:
        worker = await live(holder, lease=10)
        [job] = await claim(holder, worker)
        clock.advance("10s")
        async with reclaimer.link.conn.transaction():
            await reclaim_expired(reclaimer)
            late = asyncio.create_task(holder.settle(worker, [(job, Close("done"))]))
            await blocked(conn, holder)
        assert await late == {id}
    assert states(conn) == {id: "pending"}
    assert rows(conn, "select * from kept.history") == []


async def test_a_claim_that_meets_a_reclaim_claims_nothing(database, conn, clock):
    """Without the lease check inside the claim, its jobs would be stranded in the name of the dead."""
    made = add(conn, 3)
    async with stores(database, 2) as [late, reclaimer]:
        worker = await live(late, lease=10)
        async with reclaimer.link.conn.transaction():
            clock.advance("10s")
            await reclaimer.lose_expired()
            clock.set_back("10s")  # the claim was sent while the lease was alive
            claiming = asyncio.create_task(claim(late, worker))
            await blocked(conn, late)
        assert await claiming == []
    assert states(conn) == dict.fromkeys(made, "pending")


async def test_a_worker_in_the_middle_of_a_claim_is_not_taken_for_dead(database, conn, clock):
    add(conn)
    async with stores(database, 2) as [holder, reclaimer]:
        worker = await live(holder, lease=10)
        async with holder.link.conn.transaction():
            await claim(holder, worker)
            clock.advance("10s")
            assert await reclaim_expired(reclaimer) == []
        assert len(await reclaim_expired(reclaimer)) == 1


async def test_two_reclaimers_do_not_take_the_same_worker(database, conn, clock):
    add(conn, 5)
    async with stores(database, 2) as [one, two]:
        worker = await live(one, lease=10)
        await claim(one, worker)
        clock.advance("10s")
        async with one.link.conn.transaction():
            assert len(await reclaim_expired(one)) == 1
            assert await reclaim_expired(two) == []
        assert await reclaim_expired(two) == []
    assert {each["attempt"] for each in rows(conn, "select attempt from kept.job")} == {1}
    assert len(rows(conn, "select * from kept.job_log")) == 5


async def test_many_dead_workers_are_swept_in_one_go_and_those_with_jobs_stay_lost(database, conn, clock):
    made = add(conn, 6)
    async with stores(database, 2) as [store, other]:
        dead = [await live(store, lease=10) for _ in range(6)]
        for worker in dead:
            await claim(store, worker, 1)
        clock.advance("10s")
        async with other.link.conn.transaction():
            await other.link.rows("select from kept.job where id = %(id)s for update", {"id": made[2]})
            assert sum(back.jobs for back in await reclaim_expired(store)) == 5
            kept = {each["id"]: each["state"] for each in rows(conn, "select id, state from kept.worker")}
            assert kept == {worker: "lost" if worker == dead[2] else "swept" for worker in dead}
        assert [back.jobs for back in await reclaim_expired(store)] == [1]


async def test_jobs_of_a_worker_nobody_knows_are_found_by_the_net_below_the_net(database, conn):
    add(conn, 3)
    async with stores(database) as [store]:
        unknown, closed, alive = uuid4(), await live(store), await live(store)
        conn.execute(
            "insert into kept.worker (id, name, host, pid, version, concurrency, lease_until)"
            " values (%s, 'gone', 'h', 1, '0', 1, kept.now() + interval '1 hour')",
            [unknown],
        )
        for worker in (unknown, closed, alive):
            await claim(store, worker, 1)
        conn.execute("delete from kept.worker where id = %s", [unknown])
        await store.close(closed)
        back = await reclaim_abandoned(store)
        assert {each.worker: each.jobs for each in back} == {unknown: 1, closed: 1}
        assert await reclaim_abandoned(store) == []


async def test_a_lane_with_absurd_numbers_does_not_keep_others_from_being_reclaimed(database, conn, clock):
    add(conn, task="odd")
    add(conn, task="fine")
    lanes = [lane_of(conn, "odd"), lane_of(conn, "fine")]
    conn.execute("update kept.lane set retry_base = '900 years', retry_max = '-1 day' where id = %s", [lanes[0]])
    async with stores(database) as [store]:
        for _ in range(2):
            worker = await live(store, lease=10)
            await claim(store, worker, lanes=lanes)
            await store.claim_suspects(worker, 0, lanes, 9)
            clock.advance("10s")
            [back] = await reclaim_expired(store)
            assert back.jobs == 2


async def test_a_reclaim_wakes_those_who_can_take_over(database, conn):
    heard = []
    add(conn, 2, priority=4)
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute('listen "kept:wake"')
        async with stores(database) as [store]:
            worker = await live(store)
            [one, _] = await claim(store, worker, priorities=[4])
            await hand_back(store, worker, started=[one.id])

        def listen():
            heard.extend(each.payload for each in listener.notifies(timeout=0.05))
            return sorted(heard) == ["1:4", "suspects"]

        assert eventually(listen)


async def test_what_was_parked_stays_parked_when_its_last_worker_dies(database, conn, clock):
    [id] = add(conn)
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        [job] = await claim(store, worker)
        await store.settle(worker, [(job, Park(3600, charged=True))])
        clock.advance("10s")
        [back] = await reclaim_expired(store)
        assert back.jobs == 0
    assert not job_row(conn, id)["suspect"]
