"""Schedules that an App declares: two versions during a deploy do not fight, and what nobody declares is retired."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from kept import every
from kept.db.tx import run
from kept.schedules import declared
from kept.schedules.model import Definition
from kept.schedules.rows import digest
from kept.schedules.runner import GRACE
from kernel import row, rows
from support import Clock, eventually
from timetables import SQL, add, declare, definition, edit, fired, firings, look_after, standing

V1, V2 = definition(rule=every("1h")), definition(rule=every("2h"))


def live(conn: psycopg.Connection, *definitions: Definition) -> str:
    """A worker that declares these; its id."""
    id = str(uuid4())
    conn.execute(
        "insert into kept.worker (id, name, host, pid, version, concurrency, started_at, lease_until, state, schedules)"
        " values (%s, 'w', 'h', 1, '0', 1, kept.now(), kept.now() + interval '1 day', 'live', %s)",
        [id, json.dumps({each.name: digest(each) for each in definitions})],
    )
    return id


def gone(conn: psycopg.Connection, id: str) -> None:
    conn.execute("delete from kept.worker where id = %s", [id])


def in_force(conn: psycopg.Connection) -> Definition:
    found = standing(conn).definition
    return next(each for each in (V1, V2) if each.rule == found.rule)


def test_what_is_declared_is_there_and_nothing_is_written_the_second_time(conn) -> None:
    assert declare(conn, V1).added == ["it"]
    before = row(conn, "select xmin::text, * from kept.schedule")
    assert declare(conn, V1) == declared.Synchronised()
    assert row(conn, "select xmin::text, * from kept.schedule") == before


def test_two_versions_do_not_fight_and_the_newer_stands_while_a_worker_declares_it(conn) -> None:
    declare(conn, V1)
    old = live(conn, V1)
    assert declare(conn, V2).changed == ["it"]
    new = live(conn, V2)
    for _ in range(3):
        assert declare(conn, V1) == declare(conn, V2) == declared.Synchronised()
    assert in_force(conn) == V2
    gone(conn, old)
    assert declare(conn, V2) == declared.Synchronised()
    gone(conn, new)


def test_a_rollback_has_the_older_version_in_force_when_the_newer_is_gone(conn, clock: Clock) -> None:
    declare(conn, V1)
    declare(conn, V2)
    new = live(conn, V2)
    clock.advance("11min")
    live(conn, V1)
    assert declare(conn, V1) == declared.Synchronised()
    gone(conn, new)
    assert declare(conn, V1).changed == ["it"]
    assert in_force(conn) == V1
    live(conn, V2)
    assert declare(conn, V2) == declared.Synchronised(), "it was in force before, and what is in force is in use"


def test_a_version_that_was_synchronised_before_its_workers_start_is_not_undone_by_the_older_one(
    conn, clock: Clock
) -> None:
    declare(conn, V1)
    live(conn, V1)
    assert declare(conn, V2, exact=True).changed == ["it"]
    assert declare(conn, V1) == declared.Synchronised(), "workers of the new version may be about to start"
    clock.advance("11min")
    assert declare(conn, V1).changed == ["it"], "nobody came"


def test_an_exact_declaration_is_in_force_whoever_else_declares(conn) -> None:
    declare(conn, V1)
    declare(conn, V2)
    live(conn, V2)
    assert declare(conn, V1, exact=True).changed == ["it"]
    assert in_force(conn) == V1


async def test_a_change_of_the_times_fires_nothing_of_the_past_and_another_change_loses_nothing(
    database, conn, clock: Clock
) -> None:
    declare(conn, V1)
    it = standing(conn)
    clock.advance("90m")
    declare(conn, definition(rule=every("1h"), description="the same times"))
    async with firings(database) as (worker,):
        await worker.fire()
        assert fired(conn) == [it.anchor + every("1h").period]
        conn.execute("delete from kept.job")
        clock.advance("60m")
        declare(conn, V2)
        await worker.fire()
    assert fired(conn) == []


async def test_a_schedule_that_nobody_declares_is_retired_after_a_while_and_revived(database, conn, clock) -> None:
    declare(conn, V1)
    worker_id = live(conn, V1)
    async with firings(database) as (worker,):
        assert await look_after(worker, "test") == []
        gone(conn, worker_id)
        assert await look_after(worker, "test") == []
        clock.advance(f"{int(GRACE) - 60}s")
        assert await look_after(worker, "test") == []
        clock.advance("61s")
        assert await look_after(worker, "test") == ["it"]
        clock.advance("3h")
        assert (await worker.fire()).looked == 0, "retired"
        assert declare(conn, V1).revived == ["it"]
        assert (await worker.fire()).jobs == 1, "what went by is judged by its misfire policy"
    told = [each["what"] for each in rows(conn, "select what from kept.schedule_log order by id")]
    assert told == ["declared", "retired", "declared again"]


async def test_a_worker_that_comes_back_in_time_keeps_its_schedule(database, conn, clock) -> None:
    declare(conn, V1)
    async with firings(database) as (worker,):
        for _ in range(5):
            assert await look_after(worker, "test") == []
            clock.advance(f"{int(GRACE) - 1}s")
            assert declare(conn, V1).revived == []
    assert standing(conn).state == "active"


def test_a_name_that_was_added_at_run_time_stands(conn) -> None:
    add(conn, rule=every("3h"))
    assert declare(conn, V1).taken == ["it"]
    assert standing(conn).definition.rule == every("3h")
    edit(conn, rule=every("4h"))


def test_of_two_workers_that_declare_at_once_both_find_it_declared(database, conn) -> None:
    # The other's insert is not committed yet when we look; then it is.
    with psycopg.connect(database) as first, ThreadPoolExecutor(1) as thread:
        run(first, declared.synchronise(SQL, [V1], who="first"))
        with psycopg.connect(database, autocommit=True) as second:
            waiting = thread.submit(declare, second, V1)
            query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
            eventually(lambda: conn.execute(query, [second.info.backend_pid]).fetchone()[0])
            first.commit()
            assert waiting.result() == declared.Synchronised()


def test_of_two_versions_that_are_declared_at_once_the_later_is_in_force(database, conn) -> None:
    with psycopg.connect(database) as first, ThreadPoolExecutor(1) as thread:
        run(first, declared.synchronise(SQL, [V1], who="first"))
        with psycopg.connect(database, autocommit=True) as second:
            waiting = thread.submit(declare, second, V2)
            query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
            eventually(lambda: conn.execute(query, [second.info.backend_pid]).fetchone()[0])
            first.commit()
            assert waiting.result().changed == ["it"]
    assert in_force(conn) == V2


@pytest.mark.parametrize("at_once", [8])
async def test_many_workers_that_start_together_declare_many_schedules_once(database, conn, at_once: int) -> None:
    many = [definition(f"s{n}", every("1h"), task=f"t{n % 7}") for n in range(20)]

    def start() -> declared.Synchronised:
        with psycopg.connect(database, autocommit=True) as own:
            return declare(own, *many)

    done = await asyncio.gather(*(asyncio.to_thread(start) for _ in range(at_once)))
    assert sorted(name for each in done for name in each.added) == sorted(each.name for each in many)
    assert [each.taken for each in done] == [[]] * at_once
