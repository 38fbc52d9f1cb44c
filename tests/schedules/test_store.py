"""One firing for each slot, by whichever worker: statements on a real database, between which anything may happen."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import psycopg
import pytest

import planted
from kept import cron, every
from kept.db import migrate
from kept.db.connect import Link
from kept.db.tx import run
from kept.errors import NotFound, Refused
from kept.schedules import catalogue
from kept.schedules.rows import standing_of
from kept.schedules.rules import decide
from kept.schedules.runner import Firing, fire_params
from kept.signals import Signals, Warned
from kernel import lane_of, row, rows
from support import Clock, aeventually
from timetables import SQL, add, declare, definition, edit, fired, firings, look_after, recorded, standing

HOUR = timedelta(hours=1)


async def decisions(firing: Firing) -> dict[str, object]:
    """What a worker would have the database do about all that is due: the first half of firing."""
    found = await firing.link.rows(SQL["due"], {"most": 100, "without": "{}", "odd": "{}", "odd_revisions": "{}"})
    standings = [standing_of(each) for each in found]
    return fire_params([(it, decide(it, now)) for it, now in standings])


async def carry_out(firing: Firing, decided: dict[str, object]) -> int:
    """The second half; how many schedules were moved by it."""
    answer = await firing.link.rows(SQL["fire"], decided)
    return next(each[2] for each in answer if each[0] is None)


# --- two at once


async def test_of_two_workers_that_decided_on_the_same_slot_one_fires_it(database: str, conn, clock: Clock) -> None:
    it = add(conn)
    clock.advance("1h")
    async with firings(database, 2) as (one, other):
        decided = [await decisions(one), await decisions(other)]
        moved = [await carry_out(one, decided[0]), await carry_out(other, decided[1])]
    assert moved == [1, 0]
    assert fired(conn) == [it.anchor + HOUR]


async def test_of_two_workers_that_fire_at_the_same_moment_one_does(database: str, conn, clock: Clock) -> None:
    it = add(conn)
    async with firings(database, 4) as workers:
        for _ in range(10):
            clock.advance("1h")
            done = await asyncio.gather(*(worker.fire() for worker in workers))
            assert sum(each.decided for each in done) == sum(each.jobs for each in done) == 1
            conn.execute("delete from kept.occurrence")
            conn.execute("update kept.job set headers = headers")
    assert fired(conn) == [it.anchor + n * HOUR for n in range(1, 11)]


@pytest.mark.parametrize("what", ["edit", "pause", "retire", "remove", "remove and add", "resume"])
async def test_a_decision_counts_for_nothing_if_its_schedule_was_changed(database, conn, clock, what) -> None:
    add(conn)
    clock.advance("1h")
    async with firings(database) as (worker,):
        decided = await decisions(worker)
        match what:
            case "edit":
                edit(conn, rule=every("2h"))
            case "pause":
                run(conn, catalogue.pause(SQL, "it", who="test"))
            case "retire":
                conn.execute("update kept.schedule set retired_at = kept.now(), revision = revision + 1")
            case "resume":
                run(conn, catalogue.pause(SQL, "it", who="test"))
                run(conn, catalogue.resume(SQL, "it", who="test"))
            case _:
                run(conn, catalogue.remove(SQL, "it", who="test"))
        if what == "remove and add":
            add(conn)
        assert await carry_out(worker, decided) == 0
    assert fired(conn) == recorded(conn) == []


async def test_a_schedule_that_somebody_is_changing_is_passed_by_and_the_others_fire(database, conn, clock) -> None:
    add(conn, "held")
    add(conn, "free")
    clock.advance("1h")
    with psycopg.connect(database) as editor:
        editor.execute("select from kept.schedule where name = 'held' for update")
        async with firings(database) as (worker,):
            assert (await worker.fire()).decided == 1
            editor.rollback()
            assert (await worker.fire()).decided == 1
    assert len(fired(conn)) == 2


async def test_a_note_that_nobody_declares_it_does_not_cost_a_slot(database, conn, clock) -> None:
    # That note changes the row and not its revision, between the decision and its firing.
    declare(conn, definition())
    clock.advance("1h")
    async with firings(database, 2) as (worker, other):
        decided = await decisions(worker)
        assert await look_after(other, "test") == []
        assert await carry_out(worker, decided) == 1
    assert len(fired(conn)) == 1
    assert row(conn, "select undeclared_at from kept.schedule")["undeclared_at"] is not None


async def test_a_slot_up_to_the_last_one_fires_no_more_whoever_decides_on_it(database, conn, clock) -> None:
    add(conn)
    clock.advance("1h")
    async with firings(database) as (worker,):
        decided = await decisions(worker)
        assert await carry_out(worker, decided) == 1
        conn.execute("delete from kept.occurrence")
        conn.execute("delete from kept.job")
        current = row(conn, "select revision from kept.schedule")["revision"]
        await carry_out(worker, decided | {"revisions": f"{{{current}}}"})
    assert fired(conn) == recorded(conn) == []


# --- death between statements


@pytest.mark.parametrize("statement", ["due", "fire"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_around_a_statement_costs_no_slot(database, conn, clock, statement, when) -> None:
    it = add(conn)
    clock.advance("1h")
    link = await Link.open(database)
    ask = link.rows

    async def dying(query, params=None):
        at_last = query == SQL[statement]
        if at_last and when == "before":
            conn.execute("select pg_terminate_backend(%s)", [link.conn.info.backend_pid])
        found = await ask(query, params)
        if at_last:
            conn.execute("select pg_terminate_backend(%s)", [link.conn.info.backend_pid])
            raise psycopg.OperationalError("its reply was lost")
        return found

    link.rows = dying
    with pytest.raises(psycopg.OperationalError):
        await Firing(link, Signals()).fire()
    await link.close()
    async with firings(database) as (other,):
        fresh = await other.fire()
    assert fresh.jobs == (0 if (statement, when) == ("fire", "after") else 1)
    assert fired(conn) == [it.anchor + HOUR]


# --- the database's clock


async def test_what_was_purged_does_not_fire_again_when_the_clock_is_set_back(database, conn, clock) -> None:
    it = add(conn)
    async with firings(database) as (worker,):
        for _ in range(3):
            clock.advance("1h")
            await worker.fire()
            conn.execute("delete from kept.job")
            await look_after(worker, "test")
        clock.advance("40d")
        await worker.fire()
        await worker.purge(30 * 86400.0)
        assert [each["slot"] for each in recorded(conn)] == [it.anchor + 963 * HOUR]
        conn.execute("delete from kept.job")
        clock.set_back("40d")
        clock.set_back("2h")
        for _ in range(5):
            clock.advance("1h")
            assert (await worker.fire()).looked == 0
    assert fired(conn) == []


async def test_a_clock_that_steps_back_an_hour_and_forward_a_month_fires_nothing_twice(database, conn, clock) -> None:
    it = add(conn, rule=every("10m"), overlap="allow")
    steps = [timedelta(minutes=10)] * 3 + [-HOUR] + [timedelta(minutes=10)] * 8 + [timedelta(days=30)]
    async with firings(database) as (worker,):
        for step in steps:
            clock._shift(step)
            await worker.fire()
    minutes = [(at - it.anchor) // timedelta(minutes=1) for at in fired(conn)]
    assert minutes == [10, 20, 30, 40, 50, 30 * 24 * 60 + 50]
    assert recorded(conn)[-1]["missed"] == 100, "more are not counted"


async def test_pausing_leaves_out_what_went_by_even_if_the_clock_was_set_back_before(database, conn, clock) -> None:
    it = add(conn, overlap="allow")
    async with firings(database) as (worker,):
        clock.advance("2h")
        await worker.fire()
        clock.set_back("90m")
        run(conn, catalogue.pause(SQL, "it", who="test"))
        run(conn, catalogue.resume(SQL, "it", who="test"))
        assert standing(conn).last_slot == it.anchor + 2 * HOUR
        run(conn, catalogue.pause(SQL, "it", who="test"))
        clock.advance("5h")
        await worker.fire()
        run(conn, catalogue.resume(SQL, "it", who="test"))
        await worker.fire()
        assert fired(conn) == [it.anchor + 2 * HOUR]
        clock.advance("1h")
        await worker.fire()
    assert fired(conn) == [it.anchor + 2 * HOUR, it.anchor + 6 * HOUR]


# --- in line


async def test_a_slot_that_waits_fires_when_the_job_before_it_ends(database, conn, clock) -> None:
    it = add(conn, overlap="queue")
    async with firings(database) as (worker,):
        for _ in range(3):
            clock.advance("1h")
            await worker.fire()
        assert [each["state"] for each in recorded(conn)] == ["fired", "queued", "skipped"]
        conn.execute("delete from kept.job")
        clock.advance("1s")
        assert (await worker.fire()).jobs == 1
    assert fired(conn) == [it.anchor + 2 * HOUR]
    assert [each["state"] for each in recorded(conn)] == ["fired", "fired", "skipped"]


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_a_slot_that_waits_is_settled_by_an_edit_of_the_overlap(database, conn, clock, overlap) -> None:
    add(conn, overlap="queue")
    async with firings(database) as (worker,):
        for _ in range(2):
            clock.advance("1h")
            await worker.fire()
        edit(conn, overlap=overlap)
        await worker.fire()
        assert (await worker.fire()).looked == 0, "there is nothing to look at before the next slot"
    assert [each["state"] for each in recorded(conn)] == ["fired", "fired" if overlap == "allow" else "skipped"]
    assert standing(conn).queued_slot is None


# --- what became of jobs


async def test_what_became_of_jobs_is_copied_once_whoever_looks(database, conn, clock) -> None:
    add(conn, overlap="allow", misfire="all", most=6)
    async with firings(database, 3) as workers:
        clock.advance("6h")
        await workers[0].fire()
        jobs = [each["job"] for each in recorded(conn)]
        for job, state in zip(jobs, ["done", "failed", "skipped", "cancelled"], strict=False):
            planted.settle(conn, job, state, code="boom" if state == "failed" else None, result={"sent": 3})
        conn.execute("delete from kept.job where id = %s", [jobs[4]])
        await asyncio.gather(*(look_after(worker, "test") for worker in workers))
    found = {each["job"]: each for each in recorded(conn)}
    assert [found[job]["outcome"] for job in jobs] == ["done", "failed", "skipped", "cancelled", "unknown", None]
    assert found[jobs[1]]["code"] == "boom"
    assert found[jobs[0]]["counters"] == {"sent": 3}


async def test_a_run_by_hand_stands_beside_the_slots(database, conn, clock) -> None:
    it = add(conn)
    job = run(conn, catalogue.run_now(SQL, "it", who="test"))
    again = run(conn, catalogue.run_now(SQL, "it", who="test"))
    assert job != again
    assert standing(conn).next_slot == it.next_slot
    conn.execute("delete from kept.job")
    clock.advance("1h")
    async with firings(database) as (worker,):
        assert (await worker.fire()).jobs == 1
    assert [each["by_hand"] for each in recorded(conn)] == [True, True, False]


def test_a_schedule_that_was_removed_a_moment_ago_cannot_be_run(database, conn) -> None:
    add(conn)
    steps = catalogue.run_now(SQL, "it", who="test")
    query, params = next(steps)
    query, params = steps.send(conn.execute(query, params).fetchall())
    run(conn, catalogue.remove(SQL, "it", who="test"))
    with pytest.raises(NotFound):
        steps.send(conn.execute(query, params).fetchall())


# --- where jobs go


async def test_jobs_of_an_ordered_task_get_a_key_of_their_own_and_of_a_paused_lane_wait(database, conn, clock) -> None:
    lane = lane_of(conn)
    conn.execute("update kept.lane set ordered = true, paused_until = 'infinity' where id = %s", [lane])
    add(conn)
    clock.advance("1h")
    async with firings(database) as (worker,):
        assert (await worker.fire()).jobs == 1
    job = row(conn, "select id, order_key, ready from kept.job")
    assert job["order_key"] == f"#{job['id']}"


async def test_a_schema_of_another_name_fires_too(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate.apply(conn, "other")
        sql = catalogue_sql("other")
        soon = datetime.now().astimezone() - HOUR  # only so that the first slot is a second away
        run(conn, catalogue.add(sql, definition(rule=every("1s"), start=soon), who="test"))
        async with firings(empty_database, schema="other") as (worker,):
            await aeventually(
                lambda: conn.execute("select count(*) from other.schedule where next_slot <= now()").fetchone()[0]
            )
            assert (await worker.fire()).jobs == 1
        assert conn.execute("select count(*) from other.job").fetchone() == (1,)


def catalogue_sql(schema: str):
    from kept.db.queries import load

    return load("kept.schedules", schema)


async def test_a_schedule_that_cannot_be_read_here_is_told_of_once_and_stops_no_other(database, conn, clock) -> None:
    add(conn, "odd")
    add(conn, "good")
    conn.execute("update kept.schedule set zone = 'Mars/Olympus', cron = '@hourly', every = null where name = 'odd'")
    told: list[object] = []
    async with firings(database) as (worker,):
        worker._signals.subscribe(told.append)
        for _ in range(3):
            clock.advance("1h")
            conn.execute("delete from kept.job")
            assert (await worker.fire()).jobs == 1
        assert (await worker.fire()).looked == 0
    assert [signal.code for signal in told if isinstance(signal, Warned)] == ["odd_schedule"]


def test_it_cannot_be_added_twice_and_a_declared_one_cannot_be_edited(conn) -> None:
    add(conn)
    with pytest.raises(Refused, match="exists already"):
        add(conn)
    declare(conn, definition("ours"))
    for change in (lambda: edit(conn, "ours"), lambda: run(conn, catalogue.remove(SQL, "ours", who="test"))):
        with pytest.raises(Refused, match="declared by an App"):
            change()
    assert len(rows(conn, "select from kept.schedule")) == 2
    with pytest.raises(Refused, match="never fires"):
        add(conn, "never", cron("0 0 1 1 *"), blackout=["01-01"])
