"""The statements on runners and runs: who gets the pass, and who changes nothing."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from kept.db.tx import run as run_steps
from kept.runners.model import Busy, Ending, Held, Lease, NotDue, Taken
from kept.runners.rules import place_of
from kept.runners.store import fence
from kernel import live
from recurrent import PLACE, pair, runner_row, runs, take

DONE = Ending("done", {"items": 2})


async def test_the_first_asker_gets_the_pass_and_the_second_waits_for_the_interval(database, conn, clock):
    async with pair(database) as ((one, workers), (other, _)):
        await one.declare(PLACE, 60.0, singleton=True)
        first, second = await live(workers), await live(workers, lease=3600)
        taken = await take(one, first)
        assert isinstance(taken, Taken)
        held = await take(other, second)
        assert isinstance(held, Held)
        assert (held.by, held.dead, held.late) == ("worker", False, False)
        assert await one.finish(PLACE, Lease(taken.run, first), DONE) == "ended"
        answer = await take(other, second)
        assert isinstance(answer, NotDue)
        assert 55 < answer.wait <= 60
        clock.advance("61s")
        assert isinstance(await take(other, second), Taken)


async def test_many_who_ask_at_once_get_one_pass(database, conn):
    async with pair(database, 6) as askers:
        await askers[0][0].declare(PLACE, 60.0, singleton=True)
        ids = [await live(workers) for _, workers in askers]
        answers = await asyncio.gather(*(take(store, id) for (store, _), id in zip(askers, ids, strict=True)))
        assert sum(isinstance(answer, Taken) for answer in answers) == 1
        assert len(runs(conn)) == 1


async def test_many_who_ask_for_a_runner_that_is_no_singleton_get_one_pass_in_an_interval(database, conn, clock):
    async with pair(database, 4) as askers:
        await askers[0][0].declare(PLACE, 60.0, singleton=False)
        ids = [await live(workers, lease=3600) for _, workers in askers]

        async def all_ask():
            asked = (take(store, id, singleton=False) for (store, _), id in zip(askers, ids, strict=True))
            return sum(isinstance(answer, Taken) for answer in await asyncio.gather(*asked))

        assert await all_ask() == 1
        clock.advance("60s")
        assert await all_ask() == 1, "the last pass is still open, and that is allowed here"
        assert len(runs(conn)) == 2


async def test_a_worker_without_a_lease_gets_no_pass(database, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers, lease=60)
        clock.advance("2min")
        assert isinstance(await take(store, worker), Busy)


async def test_somebody_who_holds_the_documented_key_is_left_alone(database, conn):
    """As the program does that Kept replaces: its advisory lock and ours exclude each other."""
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        with conn.transaction():
            conn.execute("select pg_advisory_xact_lock(hashtextextended('worker:scheduler:sweep', 0))")
            assert isinstance(await take(store, worker), Busy)
        assert isinstance(await take(store, worker), Taken)


async def test_a_tick_may_be_a_little_early(database, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers, lease=3600)
        taken = await take(store, worker)
        await store.finish(PLACE, Lease(taken.run, worker), DONE)
        clock.advance("53s")
        assert isinstance(await take(store, worker, early=6.0), NotDue)
        clock.advance("2s")
        assert isinstance(await take(store, worker), NotDue)
        assert isinstance(await take(store, worker, early=6.0), Taken)


async def test_a_clock_that_steps_back_gives_no_pass_twice(database, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers, lease=3600)
        taken = await take(store, worker)
        await store.finish(PLACE, Lease(taken.run, worker), DONE)
        clock.set_back("30s")
        assert isinstance(await take(store, worker), NotDue)


async def test_a_pass_of_a_clock_that_went_ahead_holds_nobody_up(database, conn, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        clock.advance("30d")
        worker = await live(workers)
        taken = await take(store, worker)
        await store.finish(PLACE, Lease(taken.run, worker), DONE)
        clock.set_back("30d")
        taken = await take(store, worker)
        assert isinstance(taken, Taken)
        await store.finish(PLACE, Lease(taken.run, worker), DONE)
        answer = await take(store, worker)
        assert isinstance(answer, NotDue)
        assert answer.wait <= 60
        row = runner_row(conn)
        assert row["done_at"] < row["next_at"], "the last success is not one to come"


# --- the dead


async def test_a_dead_workers_run_is_abandoned_and_made_up_for_at_once_but_only_once(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 3600.0, singleton=True)
        for death in (1, 2):
            worker, other = await live(workers, name="mortal"), await live(workers)
            taken = await take(store, worker, every=3600.0)
            if death == 1:
                assert isinstance(taken, Taken)
                await workers.lose(worker)
                held = await take(store, other)
                assert (held.by, held.dead) == ("worker", True)
                (closed,) = await store.abandon()
                assert (closed.id, closed.name) == (taken.run, "sweep")
            else:
                assert isinstance(taken, Taken), "the pass is made up for"
                await workers.lose(worker)
                await store.abandon()
                assert isinstance(await take(store, other), NotDue), "what kills its process waits for the interval"
        assert [(each["state"], each["code"]) for each in runs(conn)] == [("abandoned", "worker_died")] * 2
        assert await store.abandon() == []


async def test_a_holder_whose_lease_is_over_is_held_until_it_is_reclaimed(database, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 10.0, singleton=True)
        worker = await live(workers, lease=60)
        assert isinstance(await take(store, worker, every=10.0), Taken)
        clock.advance("2min")
        other = await live(workers)
        held = await take(store, other, every=10.0)
        assert (held.dead, held.late) == (False, True)
        await workers.lose_expired()
        assert (await take(store, other, every=10.0)).dead
        await store.abandon()
        assert isinstance(await take(store, other, every=10.0), Taken)


async def test_who_lost_its_lease_cannot_finish(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        await workers.lose(worker)
        assert await store.finish(PLACE, lease, DONE) == "lost"
        await store.abandon()
        other = await live(workers)
        assert isinstance(await take(store, other), Taken)
        before = runs(conn), runner_row(conn)
        assert await store.finish(PLACE, lease, DONE) == "lost"
        assert await store.finish(PLACE, lease, Ending("idle")) == "lost"
        assert (runs(conn), runner_row(conn)) == before


# --- the fence


async def test_a_fence_holds_until_the_transaction_ends(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker, other = await live(workers), await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        with psycopg.connect(database) as users:
            assert run_steps(users, fence(store.sql, lease))
            await workers.lose(worker)
            assert await store.abandon() == [], "the user's transaction is still open"
            assert isinstance(await take(store, other), Held)
            users.commit()
        assert len(await store.abandon()) == 1
        with psycopg.connect(database) as users:
            assert not run_steps(users, fence(store.sql, lease))


async def test_a_fence_refuses_who_has_no_lease_although_nobody_took_it(database, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers, lease=60)
        lease = Lease((await take(store, worker)).run, worker)
        clock.advance("61s")
        with psycopg.connect(database) as users:
            assert not run_steps(users, fence(store.sql, lease))


async def test_an_ending_does_not_wait_for_a_transaction_of_the_users(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        with psycopg.connect(database) as users:
            assert run_steps(users, fence(store.sql, lease))
            assert await store.finish(PLACE, lease, DONE) == "busy"
        assert await store.finish(PLACE, lease, DONE) == "ended"


# --- records


async def test_an_idle_pass_leaves_no_record_but_counts_as_a_success(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        assert [each["state"] for each in runs(conn)] == ["running"]
        assert await store.finish(PLACE, lease, Ending("idle")) == "ended"
        assert runs(conn) == []
        row = runner_row(conn)
        assert (row["run"], row["done_at"] is not None) == (None, True)


async def test_a_record_has_no_column_that_nobody_writes(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        await store.finish(PLACE, lease, Ending("failed", {"items": 2}, code="oops", reason="fatal", error="it broke"))
        (run,) = runs(conn)
        assert [name for name, value in run.items() if value is None] == []


async def test_a_pass_that_another_has_overtaken_counts_as_a_success_and_leaves_that_one_open(database, conn, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=False)
        worker = await live(workers, lease=3600)
        first = await take(store, worker, singleton=False)
        clock.advance("61s")
        second = await take(store, worker, singleton=False)
        conn.execute("update kept.runner set deaths = 2")
        assert await store.finish(PLACE, Lease(first.run, worker), DONE) == "ended"
        row = runner_row(conn)
        assert (row["run"], row["deaths"], row["done_at"] is not None) == (second.run, 2, True)
        assert await store.finish(PLACE, Lease(second.run, worker), Ending("failed", code="oops")) == "ended"
        after = runner_row(conn)
        assert (after["run"], after["deaths"], after["done_at"]) == (None, 0, row["done_at"])


async def test_successes_are_of_runners_that_somebody_runs_and_the_longest_ago_comes_first(database, conn, clock):
    async with pair(database, 1) as ((store, workers),):
        worker = await live(workers, lease=1e6)

        async def succeed(row: str) -> float:
            name, _, shard = row.partition("#")
            place = place_of(name, singleton=False, index=int(shard) if shard else None, count=2)
            await store.declare(place, 60.0, singleton=False)
            taken = await take(store, worker, place=place, singleton=False)
            await store.finish(place, Lease(taken.run, worker), DONE)
            clock.advance("61s")
            return runner_row(conn, place.row)["done_at"].timestamp()

        await succeed("gone")
        clock.advance("1h")
        await succeed("part#1")
        part, sweep = await succeed("part#0"), await succeed("sweep")
        await succeed("part#1")
        assert await store.successes(10) == [("part", part), ("sweep", sweep)]
        assert await store.successes(1) == [("part", part)]


async def test_a_failure_may_ask_for_a_longer_wait(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        lease = Lease((await take(store, worker)).run, worker)
        await store.finish(PLACE, lease, Ending("failed", code="http_503", error="later", after=600.0))
        assert (await take(store, worker)).wait > 590
        (run,) = runs(conn)
        assert (run["state"], run["code"], run["error"]) == ("failed", "http_503", "later")
        await store.declare(PLACE, 60.0, singleton=True)
        assert (await take(store, worker)).wait > 590, "declaring it again does not undo that"
        await store.declare(PLACE, 30.0, singleton=True)
        assert (await take(store, worker)).wait <= 30, "a shorter interval holds from now on"


async def test_what_a_lost_reply_began_is_given_back(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        await take(store, worker)
        await store.disown(worker, [])
        assert runs(conn) == []
        known = await take(store, worker)
        assert isinstance(known, Taken)
        await store.disown(worker, [known.run])
        assert [each["id"] for each in runs(conn)] == [known.run]


async def test_old_records_are_purged_in_batches_and_open_ones_stay(database, conn, clock):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 1.0, singleton=False)
        worker = await live(workers, lease=1e6)
        for _ in range(5):
            taken = await take(store, worker, every=1.0, singleton=False)
            await store.finish(PLACE, Lease(taken.run, worker), DONE)
            clock.advance("2s")
        left_open = await take(store, worker, every=1.0, singleton=False)
        clock.advance("1d")
        assert await store.purge(3600.0, batch=2) == 5
        assert [each["id"] for each in runs(conn)] == [left_open.run]


async def test_two_open_runs_of_a_singleton_cannot_be(database, conn):
    async with pair(database, 1) as ((store, workers),):
        await store.declare(PLACE, 60.0, singleton=True)
        worker = await live(workers)
        await take(store, worker)
        conn.execute("update kept.runner set run = null, next_at = kept.now()")  # as if somebody had meddled
        assert not isinstance(await take(store, worker), Taken)
        with pytest.raises(psycopg.errors.UniqueViolation):
            copy = "select name, worker, 'x', true from kept.run"
            conn.execute(f"insert into kept.run (name, worker, worker_name, singleton) {copy}")


async def test_shards_have_intervals_of_their_own(database):
    async with pair(database, 1) as ((store, workers),):
        worker = await live(workers)
        places = [place_of("sweep", singleton=False, index=index, count=2) for index in (0, 1)]
        for place in places:
            await store.declare(place, 60.0, singleton=False)
            assert isinstance(await take(store, worker, place=place, singleton=False), Taken)
            assert isinstance(await take(store, worker, place=place, singleton=False), NotDue)
