"""Workers stopped past their lease and thawed (promises 3, 4 and 8): a zombie changes nothing and goes on anew."""

from __future__ import annotations

import signal

import pytest

from fleet import Fleet, Jobs, Member
from support import eventually

pytestmark = pytest.mark.acceptance


def freeze_until_taken_over(fleet: Fleet, jobs: Jobs, job: int) -> tuple[Member, Member]:
    """A worker starts *job* and freezes; another takes it over. Returns (frozen, other)."""
    frozen = fleet.members[0]
    (began,) = fleet.sees("start", job)
    assert began.pid == frozen.pid
    frozen.kill(signal.SIGSTOP)
    other = fleet.start()
    eventually(lambda: jobs.one(job)["attempt"] == 2, 20, what="the job's second attempt")
    return frozen, other


def test_a_thawed_worker_changes_nothing_and_works_again_under_a_new_identity(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start()
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    frozen, other = freeze_until_taken_over(fleet, jobs, job)
    frozen.kill(signal.SIGCONT)
    assert frozen.says("lease_lost")["job_id"] == job
    fenced = frozen.says("worker_fenced")
    assert fenced["old"] != fenced["new"]
    assert fleet.sees("cancelled", job)[0].attempt == 1
    fleet.gate().touch()
    ended = jobs.settled(job)
    assert (ended["attempt"], jobs.log(job)) == (2, ["requeued:stale"])
    assert [effect.attempt for effect in fleet.effects("end", job)] == [2]
    other.kill(signal.SIGTERM)
    assert other.ended() == 0
    again = jobs.enqueue("note")
    jobs.settled(again)
    assert fleet.effects("end", again)[0].pid == frozen.pid
    assert jobs.value("select worker::text from kept.history where id = %s", again) == fenced["new"]


def test_a_thawed_workers_finished_job_is_not_settled_twice(fleet: Fleet, jobs: Jobs) -> None:
    # The gate opens while it is frozen: after the thaw its handler returns before anything could cancel it.
    fleet.start()
    job = jobs.enqueue("hold_thread", gate=str(fleet.gate()))
    frozen, _ = freeze_until_taken_over(fleet, jobs, job)
    fleet.gate().touch()
    ended = jobs.settled(job)
    frozen.kill(signal.SIGCONT)
    assert frozen.says("lease_lost")["job_id"] == job
    frozen.says("worker_fenced")
    fleet.sees("end", job, count=2)
    assert jobs.one(job) == ended
    assert jobs.value("select count(*) from kept.history where id = %s", job) == 1


@pytest.mark.parametrize("task", ["complete_here", "complete_async"])
def test_completion_after_a_freeze_rolls_the_handlers_own_transaction_back(fleet: Fleet, jobs: Jobs, task: str) -> None:
    jobs.conn.execute("create table effect (job bigint, attempt int)")
    fleet.start()
    job = jobs.enqueue(task, gate=str(fleet.gate()))
    frozen, _ = freeze_until_taken_over(fleet, jobs, job)
    fleet.gate().touch()
    jobs.settled(job)
    frozen.kill(signal.SIGCONT)
    assert fleet.sees("LeaseLost", job)[0].attempt == 1
    assert frozen.says("lease_lost")["job_id"] == job
    assert jobs.conn.execute("select job, attempt from effect").fetchall() == [(job, 2)]
    assert jobs.one(job)["attempt"] == 2


def test_a_handler_that_outlives_its_lost_lease_does_not_disturb_the_jobs_next_attempt(
    fleet: Fleet, jobs: Jobs
) -> None:
    # There is one worker only: after the thaw it takes its own job back while the old attempt still runs.
    worker = fleet.start()
    job = jobs.enqueue("deaf", gate=str(fleet.gate()))
    fleet.sees("start", job)
    worker.kill(signal.SIGSTOP)
    eventually(lambda: jobs.value("select lease_until < kept.now() from kept.worker"), what="the end of the lease")
    worker.kill(signal.SIGCONT)
    worker.says("worker_fenced")
    fleet.sees("start", job, count=2)
    fleet.gate().touch()
    ended = jobs.settled(job)
    assert (ended["attempt"], ended["charged"]) == (2, 1), "nothing died, so nobody was charged"
    again = jobs.enqueue("note")
    jobs.settled(again)
    fleet.sees("end", job, count=2)
    assert worker.process.poll() is None
