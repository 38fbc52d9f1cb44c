"""Singletons in real processes that are killed and frozen: one at a time, taken over, fenced off."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from fleet import Fleet, Jobs, Member
from support import eventually

pytestmark = pytest.mark.acceptance
PATROL = {"app": "patrol:app", "KEPT_TICK_RUNNERS": "reclaim,promote,jobs,patrol"}
GUARD = PATROL | {"KEPT_TICK_RUNNERS": "reclaim,promote,jobs,guard"}


@pytest.fixture(autouse=True)
def effects(jobs: Jobs) -> None:
    jobs.conn.execute("create table effect (run bigint)")


def states(jobs: Jobs) -> list[str]:
    return [state for (state,) in jobs.conn.execute("select state from kept.run order by id").fetchall()]


def member(fleet: Fleet, pid: int) -> Member:
    return next(each for each in fleet.members if each.pid == pid)


def test_a_killed_holder_is_followed_by_another_and_its_run_closed(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start(**PATROL, PATROL_EVERY="1h")
    fleet.start(**PATROL, PATROL_EVERY="1h")
    (first,) = fleet.sees("start")
    assert states(jobs) == ["running"]
    member(fleet, first.pid).kill()
    second = fleet.sees("start", count=2)[1]
    assert second.pid != first.pid
    assert second.facts["at"] - first.facts["at"] < 20
    Path(fleet.gate()).touch()
    fleet.sees("end", second.job)
    eventually(lambda: states(jobs) == ["abandoned", "done"], what="both runs closed")
    assert len(fleet.effects("start")) == 2, "the interval is an hour: one pass, made up for once"


def test_a_frozen_holder_is_followed_and_changes_nothing_when_it_wakes(fleet: Fleet, jobs: Jobs) -> None:
    fleet.start(**PATROL, PATROL_EVERY="1h")
    (first,) = fleet.sees("start")
    frozen = member(fleet, first.pid)
    frozen.kill(signal.SIGSTOP)
    fleet.start(**PATROL, PATROL_EVERY="1h")
    second = fleet.sees("start", count=2)[1]
    assert second.pid != first.pid
    frozen.kill(signal.SIGCONT)
    fleet.sees("cancelled", first.job)
    assert frozen.says("run_lease_lost")["run"] == first.job
    frozen.says("worker_fenced")
    fleet.gate().touch()
    fleet.sees("end", second.job)
    eventually(lambda: states(jobs) == ["abandoned", "done"], what="both runs closed")
    assert jobs.conn.execute("select run from effect").fetchall() == [(second.job,)]


def test_a_frozen_thread_that_goes_on_is_fenced_off(fleet: Fleet, jobs: Jobs) -> None:
    """A thread cannot be cancelled: what it does after the thaw must fail in its own transaction."""
    fleet.start(**GUARD, PATROL_EVERY="1h")
    (first,) = fleet.sees("guard start")
    frozen = member(fleet, first.pid)
    frozen.kill(signal.SIGSTOP)
    fleet.start(**GUARD, PATROL_EVERY="1h")
    second = fleet.sees("guard start", count=2)[1]
    fleet.gate("guard-gate").touch()
    fleet.sees("guard end", second.job)
    eventually(lambda: states(jobs) == ["abandoned", "done"], what="both runs closed")
    frozen.kill(signal.SIGCONT)
    fleet.sees("LeaseLost", first.job)
    assert frozen.says("run_lease_lost")["run"] == first.job
    assert jobs.conn.execute("select run from effect").fetchall() == [(second.job,)]
    assert states(jobs) == ["abandoned", "done"]


def test_three_workers_make_one_pass_at_a_time_and_one_in_an_interval(fleet: Fleet, jobs: Jobs) -> None:
    fleet.gate().touch()
    for _ in range(3):
        fleet.start(**PATROL, PATROL_EVERY="300ms")
    fleet.sees("end", count=8)
    rows = jobs.conn.execute("select started_at, finished_at from kept.run where state = 'done' order by id").fetchall()
    for (started, finished), (later, _) in pairwise(rows):
        assert finished <= later
        assert (later - started).total_seconds() >= 0.3


def test_sigterm_lets_a_runner_finish(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start(**PATROL, PATROL_EVERY="1h")
    fleet.sees("start")
    worker.kill(signal.SIGTERM)
    worker.says("worker_draining")
    fleet.gate().touch()
    assert worker.ended() == 0
    assert states(jobs) == ["done"]


def test_a_thread_that_will_not_stop_does_not_keep_the_process_and_its_slot_is_freed(fleet: Fleet, jobs: Jobs) -> None:
    worker = fleet.start("--grace", "100ms", **GUARD, PATROL_EVERY="1h")
    (first,) = fleet.sees("guard start")
    worker.kill(signal.SIGTERM)
    assert worker.ended() == 0
    fleet.gate("guard-gate").touch()
    fleet.start(**GUARD, PATROL_EVERY="1h")
    fleet.sees("guard end")
    eventually(lambda: states(jobs) == ["abandoned", "done"], what="both runs closed")
    assert not fleet.effects("guard end", first.job)


# --- kept tick


def test_two_ticks_at_once_make_one_pass(fleet: Fleet, jobs: Jobs) -> None:
    settings = {name: value for name, value in PATROL.items() if name != "app"} | {"PATROL_EVERY": "1h"}
    worker = fleet.start(**PATROL, PATROL_EVERY="1h")
    (first,) = fleet.sees("start")
    said = fleet.run("tick", "patrol:app", **settings)
    assert said.returncode == 0, said.stderr
    assert f":{first.pid}" in said.stdout
    assert "patrol: skipped, held by " in said.stdout
    fleet.gate().touch()
    fleet.sees("end")
    worker.kill(signal.SIGTERM)
    worker.ended()
    said = fleet.run("tick", "patrol:app", **settings)
    assert "patrol: not due for " in said.stdout
    assert len(fleet.effects("start")) == 1


def test_a_tick_whose_runner_overruns_in_a_thread_ends_and_says_so(fleet: Fleet, jobs: Jobs) -> None:
    settings = {name: value for name, value in GUARD.items() if name != "app"}
    said = fleet.run("tick", "patrol:app", **settings, KEPT_TICK_RUNNER="1s", PATROL_EVERY="1h")
    assert said.returncode == 1, said.stdout
    assert "guard: 0 in " in said.stdout
    assert "still runs" in said.stdout
    said = fleet.run("tick", "patrol:app", **settings | {"KEPT_TICK_RUNNERS": "upkeep,reclaim"})
    assert said.returncode == 0


def test_a_tick_that_is_broken_off_tells_what_ran_before(fleet: Fleet, jobs: Jobs) -> None:
    settings = {"KEPT_TICK_RUNNERS": "patrol,promote", "KEPT_TICK_RUNNER": "1s", "PATROL_EVERY": "1h"}
    fleet.gate().touch()
    with jobs.conn.transaction():
        jobs.conn.execute("lock table kept.job in access exclusive mode")
        said = fleet.run("tick", "patrol:app", **settings)
    assert said.returncode == 75, said.stderr
    assert said.stdout.startswith("patrol: items 1 in ")
    assert "the runner promote overran its budget" in said.stderr


@pytest.mark.parametrize(("grace", "state"), [("1h", "done"), ("200ms", "cancelled")])
def test_sigterm_gives_the_runner_of_a_tick_its_grace(fleet: Fleet, jobs: Jobs, grace: str, state: str) -> None:
    settings = {"KEPT_TICK_RUNNERS": "patrol,guard", "PATROL_EVERY": "1h", "KEPT_SHUTDOWN_GRACE": grace}
    tick = fleet.start(app="patrol:app", command="tick", wait=False, **settings)
    fleet.sees("start")
    tick.kill(signal.SIGTERM)
    if state == "done":
        fleet.gate().touch()
    assert tick.ended() == 75
    assert states(jobs) == [state]
    assert not fleet.effects("guard start"), "no further runner is begun"
    if state == "done":
        assert tick.printed.startswith("patrol: items 1 in ")
