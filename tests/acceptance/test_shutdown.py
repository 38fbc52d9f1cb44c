"""SIGTERM, twice SIGTERM, and supervisors (promise 15): never a lost or a failed job by shutdown, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fleet import Fleet, Jobs
from support import eventually

pytestmark = pytest.mark.acceptance


def test_sigterm_lets_what_runs_finish_and_claims_nothing_more(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start()
    running = [jobs.enqueue("hold", gate=str(fleet.gate())), jobs.enqueue("hold_thread", gate=str(fleet.gate()))]
    fleet.sees("start", count=2)
    worker.kill(signal.SIGTERM)
    worker.says("worker_draining")
    later = jobs.enqueue("note")
    fleet.gate().touch()
    assert worker.ended() == 0
    assert [jobs.settled(job)["attempt"] for job in running] == [1, 1]
    assert (jobs.state(later), jobs.one(later)["attempt"]) == ("pending", 0)
    assert jobs.value("select state from kept.worker") == "closed"
    assert worker.says("worker_stopped")["released"] == 0
    assert not fleet.alive


@pytest.mark.parametrize("task", ["hold", "hold_thread", "deaf"])
def test_a_second_sigterm_gives_back_at_once_and_charges_nobody(fleet: Fleet, jobs: Jobs, task: str) -> None:
    worker = fleet.start("--grace", "1h")
    job = jobs.enqueue(task, gate=str(fleet.gate()))
    fleet.sees("start", job)
    worker.kill(signal.SIGTERM)
    worker.says("worker_draining")
    worker.kill(signal.SIGTERM)
    assert worker.ended() == 0
    found = jobs.one(job)
    assert (found["state"], found["attempt"], found["charged"]) == ("pending", 1, 0)
    assert jobs.log(job) == ["aborted:shutdown"]
    assert jobs.value("select ready and not suspect from kept.job where id = %s", job)
    assert worker.says("worker_stopped")["released"] == 1
    assert not fleet.alive


def test_a_job_that_runs_alone_is_given_back_at_shutdown_like_any_other(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start("--grace", "200ms")
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    worker.kill()
    worker.ended()
    second = fleet.start("--grace", "200ms")
    fleet.sees("start", job, count=2)
    for pid in fleet.alive:  # as an init system does: to every process of the group
        os.kill(pid, signal.SIGTERM)
    assert second.ended() == 0
    found = jobs.one(job)
    assert (found["state"], found["attempt"], found["charged"]) == ("pending", 2, 1)
    assert jobs.log(job) == ["requeued:stale", "aborted:shutdown"]
    eventually(lambda: not fleet.alive, what="no process left")


# --- kept tick


def test_sigterm_lets_a_tick_finish_what_runs_and_start_nothing_more(fleet: Fleet, jobs: Jobs) -> None:
    held = [jobs.enqueue("hold", gate=str(fleet.gate())) for _ in range(3)]
    tick = fleet.start("--concurrency", "1", command="tick", KEPT_TICK_RUNNERS="promote,jobs,upkeep", wait=False)
    (first,) = fleet.sees("start")
    tick.kill(signal.SIGTERM)
    assert tick.says("worker_draining")["running"] == 1
    fleet.gate().touch()
    assert tick.ended() == 75
    assert jobs.settled(first.job)["attempt"] == 1
    assert [jobs.state(job) for job in held].count("pending") == 2
    assert not jobs.value("select count(*) from kept.job where suspect or attempt > uncharged")
    assert len(fleet.effects("start")) == 1
    assert jobs.value("select state from kept.worker") == "closed"
    told = tick.printed.splitlines()
    assert [line.partition(":")[0] for line in told] == ["promote", "jobs", "upkeep"]
    assert told[-1] == "upkeep: skipped, the tick was told to stop"
    assert not fleet.alive


@pytest.mark.parametrize("task", ["hold", "hold_thread", "deaf"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_tick_gives_back_what_does_not_end_and_charges_nobody(
    fleet: Fleet, jobs: Jobs, task: str, *, twice: bool
) -> None:
    job = jobs.enqueue(task, gate=str(fleet.gate()))
    tick = fleet.start(command="tick", wait=False, KEPT_SHUTDOWN_GRACE="1h" if twice else "200ms")
    fleet.sees("start", job)
    tick.kill(signal.SIGTERM)
    tick.says("worker_draining")
    if twice:
        tick.kill(signal.SIGTERM)
    assert tick.ended() == 75
    found = jobs.one(job)
    assert (found["state"], found["attempt"], found["charged"]) == ("pending", 1, 0)
    assert jobs.log(job) == ["aborted:shutdown"]
    assert jobs.value("select ready and not suspect from kept.job where id = %s", job)
    assert not fleet.alive


# --- supervisors


def test_a_supervisor_starts_a_killed_worker_again_and_ends_with_its_workers(fleet: Fleet, jobs: Jobs) -> None:
    supervisor = fleet.start("--processes", "2")
    eventually(lambda: len(supervisor.lines("worker_started")) == 2, what="two workers")
    victim = supervisor.children[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(supervisor.lines("worker_started")) == 3, 20, what="another worker")
    assert len(supervisor.children) == 2
    assert victim not in supervisor.children
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    supervisor.kill(signal.SIGTERM)
    eventually(lambda: len(supervisor.lines("worker_draining")) == 2, what="both workers to drain")
    fleet.gate().touch()
    assert supervisor.ended() == 0
    assert jobs.settled(job)["attempt"] == 1
    assert not fleet.alive


def test_workers_drain_when_their_supervisor_is_killed(fleet: Fleet, jobs: Jobs) -> None:
    supervisor = fleet.start("--processes", "2")
    eventually(lambda: len(supervisor.lines("worker_started")) == 2, what="two workers")
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    fleet.sees("start", job)
    supervisor.kill()
    eventually(lambda: len(supervisor.lines("worker_draining")) == 2, what="both workers to drain")
    fleet.gate().touch()
    assert jobs.settled(job)["attempt"] == 1
    eventually(lambda: not fleet.alive, 20, what="no process left")


def test_a_worker_that_cannot_hear_is_killed_when_its_time_is_over(fleet: Fleet) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    script = (
        "import sys; from kept.worker.supervisor import Supervisor; "
        f"sys.exit(Supervisor(1, 0.1, [sys.executable, '-c', {deaf!r}], overtime=0.1).run())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=fleet.environment(), stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "deaf\n"
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 0
    assert not fleet.alive
