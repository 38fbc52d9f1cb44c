"""Handlers that do not behave: they block the loop, hold the GIL, or do not stop when their time is over."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fleet import Fleet, Jobs
from support import eventually

pytestmark = pytest.mark.acceptance

SHORT = {"KEPT_LEASE": "1s", "KEPT_RENEW": "250ms"}


@pytest.mark.parametrize("task", ["block_loop", "hold_gil"])
def test_a_handler_that_lets_nothing_else_run_for_three_leases_keeps_its_lease(
    fleet: Fleet, jobs: Jobs, task: str
) -> None:
    worker = fleet.start(**SHORT)
    other = fleet.start(**SHORT)  # would take it over
    job = jobs.enqueue(task, seconds=3.2)
    (end,) = fleet.sees("end", job, timeout=60)
    ended = jobs.settled(job)
    assert (ended["attempt"], ended["charged"]) == (1, 1)
    assert end.facts.get("held", 3.2) >= 3
    assert len(fleet.effects("start", job)) == 1
    assert not worker.lines("worker_fenced") + other.lines("worker_fenced")


def test_an_async_handler_that_runs_out_of_time_is_cancelled(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start()
    job = jobs.enqueue("overrun", gate=str(fleet.gate()))
    fleet.sees("cancelled", job)
    ended = jobs.settled(job, "failed")
    assert (ended["code"], ended["reason"]) == ("timeout", "exhausted")


def test_a_thread_that_runs_out_of_time_keeps_its_slot_and_its_job_is_settled(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start("--concurrency", "2")
    job = jobs.enqueue("overrun_thread", gate=str(fleet.gate()))
    assert jobs.settled(job, "failed")["code"] == "timeout"
    assert not fleet.effects("end", job), "the thread still runs"
    held = [jobs.enqueue("hold", gate=str(fleet.gate("other"))) for _ in range(2)]
    fleet.sees("start", held[0])
    again = jobs.enqueue("note")  # one slot is the thread's, one is taken: there is none left
    assert jobs.state(held[1]) == jobs.state(again) == "pending"
    fleet.gate().touch()
    fleet.sees("end", job)
    fleet.sees("start", held[1])  # its slot is free again
    fleet.gate("other").touch()
    assert jobs.settled(again)["attempt"] == 1
    assert jobs.one(job)["state"] == "failed", "what the thread came to in the end changed nothing"


def test_a_stuck_thread_does_not_keep_other_jobs_waiting(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start("--concurrency", "2")
    job = jobs.enqueue("overrun_thread", gate=str(fleet.gate()))
    jobs.settled(job, "failed")
    for _ in range(5):
        other = jobs.enqueue("note")
        assert jobs.settled(other)["attempt"] == 1


def test_a_handler_that_swallows_its_cancellation_is_settled_without_it(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start("--concurrency", "1")
    job = jobs.enqueue("overrun_deaf", gate=str(fleet.gate()))
    fleet.sees("cancelled", job)
    ended = jobs.settled(job, "failed")
    assert ended["code"] == "timeout"
    assert not fleet.effects("end", job), "the handler still runs"
    after = jobs.enqueue("note")
    fleet.gate().touch()
    fleet.sees("end", job)
    assert jobs.settled(after)["attempt"] == 1
    assert jobs.one(job) == ended
    assert worker.process.poll() is None


def test_a_suspect_that_runs_out_of_time_alone_is_settled_as_that(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start()
    jobs.conn.execute("update kept.lane set max_attempts = 2 where task = 'overrun'")
    with jobs.conn.transaction():
        job = jobs.enqueue("overrun", gate=str(fleet.gate()))
        jobs.conn.execute("update kept.job set suspect = true, ready = false where id = %s", [job])
    (began,) = fleet.sees("start", job)
    assert began.pid != worker.pid
    assert jobs.settled(job, "failed")["code"] == "timeout"
    assert worker.process.poll() is None


STALLED = """
import asyncio, sys, time
from kept.db.connect import Link
from kept.jobs.store import Store
from kept.worker.lease import Lease

async def main(database):
    link = await Link.open(database)
    lease = Lease(
        database=database, schema="kept", name="stalled", queues=None, concurrency=1, batch=1, declared={},
        seconds=30.0, renew=0.1, stall=1.5,
    )
    await lease.begin(Store(link))
    print("stalls", flush=True)
    time.sleep(99)

asyncio.run(main(sys.argv[1]))
"""


def test_a_keeper_ends_a_worker_that_has_not_moved_for_too_long(fleet: Fleet, jobs: Jobs) -> None:
    command = [sys.executable, "-c", STALLED, fleet.database]
    with subprocess.Popen(command, env=fleet.environment(), stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "stalls\n"
        assert worker.wait(30) == -signal.SIGKILL
    eventually(lambda: jobs.value("select state from kept.worker") == "swept", what="its lease given back")
    eventually(lambda: not fleet.alive, what="its keeper's end")
