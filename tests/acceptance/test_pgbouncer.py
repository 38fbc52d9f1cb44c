"""Behind a pooler in transaction mode: no session state, no LISTEN, the same work."""

from __future__ import annotations

import pytest

from fleet import Fleet, Jobs
from pooler import PGBOUNCER
from support import eventually

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.debian,
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]


def test_a_worker_behind_pgbouncer_notices_and_works_by_polling(fleet: Fleet, jobs: Jobs, pooled: str) -> None:
    workers = [fleet.start(database=pooled) for _ in range(2)]
    assert all(worker.says("warned")["code"] == "pooled" for worker in workers)
    ids = jobs.enqueue_many("note", 500)
    assert jobs.all_settled(told=fleet.told) == {"done": 500}
    assert sorted(effect.job for effect in fleet.effects("end")) == sorted(ids)
    alone = jobs.enqueue("note")
    assert (jobs.settled(alone)["claimed_at"] - jobs.one(alone)["created_at"]).total_seconds() < 1.2
    assert not jobs.value("select count(*) from kept.sleeper")
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    (first,) = fleet.sees("start", job)
    victim = next(worker for worker in workers if worker.pid == first.pid)
    victim.kill()
    fleet.sees("start", job, count=2)
    fleet.gate().touch()
    assert jobs.settled(job)["attempt"] == 2
    assert jobs.log(job) == ["requeued:stale"]


def test_a_singleton_behind_pgbouncer_is_alone_and_taken_over(fleet: Fleet, jobs: Jobs, pooled: str) -> None:
    jobs.conn.execute("create table effect (run bigint)")
    patrol = {"app": "patrol:app", "PATROL_EVERY": "1h", "KEPT_TICK_RUNNERS": "reclaim,promote,jobs,patrol"}
    workers = [fleet.start(database=pooled, **patrol) for _ in range(2)]
    (first,) = fleet.sees("start")
    next(worker for worker in workers if worker.pid == first.pid).kill()
    second = fleet.sees("start", count=2)[1]
    assert second.pid != first.pid
    fleet.gate().touch()
    fleet.sees("end", second.job)
    states = "select array_agg(state order by id) from kept.run"
    eventually(lambda: jobs.value(states) == ["abandoned", "done"], what="both runs closed")
    assert jobs.conn.execute("select run from effect").fetchall() == [(second.job,)]
