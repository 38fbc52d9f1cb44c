"""Figures: what is due and who works, in the whole cluster, for little however much waits."""

from __future__ import annotations

import pytest

from kept.signals import Waiting
from kernel import add, claim, declare, lane_of, live, stores

MOST = 10_000


async def figures(database, most=MOST):
    async with stores(database) as (store,):
        return await store.figures(most)


def by_task(found):
    return {lane.task: lane for lane in found.lanes}


async def test_due_jobs_are_counted_by_lane_and_the_oldest_is_told(database, conn, clock):
    add(conn, 2, task="send")
    clock.advance("90s")
    add(conn, task="send")
    add(conn, task="send", queue="slow")
    found = await figures(database)
    lanes = {(lane.queue, lane.task): lane for lane in found.lanes}
    assert lanes["mail", "send"].due == 3
    assert lanes["mail", "send"].oldest == pytest.approx(90, abs=10)
    assert lanes["slow", "send"].due == 1
    assert lanes["slow", "send"].oldest < 10


async def test_what_is_not_due_or_claimed_is_not_counted_and_what_nobody_promoted_is(database, conn, clock):
    async with stores(database) as (store,):
        worker = await live(store)
        add(conn, 3)
        add(conn, 2, delay=60.0)
        assert len(await claim(store, worker, 1)) == 1
        assert by_task(await store.figures(MOST))["send"].due == 2
        clock.advance("61s")
        assert by_task(await store.figures(MOST))["send"].due == 4


async def test_a_suspect_that_is_due_is_counted_until_it_is_claimed(database, conn):
    async with stores(database) as (store,):
        worker = await live(store)
        add(conn)
        conn.execute("update kept.job set ready = false, suspect = true")
        assert by_task(await store.figures(MOST))["send"].due == 1
        assert len(await store.claim_suspects(worker, 0, [lane_of(conn)], 1)) == 1
        assert (await store.figures(MOST)).due == 0


async def test_a_low_priority_that_starves_is_seen_beside_a_full_one(database, conn, clock):
    add(conn, priority=-5)
    clock.advance("1h")
    add(conn, 20, priority=5)
    found = by_task(await figures(database, most=10))["send"]
    assert found.due == 10
    assert found.oldest == pytest.approx(3600, abs=10)


async def test_jobs_of_a_paused_lane_are_counted_and_have_no_age(database, conn, clock):
    add(conn)
    clock.advance("1h")
    conn.execute("update kept.lane set paused_until = kept.now() + interval '1 minute'")
    assert by_task(await figures(database))["send"] == Waiting("mail", "send", 1, None)
    clock.advance("61s")
    assert by_task(await figures(database))["send"].oldest > 3600


async def test_a_declared_lane_is_told_with_nothing_due_and_an_undeclared_one_only_with_something(database, conn):
    lane_of(conn, "typo")
    async with stores(database) as (store,):
        await declare(store, "send")
        assert (await store.figures(MOST)).lanes == [Waiting("mail", "send", 0, None)]
        add(conn, task="typo")
        assert by_task(await store.figures(MOST))["typo"].due == 1


async def test_workers_are_counted_by_whether_their_lease_still_holds(database, conn, clock):
    async with stores(database) as (store,):
        gone, lost = [await live(store, lease=600) for _ in range(2)]
        await live(store, lease=600)
        await live(store, lease=10)
        await store.close(gone)
        await store.lose(lost)
        clock.advance("20s")
        found = await store.figures(MOST)
    assert (found.live, found.expired) == (1, 2)
