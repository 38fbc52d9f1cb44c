"""No statement per schedule, and none that reads all of them: counted by the database itself, not timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg

from kept.bench.firing import rule
from kept.db.connect import Link, array
from kept.db.queries import load
from kept.schedules.runner import BATCH, Firing
from kept.signals import Signals

SCHEDULES = 1_000
EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_level = notice;
set auto_explain.log_format = json;
set auto_explain.log_analyze = on;
set auto_explain.log_timing = off;
"""


class Counted(Link):
    """A worker's connection that keeps count of what it is asked, and the plans the server told."""

    asked = 0

    async def rows(self, query, params=None):
        self.asked += 1
        return await super().rows(query, params)


async def opened(database: str) -> tuple[Counted, list[dict]]:
    plans: list[dict] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        _, told, plan = (notice.message_primary or "").partition("plan:")
        if told:
            plans.append(json.loads(plan)["Plan"])

    link = await Counted.open(database)
    await link.conn.execute(EXPLAIN)
    link.conn.add_notice_handler(hear)
    return link, plans


def fill(conn: psycopg.Connection, count: int, start: int = 0) -> None:
    """Schedules whose slot has come, as many rules as there are schedules."""
    sql = load("kept.bench")
    slot = datetime.now(UTC).replace(microsecond=0)  # the next one comes minutes later
    (lane,) = conn.execute(sql["lane"], {"task": "work", "queue": "default"}).fetchone()
    rules = [rule(number, slot) for number in range(count)]
    conn.execute(
        sql["fill_schedules"].replace("'schedule-' ||", f"'schedule-{start}-' ||"),
        {
            "slot": slot,
            "lane": lane,
            "payload": "{}",
            "cron": array([each.cron for each in rules]),
            "every": array([each.every for each in rules]),
            "zone": array([each.zone for each in rules]),
        },
    )
    conn.commit()


async def fire_all(link: Link) -> int:
    firing, total = Firing(link, Signals()), 0
    while decided := (await firing.fire()).decided:
        total += decided
    return total


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def most_looked_at(plan: dict) -> float:
    """Rows that a single step of *plan* looked at, those it threw away included."""
    return max(
        each["Actual Loops"]
        * (each["Actual Rows"] + each.get("Rows Removed by Filter", 0) + each.get("Rows Removed by Join Filter", 0))
        for each in nodes(plan)
    )


async def test_a_batch_of_schedules_takes_two_statements(database: str, conn: psycopg.Connection) -> None:
    fill(conn, SCHEDULES)
    link, _ = await opened(database)
    try:
        assert await fire_all(link) == SCHEDULES
        assert link.asked == 2 * SCHEDULES / BATCH + 1, "what is due, and what is decided about it; then a last look"
    finally:
        await link.close()
    counts = conn.execute("select count(*), count(distinct (schedule, slot)), count(distinct job) from kept.occurrence")
    assert counts.fetchone() == (SCHEDULES, SCHEDULES, SCHEDULES)
    assert conn.execute("select count(*) from kept.job").fetchone() == (SCHEDULES,)


async def test_a_firing_looks_at_no_row_but_its_own(database: str, conn: psycopg.Connection) -> None:
    """Also when its plan was made while there was one schedule, and nobody ran ANALYZE since."""
    fill(conn, 1)
    link, plans = await opened(database)
    try:
        assert await fire_all(link) == 1
        fill(conn, SCHEDULES, start=1)
        plans.clear()
        assert await fire_all(link) == SCHEDULES
    finally:
        await link.close()
    assert len(plans) == 2 * SCHEDULES / BATCH + 1
    assert max(map(most_looked_at, plans)) <= BATCH


async def test_slots_become_jobs_in_order(database: str, conn: psycopg.Connection) -> None:
    """Several of one schedule, after a downtime, beside others with one or none."""
    fill(conn, 40)
    conn.execute(
        "update kept.schedule set misfire = 'all', most = 5, overlap = 'allow', cron = null, every = '1 minute', "
        "last_slot = last_slot - interval '1 hour', anchor = last_slot - interval '1 hour' where id % 3 = 0"
    )
    conn.commit()
    link, _ = await opened(database)
    try:
        assert await fire_all(link) == 40
    finally:
        await link.close()
    found = conn.execute("select schedule, slot from kept.occurrence order by job").fetchall()
    for id in range(1, 41):
        slots = [slot for schedule, slot in found if schedule == id]
        assert slots == sorted(slots)
        assert len(slots) == (5 if id % 3 == 0 else 1)
        if id % 3 == 0:
            assert {later - slot for slot, later in pairwise(slots)} == {timedelta(minutes=1)}
