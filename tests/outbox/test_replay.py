"""Replay: exactly the events a subscription was not told of, in order, throttled, once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kept import App, Event
from kept.db.tx import run
from kept.outbox import log
from kept.outbox.log import Replay
from support import eventually


async def heard(event: Event) -> None:
    """A handler."""


@pytest.fixture
def late(app: App, sync, conn) -> App:
    """Events of two types; then somebody subscribes to one of them, and one more of it comes."""
    app.emit_many([Event(type=f"a.{'bc'[n % 2]}", data={"n": n}) for n in range(10)])
    app.on("a.b", name="one")(heard)
    sync(app)
    app.emit("a.b", {"n": 10})
    conn.execute("delete from kept.job")
    return app


def replay(app: App, conn: psycopg.Connection, **wanted: Any) -> tuple[int, int]:
    """How many events that would be, and how many it was."""
    sql, which = app.outbox_sql, Replay(**wanted)
    to = run(conn, log.find_subscription(sql, "one"))
    count, newest = run(conn, log.count_replay(sql, to, which))
    told, last = 0, 0
    while True:
        with conn.transaction():
            batch, end = run(conn, log.replay_batch(sql, to, which, after=last, upto=newest, done=told))
        if end is None:
            return count, told
        told, last = told + batch, end


def numbers(ask) -> list[int]:
    return ask("select (payload->'data'->>'n')::int from kept.job order by id")


def test_it_brings_exactly_what_was_missed_in_order_and_once(late, conn, ask, monkeypatch):
    monkeypatch.setattr(log, "BATCH", 2)
    assert replay(late, conn) == (5, 5)
    assert numbers(ask) == [0, 2, 4, 6, 8]
    assert replay(late, conn) == (0, 0)


def test_again_brings_all(late, conn, ask):
    assert replay(late, conn, again=True) == (6, 6)
    assert replay(late, conn, again=True) == (6, 6)
    assert numbers(ask) == [0, 2, 4, 6, 8, 10] * 2
    assert ask("select max(cardinality(subscriptions)) from kept.event") == [1]


def test_the_job_is_as_if_it_had_been_told_at_once(late, conn, ask, drain):
    replay(late, conn)
    ids = ask("select id::text from kept.event where type = 'a.b' order by seq")[:5]
    assert ask("select payload->>'event_id' from kept.job order by id") == ids
    assert [job.state for job in drain(late)] == ["done"] * 5


def test_by_id_by_type_and_by_time(late, conn, ask, clock):
    ids = [UUID(id) for id in ask("select id::text from kept.event order by seq")]
    assert replay(late, conn, ids=(ids[2], ids[3])) == (1, 1), "ids[3] is of a type it does not want"
    assert replay(late, conn, pattern="a.c") == (0, 0)
    assert replay(late, conn, pattern="a.*", ids=(ids[4],)) == (1, 1)
    now = ask("select kept.now()")[0]
    assert replay(late, conn, since=now) == (0, 0)
    assert replay(late, conn, until=now) == (3, 3)


def test_a_rate_spreads_the_due_times(late, conn, ask, monkeypatch):
    monkeypatch.setattr(log, "BATCH", 2)
    replay(late, conn, rate=0.5)
    seconds = (
        "select round(extract(epoch from due_at - first_value(due_at) over (order by id))) from kept.job order by id"
    )
    assert [int(each) for each in ask(seconds)] == [0, 2, 4, 6, 8]
    assert ask("select ready from kept.job order by id") == [True, False, False, False, False]


def test_two_at_once_tell_nobody_twice(late, database, conn, ask, monkeypatch):
    monkeypatch.setattr(log, "BATCH", 2)
    start = threading.Barrier(2)

    def go() -> int:
        with psycopg.connect(database, autocommit=True) as own:
            start.wait()
            return replay(late, own)[1]

    with ThreadPoolExecutor() as pool:
        told = [each.result() for each in [pool.submit(go), pool.submit(go)]]
    assert sum(told) == 5
    assert sorted(numbers(ask)) == [0, 2, 4, 6, 8]


def test_events_emitted_meanwhile_are_left_to_the_subscription(late, conn, ask):
    sql = late.outbox_sql
    to = run(conn, log.find_subscription(sql, "one"))
    _, newest = run(conn, log.count_replay(sql, to, Replay(again=True)))
    late.emit("a.b", {"n": 11})
    told, _ = run(conn, log.replay_batch(sql, to, Replay(again=True), after=0, upto=newest, done=0))
    assert told == 6


def test_a_replay_over_a_large_log_reads_it_by_its_index(late, conn):
    conn.execute(
        """insert into kept.event (id, recorded_at, occurred_at, version, type, data, subscriptions)
           select gen_random_uuid(), kept.now(), kept.now(), 1, 'a.c', '{}', '{}' from generate_series(1, 20000);
           insert into kept.event (id, recorded_at, occurred_at, version, type, data, subscriptions)
           select gen_random_uuid(), kept.now(), kept.now(), 1, 'a.b', '{}', '{}' from generate_series(1, 2000);
           analyze kept.event"""
    )
    conn.execute("set statement_timeout = '20s'")
    assert replay(late, conn) == (2005, 2005)


def test_a_replay_waits_for_who_emits_for_the_same_aggregate(database, app, sync, conn, ask):
    """Else its job could get the lower id, be committed later, and run beside the other."""
    about = {"aggregate_type": "invoice", "aggregate_id": "7"}
    app.emit("a.b", **about)

    app.on("a.b", name="tell", ordered=True)(heard)
    sync(app)
    to = run(conn, log.find_subscription(app.outbox_sql, "tell"))
    with psycopg.connect(database) as other, ThreadPoolExecutor() as pool:
        app.emit("a.b", tx=other, **about)

        def replay() -> None:
            with psycopg.connect(database) as mine:
                run(mine, log.replay_batch(app.outbox_sql, to, Replay(), after=0, upto=1, done=0))

        replaying = pool.submit(replay)
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        eventually(lambda: conn.execute(waits).fetchone()[0], what="the replay to wait")
        other.commit()
        replaying.result(10)
    replayed, emitted = ask("select id::text from kept.event order by seq")
    assert ask("select payload->>'event_id' from kept.job order by id") == [emitted, replayed]
