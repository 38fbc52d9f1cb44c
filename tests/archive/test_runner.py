"""Upkeep purges what is over and nothing that somebody still needs."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest

from kept.archive.partitions import Changes
from kept.archive.runner import Upkeep, upkeep
from support import Clock


def enqueue(conn: psycopg.Connection, key: str, *, unique_for: str = "24 hours") -> int:
    query = "select kept.enqueue('send', key => %s, unique_for => %s::interval)"
    return conn.execute(query, [key, unique_for]).fetchone()[0]


def settle_all(conn: psycopg.Connection) -> None:
    """Jobs leave the live table; what becomes of their records does not matter here."""
    conn.execute("delete from kept.job")


def keys(conn: psycopg.Connection) -> list[str]:
    return [key for (key,) in conn.execute("select key from kept.unique_key order by key")]


def start_worker(conn: psycopg.Connection, state: str) -> UUID:
    worker = uuid4()
    conn.execute(
        """insert into kept.worker (id, name, host, pid, version, concurrency, state, lease_until)
           values (%s, 'w', 'h', 1, '0', 1, %s, kept.now())""",
        [worker, state],
    )
    return worker


def workers(conn: psycopg.Connection) -> set[UUID]:
    return {id for (id,) in conn.execute("select id from kept.worker")}


async def one_pass(database: str, *, batch: int = 1000) -> Upkeep:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        return await upkeep(conn, batch=batch)


async def test_a_second_pass_has_nothing_to_do(database):
    await one_pass(database)
    assert await one_pass(database) == Upkeep(partitions=Changes())


async def test_a_key_is_purged_when_it_has_expired_and_its_job_is_settled(database, conn, clock: Clock):
    enqueue(conn, "a")
    settle_all(conn)
    assert (await one_pass(database)).keys == 0
    clock.advance("24h")
    assert (await one_pass(database)).keys == 1
    assert keys(conn) == []


async def test_a_key_stays_while_its_job_lives_however_long_ago_it_expired(database, conn, clock: Clock):
    enqueue(conn, "a")
    clock.advance("30d")
    assert (await one_pass(database)).keys == 0
    assert keys(conn) == ["a"]


async def test_keys_behind_a_batch_of_live_ones_are_purged_too(database, conn, clock: Clock):
    for number in range(5):
        enqueue(conn, f"settled {number}", unique_for="2 hours")
    settle_all(conn)
    for number in range(5):
        enqueue(conn, f"live {number}", unique_for="1 hour")
    clock.advance("3h")
    assert (await one_pass(database, batch=2)).keys == 5
    assert keys(conn) == [f"live {number}" for number in range(5)]


async def test_keys_that_expire_at_the_same_instant_are_all_purged(database, conn, clock: Clock):
    enqueue(conn, "first")
    settle_all(conn)
    conn.execute(
        """insert into kept.unique_key
           select lane, key || n, job, expires_at from kept.unique_key, generate_series(1, 9) n"""
    )
    clock.advance("25h")
    assert (await one_pass(database, batch=3)).keys == 10
    assert keys(conn) == []


async def test_a_key_that_somebody_is_just_taking_over_is_left_alone(database, conn, clock: Clock):
    enqueue(conn, "a")
    settle_all(conn)
    clock.advance("25h")
    with psycopg.connect(database) as other:
        taken = enqueue(other, "a")
        assert (await one_pass(database)).keys == 0
    assert enqueue(conn, "a") == taken


def mark(conn: psycopg.Connection, consumer: str, *event_ids: str, ttl: str = "1 hour") -> None:
    for event_id in event_ids:
        conn.execute(
            "insert into kept.inbox values (%s, %s, kept.now(), kept.now() + %s::interval)", [consumer, event_id, ttl]
        )


def markers(conn: psycopg.Connection) -> list[str]:
    return [name for (name,) in conn.execute("select consumer || ' ' || event_id from kept.inbox order by 1")]


async def test_markers_of_every_consumer_are_purged_when_they_have_expired(database, conn, clock: Clock):
    for consumer in ("biller", "mailer", "zoo"):
        mark(conn, consumer, "e1", "e2", "e3")
        mark(conn, consumer, "e4", ttl="3 hours")
    assert (await one_pass(database)).markers == 0
    clock.advance("2h")
    assert (await one_pass(database, batch=2)).markers == 9
    assert markers(conn) == ["biller e4", "mailer e4", "zoo e4"]


async def test_markers_that_expire_at_the_same_instant_are_all_purged(database, conn, clock: Clock):
    conn.execute(
        "insert into kept.inbox select 'mailer', n, kept.now(), kept.now() + interval '1 hour' "
        "from generate_series(1, 10) n"
    )
    clock.advance("2h")
    assert (await one_pass(database, batch=3)).markers == 10
    assert markers(conn) == []


async def test_a_marker_in_somebodys_hands_is_neither_purged_nor_waited_for(database, conn, clock: Clock):
    mark(conn, "mailer", "held", "free")
    clock.advance("2h")
    with psycopg.connect(database) as other:
        other.execute("select from kept.inbox where event_id = 'held' for update")
        assert (await one_pass(database)).markers == 1
        assert markers(conn) == ["mailer held"]
    assert (await one_pass(database)).markers == 1


async def test_a_table_that_somebody_has_locked_does_not_stop_a_pass(database, conn, clock: Clock):
    mark(conn, "mailer", "e1")
    clock.advance("2h")
    with psycopg.connect(database) as other:
        other.execute("lock table kept.inbox")
        assert (await one_pass(database)).markers == 0
    assert (await one_pass(database)).markers == 1


@pytest.mark.parametrize("state", ["closed", "lost"])
async def test_a_worker_long_gone_is_purged(database, conn, clock: Clock, state):
    start_worker(conn, state)
    clock.advance("23h")
    assert (await one_pass(database)).workers == 0
    clock.advance("2h")
    assert (await one_pass(database)).workers == 1
    assert workers(conn) == set()


async def test_a_worker_that_a_job_names_stays_and_a_live_one_too(database, conn, clock: Clock):
    named, live, gone = start_worker(conn, "lost"), start_worker(conn, "live"), start_worker(conn, "lost")
    enqueue(conn, "a")
    conn.execute("update kept.job set worker = %s, claimed_at = kept.now(), attempt = 1", [named])
    clock.advance("25h")
    assert (await one_pass(database)).workers == 1
    assert workers(conn) == {named, live} and gone not in workers(conn)


async def test_sleepers_that_never_woke_up_are_purged(database, conn, clock: Clock):
    conn.execute("insert into kept.sleeper values (1, gen_random_uuid(), kept.now())")
    clock.advance("90s")
    conn.execute("insert into kept.sleeper values (2, gen_random_uuid(), kept.now())")
    assert (await one_pass(database)).sleepers == 1
    assert conn.execute("select lane from kept.sleeper").fetchall() == [(2,)]


async def test_a_pass_looks_after_partitions(database, conn, clock: Clock):
    clock.advance("10d")
    done = (await one_pass(database)).partitions
    assert done.made >= 20
    assert done.dropped >= 2


async def test_a_pass_works_in_a_session_set_up_for_claiming(database, conn, clock: Clock):
    start_worker(conn, "lost")
    enqueue(conn, "a")
    settle_all(conn)
    clock.advance("10d")
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as worker:
        await worker.execute(
            "set enable_seqscan = off; set enable_sort = off; set plan_cache_mode = force_generic_plan"
        )
        done = await upkeep(worker)
        assert (done.keys, done.workers) == (1, 1)
        assert (await (await worker.execute("show enable_seqscan")).fetchone()) == ("off",)


# --- events


def emit(conn: psycopg.Connection, key: str | None = None) -> None:
    conn.execute("select kept.emit('a.b', key => %s)", [key])


async def test_keys_of_events_are_purged_when_they_expire_a_batch_at_a_time(database, conn, clock: Clock):
    for number in range(5):
        emit(conn, f"k{number}")
    assert (await one_pass(database)).event_keys == 0
    clock.advance("24h")
    emit(conn, "fresh")
    assert (await one_pass(database, batch=2)).event_keys == 5
    assert conn.execute("select key from kept.event_key").fetchall() == [("fresh",)]


async def test_a_key_of_an_event_that_somebody_is_just_taking_over_is_left_alone(database, conn, clock: Clock):
    emit(conn, "k")
    clock.advance("25h")
    with psycopg.connect(database) as other:
        emit(other, "k")
        assert (await one_pass(database)).event_keys == 0
        other.commit()
    assert conn.execute("select count(*) from kept.event_key").fetchone() == (1,)


async def test_events_are_dropped_when_their_time_is_over_and_not_before(database, conn, clock: Clock):
    emit(conn)
    clock.advance("29d")
    await one_pass(database)
    emit(conn)
    assert conn.execute("select count(*) from kept.event").fetchone() == (2,)
    assert conn.execute("select count(*) from kept.event_default").fetchone() == (0,)
    clock.advance("3d")
    assert (await one_pass(database)).partitions.dropped > 0
    assert conn.execute("select count(*) from kept.event").fetchone() == (1,)


async def test_events_of_a_month_without_upkeep_are_moved_to_their_partitions(database, conn, clock: Clock):
    clock.advance("40d")
    emit(conn)
    assert conn.execute("select count(*) from kept.event_default").fetchone() == (1,)
    await one_pass(database)
    assert conn.execute("select count(*) from kept.event_default").fetchone() == (0,)
    assert conn.execute("select count(*) from kept.event").fetchone() == (1,)
