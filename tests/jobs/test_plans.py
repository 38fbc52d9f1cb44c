"""Cost stays flat (promise 13): plans made on an empty table serve a full one, and read no more than they must.

Every statement here is prepared by a worker's own connection while the table is empty. Then it fills, nobody runs
ANALYZE, and the server itself tells (auto_explain) which plan it used and what it read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from kept.db import migrate
from kept.db.connect import Link
from kept.db.tx import run
from kept.jobs import door
from kept.jobs.model import Close, Note, Park
from kept.jobs.rows import OrderWant, Want
from kept.jobs.store import Store
from kernel import SQL, lane_of, live, row

BATCH = 100
FILL = """
insert into kept.job (lane, priority, ready, due_at, created_at, payload)
select 1 + n %% 2, (n %% 3) * 5, %(ready)s, now() + case when %(ready)s then '-1 hour' else '1 hour' end::interval, now(), '{}'
  from generate_series(1, %(rows)s) n
"""  # noqa: E501
EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_level = notice;
set auto_explain.log_format = json;
set auto_explain.log_analyze = on;
set auto_explain.log_buffers = on;
set auto_explain.log_timing = off;
"""


class Explained(Store):
    """A store that knows the plan of its last statement."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._told: list[str] = []
        link.conn.add_notice_handler(lambda notice: self._told.append(notice.message_primary or ""))

    def plan(self) -> dict:
        return json.loads(self._told[-1].partition("plan:")[2])["Plan"]


@asynccontextmanager
async def explained(database):
    link = await Link.open(database)
    try:
        await link.conn.execute(EXPLAIN)
        yield Explained(link)
    finally:
        await link.close()


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def scans(plan: dict, table: str = "job") -> list[dict]:
    return [node for node in nodes(plan) if node.get("Relation Name") == table and "Scan" in node["Node Type"]]


def visited(scan: dict) -> float:
    """Rows a scan looked at, those it threw away included."""
    return scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0))


def buffers(plan: dict) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def assert_small(plan: dict, most: int) -> None:
    for scan in scans(plan):
        assert scan["Node Type"] in ("Index Scan", "Index Only Scan"), json.dumps(scan)
        assert scan.get("Index Cond"), json.dumps(scan)
        assert visited(scan) <= most, json.dumps(scan)


@pytest.fixture(params=["fresh", "vacuumed"])
def emptied(request, empty_database):
    """A database as in production, with a job table that is new, or empty again after a busy day."""
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate.apply(conn)
        conn.execute("alter table kept.job set (autovacuum_enabled = off)")
        lane_of(conn, "one")
        lane_of(conn, "two")
        if request.param == "vacuumed":
            fill(conn, 1000)
            conn.execute("delete from kept.job")
            conn.execute("vacuum analyze")
    return empty_database


def fill(conn, count):
    for ready in (True, False):
        conn.execute(FILL, {"rows": count, "ready": ready})


def fill_lane(conn, lane, count):
    conn.execute(
        "insert into kept.job (lane, priority, ready, due_at, created_at, payload)"
        ' select %s, 0, true, now(), now(), \'{"to":"somebody@example.org","subject":"an ordinary payload"}\''
        "   from generate_series(1, %s)",
        [lane, count],
    )


async def busy_round(store, worker):
    """Claim a batch and settle it in all the ways there are; returns the plan of each statement."""
    wants = [Want(lane, priority, BATCH, 0) for priority in (10, 5, 0) for lane in (1, 2)]
    jobs = (await store.step(worker, 0, [], wants, BATCH)).claimed
    claim = store.plan()
    assert len(await store.held(worker, [job.id for job in jobs])) == len(jobs)
    held = store.plan()
    note = Note("failed", "boom", "it broke", "Traceback")
    kinds = [
        Close("done"),
        Close("failed", "boom", "fatal", "it broke", note=note),
        Park(3600.0, charged=True, note=note),
        Park(0.0, charged=True, suspect=True, note=note),
    ]
    assert await store.settle(worker, [(job, kinds[n % 4]) for n, job in enumerate(jobs)]) == set()
    settle = store.plan()
    survey = await store.survey([1, 2], bottom=True, most=BATCH)
    look = store.plan()
    suspects = await store.claim_suspects(worker, 0, [1, 2], 1)
    alone = store.plan()
    await store.settle(worker, [(job, Close("done")) for job in suspects])
    plans = {"claim": claim, "held": held, "settle": settle, "survey": look, "claim_suspects": alone}
    return len(jobs), survey, plans


async def check_plans(database, rows):
    with psycopg.connect(database, autocommit=True) as conn:
        async with explained(database) as store:
            worker = await live(store, lease=600)
            await busy_round(store, worker)
            fill(conn, 1000)
            _, _, few = await busy_round(store, worker)
            fill(conn, rows)
            count, survey, many = await busy_round(store, worker)
    assert count == BATCH
    assert set(survey.ready) == {(lane, priority) for lane in (1, 2) for priority in (0, 5, 10)}
    for plan in many.values():
        assert_small(plan, most=2 * BATCH)
    claim_indexes = {scan["Index Name"] for scan in scans(many["claim"])}
    assert {"job_ready", "job_pkey"} == claim_indexes
    assert {scan["Index Name"] for scan in scans(many["survey"])} >= {"job_ready", "job_parked", "job_suspect"}
    assert {scan["Index Name"] for scan in scans(many["claim_suspects"])} == {"job_suspect", "job_order", "job_pkey"}
    for name, plan in many.items():  # a deeper tree, and no more than that
        assert buffers(plan) <= 2 * buffers(few[name]) + 100, (name, buffers(plan), buffers(few[name]))


async def test_plans_made_on_an_empty_table_serve_a_full_one(emptied):
    await check_plans(emptied, rows=100_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_plans_made_on_an_empty_table_serve_a_million(emptied):
    await check_plans(emptied, rows=1_000_000)


async def test_a_floor_skips_the_dead_entries_under_a_held_snapshot(emptied):
    with psycopg.connect(emptied, autocommit=True) as conn, psycopg.connect(emptied) as historian:
        fill(conn, 30_000)
        historian.execute("set transaction isolation level repeatable read")
        historian.execute("select count(*) from kept.worker")  # from now on nothing that dies can be cleaned up
        conn.execute("delete from kept.job where ready and id <= 25000")
        floor = row(conn, "select min(id) id from kept.job where ready")["id"]
        async with explained(emptied) as store:
            worker = await live(store, lease=600)
            wants = [Want(1, 0, 10, 0), Want(1, 0, 10, floor)]
            read = []
            for want in wants:
                assert len((await store.step(worker, 0, [], [want], 10)).claimed) == 10
                read.append(buffers(store.plan()))
    assert read[1] < 200 < read[0]


async def test_a_claim_prepared_when_all_jobs_were_of_one_lane_reads_nothing_of_another_that_fills_up(emptied):
    with psycopg.connect(emptied, autocommit=True) as conn:
        fill_lane(conn, 1, 20_000)
        conn.execute("vacuum analyze kept.job")
        async with explained(emptied) as store:
            worker = await live(store, lease=600)
            assert len((await store.step(worker, 0, [], [Want(1, 0, 10, 0)], 10)).claimed) == 10
            read = buffers(store.plan())
            floor = row(conn, "select max(id) + 1 id from kept.job")["id"]
            fill_lane(conn, 2, 50_000)
            fill_lane(conn, 1, 10)
            assert len((await store.step(worker, 0, [], [Want(1, 0, 10, floor)], 10)).claimed) == 10
            assert buffers(store.plan()) < 2 * read
            assert {scan["Index Name"] for scan in scans(store.plan())} == {"job_ready", "job_pkey"}


@pytest.mark.parametrize("most", [10, 100])
async def test_a_claim_is_hot(emptied, most):
    with psycopg.connect(emptied, autocommit=True) as conn:
        fill(conn, 5_000)
        async with explained(emptied) as store:
            worker = await live(store, lease=600)
            for _ in range(400 // most):
                assert len((await store.step(worker, 0, [], [Want(1, 0, most, 0)], most)).claimed) == most
            await store.link.conn.execute("select pg_stat_force_next_flush()")
            await store.link.conn.execute("select 1")
        seen = row(conn, "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'job'")
    assert seen["n_tup_upd"] == 400
    assert seen["n_tup_hot_upd"] >= 0.95 * seen["n_tup_upd"]


def test_an_enqueue_reads_a_handful_of_pages_however_many_jobs_there_are(emptied):
    told = []
    with psycopg.connect(emptied, autocommit=True) as conn:
        requests = [door.Request(queue="mail", task="one", payload="{}", key=key) for key in (None, "a", "a")]
        for each in requests * 4:  # often enough to be prepared, with a plan for ever
            run(conn, door.enqueue(SQL, each))
        fill(conn, 50_000)
        conn.execute(EXPLAIN)
        conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        for each in requests:
            run(conn, door.enqueue(SQL, each))
    plans = [json.loads(each.partition("plan:")[2])["Plan"] for each in told]
    assert len(plans) >= 3
    for plan in plans:
        assert all("Seq Scan" not in scan["Node Type"] for scan in scans(plan))
        assert buffers(plan) < 100


def test_a_look_up_reads_a_handful_of_pages_however_many_jobs_there_are(emptied):
    told = []
    with psycopg.connect(emptied, autocommit=True) as conn:
        for _ in range(12):  # often enough to be prepared, with a plan for ever
            run(conn, door.find(SQL, 7))
            run(conn, door.outcome(SQL, 7))
        fill(conn, 50_000)
        newest = row(conn, "select max(id) id from kept.job")["id"]
        conn.execute(EXPLAIN)
        conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        assert run(conn, door.find(SQL, newest)) is not None
        assert run(conn, door.outcome(SQL, newest)) is None
    plans = [json.loads(each.partition("plan:")[2])["Plan"] for each in told]
    assert len(plans) == 2, "nothing but the two statements: history was not looked into"
    for plan in plans:
        assert buffers(plan) < 20, json.dumps(plan)


FILL_ORDERED = """
insert into kept.job (lane, priority, ready, due_at, created_at, payload, order_key)
select 3, 0, true, now(), now(), '{}'::json, 'hot' from generate_series(1, %(rows)s)
union all
select 3, 0, n %% 7 > 0, now(), now(), '{}', 'k' || n %% 500 from generate_series(1, %(rows)s) n
"""


async def ordered_round(store, worker):
    """Claim a batch in order, settle it; returns how many there were and the plan of each statement."""
    brought = await store.claim_ordered(worker, 0, [OrderWant(3, BATCH, BATCH, BATCH, "")], 1000)
    plans = {"claim_ordered": store.plan()}
    late = await store.claim_ordered(worker, 0, [OrderWant(3, BATCH, BATCH, BATCH, "hos")], 1000)
    plans["claim_late"] = store.plan()
    jobs = brought.claimed + late.claimed
    kinds = [Close("done"), Park(0.0, charged=True, suspect=True), Park(0.0, charged=True, aside=True)]
    assert await store.settle(worker, [(job, kinds[n % 3]) for n, job in enumerate(jobs)]) == set()
    plans["settle"] = store.plan()
    await store.claim_suspects(worker, 0, [3], 1)
    plans["claim_suspects"] = store.plan()
    await store.survey([3], bottom=True, most=BATCH)
    plans["survey"] = store.plan()
    return len(brought.claimed), plans


async def test_a_claim_in_order_reads_no_more_than_it_must_however_many_jobs_there_are(emptied):
    with psycopg.connect(emptied, autocommit=True) as conn:
        lane_of(conn, "three")
        conn.execute("update kept.lane set ordered = true where task = 'three'")
        async with explained(emptied) as store:
            worker = await live(store, lease=600)
            await ordered_round(store, worker)
            conn.execute(FILL_ORDERED, {"rows": 1_000})
            await ordered_round(store, worker)
            fill(conn, 20_000)
            conn.execute(FILL_ORDERED, {"rows": 50_000})
            count, plans = await ordered_round(store, worker)
    assert count == BATCH
    for name, plan in plans.items():
        assert_small(plan, most=6 * BATCH)
        assert buffers(plan) < 100 * BATCH, (name, buffers(plan))
    for name in ("claim_ordered", "claim_late"):
        assert {scan["Index Name"] for scan in scans(plans[name])} == {"job_order", "job_pkey"}


async def test_figures_read_no_more_than_they_count_however_many_jobs_there_are(emptied):
    most = 500
    with psycopg.connect(emptied, autocommit=True) as conn:
        async with explained(emptied) as store:
            await store.figures(most)  # prepared while the table is empty
            fill(conn, 100_000)
            found = await store.figures(most)
            plan = store.plan()
    assert [lane.due for lane in found.lanes] == [most, most]
    assert_small(plan, most=2 * 3 * most)  # two lanes of three priorities
    assert {scan["Index Name"] for scan in scans(plan)} == {"job_ready", "job_parked", "job_suspect"}
    assert buffers(plan) < 2 * 3 * most + 200, json.dumps(plan)
