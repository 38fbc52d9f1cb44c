"""The survey: promotes what is due and tells a worker what its floors cannot."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kept.jobs.model import Park
from kept.jobs.rows import Survey
from kernel import add, claim, ids, lane_of, live, states, stores


async def test_only_due_jobs_are_promoted(database, conn, clock):
    soon, later = add(conn, delay=10.0), add(conn, delay=20.0)
    async with stores(database) as [store]:
        worker = await live(store, lease=100_000)
        assert (await store.survey([1], bottom=False, most=9)).promoted == {}
        clock.advance("10s")
        seen = await store.survey([1], bottom=False, most=9)
        assert (seen.promoted, seen.count) == ({(1, 0): soon[0]}, 1)
        assert seen.due_in == pytest.approx(10, abs=1)
        assert ids(await claim(store, worker)) == soon
        clock.advance("10s")
        assert (await store.survey([1], bottom=False, most=9)).promoted == {(1, 0): later[0]}


async def test_promotion_stops_at_its_limit_in_each_lane_and_goes_on_next_time(database, conn, clock):
    lanes = [lane_of(conn, "one"), lane_of(conn, "two")]
    add(conn, 5, task="one", delay=1.0)
    add(conn, 2, task="two", delay=1.0)
    clock.advance("1s")
    async with stores(database) as [store]:
        assert [(await store.survey(lanes, bottom=False, most=3)).count for _ in range(3)] == [5, 2, 0]


async def test_the_longest_due_are_promoted_first(database, conn, clock):
    late, early = add(conn, delay=20.0), add(conn, delay=10.0)
    clock.advance("30s")
    async with stores(database) as [store]:
        assert (await store.survey([1], bottom=False, most=1)).promoted == {(1, 0): early[0]}
        assert (await store.survey([1], bottom=False, most=1)).promoted == {(1, 0): late[0]}


async def test_a_promotion_tells_the_lowest_id_of_each_lane_and_priority(database, conn, clock):
    first = add(conn, 3, delay=1.0)
    second = add(conn, 2, delay=1.0, priority=7)
    clock.advance("1s")
    async with stores(database) as [store]:
        seen = await store.survey([1], bottom=False, most=9)
    assert (seen.promoted, seen.count) == ({(1, 0): first[0], (1, 7): second[0]}, 5)


async def test_a_parked_job_in_somebodys_hands_is_skipped_and_not_waited_for(database, conn, clock):
    made = add(conn, 2, delay=1.0)
    clock.advance("1s")
    async with stores(database) as [store]:
        with conn.transaction():
            conn.execute("select from kept.job where id = %s for update", [made[0]])
            assert (await store.survey([1], bottom=False, most=9)).promoted == {(1, 0): made[1]}


async def test_two_surveys_at_once_promote_each_job_once(database, conn, clock):
    add(conn, 4, delay=1.0)
    clock.advance("1s")
    async with stores(database, 2) as [one, two], one.link.conn.transaction():
        assert (await one.survey([1], bottom=False, most=3)).count == 3
        assert (await two.survey([1], bottom=False, most=9)).count == 1


async def test_the_next_due_time_is_the_nearest_of_all_lanes(database, conn):
    lanes = [lane_of(conn, "one"), lane_of(conn, "two")]
    add(conn, task="one", delay=500.0)
    add(conn, task="two", delay=90.0)
    async with stores(database) as [store]:
        assert (await store.survey(lanes, bottom=False, most=9)).due_in == pytest.approx(90, abs=2)
        assert (await store.survey(lanes[:1], bottom=False, most=9)).due_in == pytest.approx(500, abs=2)


async def test_a_lane_of_others_and_a_paused_lane_are_not_looked_at(database, conn, clock):
    mine, theirs = lane_of(conn, "mine"), lane_of(conn, "theirs")
    add(conn, task="theirs", delay=1.0)
    add(conn, task="mine", delay=1.0)
    add(conn, task="mine", priority=3)
    clock.advance("1s")
    conn.execute("update kept.lane set paused_until = 'infinity' where id = %s", [mine])
    async with stores(database) as [store]:
        seen = await store.survey([mine], bottom=True, most=9)
        assert (seen.promoted, seen.ready, seen.due_in) == ({}, {}, None)
        conn.execute("update kept.lane set paused_until = null")
        seen = await store.survey([mine], bottom=True, most=9)
        assert set(seen.promoted) == {(mine, 0)}
        assert set(seen.ready) == {(mine, 3)}
    assert theirs not in {lane for lane, _ in (*seen.promoted, *seen.ready)}


async def test_the_bottom_shows_where_each_priority_begins_below_any_floor(database, conn):
    made = {priority: add(conn, 3, priority=priority) for priority in (-5, 0, 3, 1000)}
    async with stores(database) as [store]:
        worker = await live(store)
        await claim(store, worker, 1, priorities=[3])
        await claim(store, worker, 3, priorities=[-5])
        assert (await store.survey([1], bottom=False, most=9)).ready == {}
        seen = await store.survey([1], bottom=True, most=9)
    assert seen.ready == {(1, 0): made[0][0], (1, 3): made[3][1], (1, 1000): made[1000][0]}


async def test_suspects_are_told_of_and_never_promoted(database, conn, clock):
    made = add(conn, 2)
    async with stores(database) as [store]:
        worker = await live(store, lease=100_000)
        one, two = await claim(store, worker)
        await store.settle(worker, [(job, Park(40.0, charged=True, suspect=True)) for job in (one, two)])
        seen = await store.survey([1], bottom=True, most=9)
        assert seen.suspect_in == pytest.approx(40, abs=2)
        assert (seen.due_in, seen.ready) == (None, {})
        clock.advance("1h")
        seen = await store.survey([1], bottom=True, most=9)
        assert seen.suspect_in < 0
        assert (seen.count, seen.ready) == (0, {})
        await store.claim_suspects(worker, 0, [1], 9)
        assert (await store.survey([1], bottom=True, most=9)).suspect_in is None
    assert set(states(conn)) == set(made)


async def test_an_expired_lease_is_told_of_until_somebody_has_dealt_with_it(database, clock):
    async with stores(database) as [store]:
        worker = await live(store, lease=10)
        closed = await live(store, lease=5)
        await store.close(closed)
        assert not (await store.survey([], bottom=False, most=9)).expired
        clock.advance("10s")
        assert (await store.survey([], bottom=False, most=9)).expired
        await store.lose_expired()
        assert (await store.survey([], bottom=False, most=9)).expired
        await store.sweep([worker])
        assert not (await store.survey([], bottom=False, most=9)).expired


async def test_a_survey_of_nothing_says_so(database, conn):
    async with stores(database) as [store]:
        assert await store.survey([], bottom=True, most=9) == Survey(ready={}, promoted={})
        lane = lane_of(conn)
        assert (await store.survey([], bottom=True, most=9)).newest_lane == lane


async def test_a_worker_learns_its_place_among_live_workers_of_the_same_tasks_and_queues(database, clock):
    async with stores(database) as [store]:
        one = await live(store, lease=1000)
        assert (await store.survey([], bottom=False, most=9, worker=one)).peers == (0, 1)
        two, short = await live(store, lease=1000), await live(store, lease=10)
        gone = await live(store, lease=1000)
        await store.close(gone)
        await register_other(store)
        workers = sorted([one, two, short])
        found = [(await store.survey([], bottom=False, most=9, worker=each)).peers for each in workers]
        assert found == [(0, 3), (1, 3), (2, 3)]
        clock.advance("10s")
        assert (await store.survey([], bottom=False, most=9, worker=max(one, two))).peers == (1, 2)
        assert (await store.survey([], bottom=False, most=9)).peers == (0, 1)


async def register_other(store):
    """Workers with another queue, and with other tasks."""
    about = {"name": "other", "host": "here", "pid": 1, "version": "0", "concurrency": 10, "lease": 1000}
    await store.register(uuid4(), queues=["mail"], declared="{}", **about)
    await store.register(uuid4(), queues=None, declared='{"send": "x"}', **about)
