"""No transaction of Kept's is open while a handler or a runner runs (promise 11)."""

from __future__ import annotations

from datetime import datetime

import psycopg
import pytest

from fleet import Fleet, Jobs
from support import eventually

pytestmark = pytest.mark.acceptance

# Whatever began before somebody started, and is not over after others have claimed and settled since: it is held open.
HELD = """
select application_name, state, query from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and xact_start < %s
"""


def clock(jobs: Jobs) -> datetime:
    return jobs.value("select clock_timestamp()")


def held_since(jobs: Jobs, moment: datetime) -> list[tuple[str, str, str]]:
    return jobs.conn.execute(HELD, [moment]).fetchall()


@pytest.mark.parametrize("task", ["hold", "hold_thread"])
def test_no_transaction_is_open_while_a_handler_runs(fleet: Fleet, jobs: Jobs, task: str) -> None:
    fleet.start()
    job = jobs.enqueue(task, gate=str(fleet.gate()))
    fleet.sees("start", job)
    since = clock(jobs)
    jobs.settled(jobs.enqueue("note"))
    assert jobs.state(job) == "running"
    assert held_since(jobs, since) == []


def test_no_transaction_is_open_while_a_job_runs_alone_in_a_process(fleet: Fleet, jobs: Jobs) -> None:
    first = fleet.start()
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    fleet.start()
    first.kill()
    fleet.sees("start", job, count=2)
    since = clock(jobs)
    jobs.settled(jobs.enqueue("note"))
    assert held_since(jobs, since) == []


def test_no_transaction_is_open_while_a_runner_runs(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start(app="patrol:app", KEPT_TICK_RUNNERS="reclaim,promote,jobs,patrol")
    fleet.sees("start")
    since = clock(jobs)
    assert held_since(jobs, since) == []


def test_a_transaction_that_is_held_would_be_seen(jobs: Jobs, database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select 1")
        eventually(lambda: held_since(jobs, clock(jobs)), what="the transaction of somebody else")
