"""Cost stays flat: plans made while there was nothing serve 10,000 schedules and a million occurrences."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from kept.db import migrate
from kept.db.connect import Link
from kept.jobs.store import Store
from kept.schedules.runner import Firing
from kept.signals import Signals
from kernel import lane_of
from timetables import look_after

EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_level = notice;
set auto_explain.log_format = json;
set auto_explain.log_analyze = on;
set auto_explain.log_buffers = on;
set auto_explain.log_timing = off;
"""
SCHEDULES = """
insert into kept.schedule (name, origin, every, zone, anchor, misfire, most, overlap, lane, payload, last_slot, next_slot, look_at)
select 's' || n, 'added', '1 hour', 'UTC', now() - interval '1 day', 'once', 1, case n %% 2 when 0 then 'skip' else 'queue' end,
       1, '{}', t.last, t.last + interval '1 hour', t.last + interval '1 hour'
  from generate_series(1, %(count)s) n
 cross join lateral (select now() - case when n <= %(due)s then '2 hours' else '0' end::interval as last) t
"""  # noqa: E501
OCCURRENCES = """
insert into kept.occurrence (schedule, slot, state, job, recorded_at, outcome)
select 1 + n %% 10000, now() - n * interval '1 second', 'fired', 1000000 + n, now() - n * interval '1 second', 'done'
  from generate_series(1, %(count)s) n
"""
DUE = 100
OPEN = """
with live as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, payload)
  select 5000000 + n, 1, 0, true, now(), now(), '{}' from generate_series(1, 100, 2) n
)
insert into kept.occurrence (schedule, slot, state, job, recorded_at)
select n, now(), 'fired', 5000000 + n, now() from generate_series(1, 100, 2) n
"""


def buffers(plan: dict) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def scans(plan: dict) -> Iterator[dict]:
    if "Relation Name" in plan and "Scan" in plan["Node Type"]:
        yield plan
    for inner in plan.get("Plans", ()):
        yield from scans(inner)


def visited(scan: dict) -> float:
    """Rows a scan looked at, those it threw away included."""
    return scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0))


class Told:
    """The plans of what is asked over a link, in order."""

    def __init__(self, link: Link) -> None:
        self._told: list[str] = []
        link.conn.add_notice_handler(lambda notice: self._told.append(notice.message_primary or ""))

    def take(self) -> list[dict]:
        plans = [json.loads(each.partition("plan:")[2]) for each in self._told if "plan:" in each]
        self._told.clear()
        return [each["Plan"] for each in plans]


@pytest.fixture(scope="module")
def filled(server: str) -> Iterator[tuple[str, str]]:
    """A database as in production with nothing in it yet, and the statements that fill it."""
    from conftest import _fresh, at

    with _fresh(server) as name:
        with psycopg.connect(at(server, name), autocommit=True) as conn:
            migrate.apply(conn)
            lane_of(conn)
            conn.execute("alter table kept.occurrence set (autovacuum_enabled = off)")
            conn.execute("alter table kept.schedule set (autovacuum_enabled = off)")
        yield at(server, name)


async def test_what_a_worker_asks_about_schedules_reads_a_handful_of_pages(filled: str) -> None:
    link = await Link.open(filled)
    await link.conn.execute(EXPLAIN)
    told, firing, store = Told(link), Firing(link, Signals()), Store(link)
    with psycopg.connect(filled, autocommit=True) as conn:
        conn.execute(SCHEDULES, {"count": 1, "due": 1})
        await firing.fire()  # prepared here, with a plan for ever
        await look_after(firing, "test")
        await store.survey([1], bottom=True, most=100)
        conn.execute("delete from kept.schedule")
        conn.execute("delete from kept.job")
        conn.execute("alter table kept.schedule alter column id restart")
        conn.execute(SCHEDULES, {"count": 10_000, "due": DUE})
        conn.execute(OCCURRENCES, {"count": 1_000_000})
        conn.execute(OPEN)
        told.take()
        await store.survey([1], bottom=True, most=100)
        (survey,) = told.take()
        found = await firing.fire()
        assert (found.decided, found.jobs) == (DUE, DUE // 2), "with a job of each still alive, those that queue wait"
        due, fire = told.take()[-2:]
        conn.execute("delete from kept.job where id % 4 = 1")
        await look_after(firing, "test")
        settled, close = told.take()[:2]
    await link.close()
    assert buffers(survey) < 50
    assert buffers(due) < 10 * DUE
    assert buffers(fire) < 50 * DUE
    assert buffers(settled) < 10 * DUE
    assert all(visited(scan) <= 3 * DUE for plan in (survey, due, fire, settled) for scan in scans(plan))
    for plan in (survey, due, fire, settled, close):
        assert all("Seq" not in scan["Node Type"] or buffers(scan) < 20 for scan in scans(plan)), json.dumps(plan)
