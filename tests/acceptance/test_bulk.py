"""Bulk operations while workers drain (promise 2): nobody waits for anybody, everything is accounted for."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from fleet import Fleet, Jobs
from kept.db.queries import load

pytestmark = pytest.mark.acceptance


def test_bulk_cancellation_and_updates_do_not_disturb_running_workers(fleet: Fleet, jobs: Jobs) -> None:
    cancel = load("kept.jobs", "kept")["cancel"]
    workers = [fleet.start() for _ in range(2)]
    ids = jobs.enqueue_many("note", 6000)
    cancelled: set[int] = set()
    while jobs.value("select count(*) from kept.job"):
        live = [row[0] for row in jobs.conn.execute("select id from kept.job order by random() limit 60").fetchall()]
        rows = jobs.conn.execute(cancel, {"ids": live}).fetchall()
        cancelled |= {row[0] for row in rows}
        jobs.conn.execute(
            "update kept.job set priority = 1 where id = any(array("
            " select id from kept.job where worker is null order by id desc limit 200 for update skip locked))"
        )
    states = jobs.states()
    assert states == {"done": len(ids) - len(cancelled), "cancelled": len(cancelled)}
    assert cancelled, "nothing was cancelled, so nothing is proved"
    assert {effect.job for effect in fleet.effects("end")} == set(ids) - cancelled
    for worker in workers:
        assert "deadlock" not in worker.log.read_text()
        assert not worker.lines("connection_lost")


def test_a_clumsy_update_of_everything_costs_no_job(fleet: Fleet, jobs: Jobs) -> None:
    # Locks rows in an order of its own and waits for them: what our statements never do.
    workers = [fleet.start() for _ in range(2)]
    ids = jobs.enqueue_many("note", 3000)
    while jobs.value("select count(*) from kept.job"):
        # Whose statement the server gives up on is up to the server: ours, or a worker's, which sends it again.
        with suppress(psycopg.errors.DeadlockDetected), jobs.conn.transaction():
            jobs.conn.execute("select from kept.job order by id desc limit 100 for update")
            jobs.conn.execute("select from kept.job order by id limit 100 for update")
    assert jobs.states() == {"done": len(ids)}
    assert all(worker.process.poll() is None for worker in workers)
    assert {effect.job for effect in fleet.effects("end")} == set(ids)
