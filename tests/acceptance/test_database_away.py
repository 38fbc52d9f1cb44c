"""PostgreSQL goes away and comes back (promises 2, 3 and 15): workers go on by themselves, nothing is lost."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from fleet import Fleet, Jobs, fleet_of
from kept.db import migrate
from kept.db.embedded import Embedded
from support import eventually

pytestmark = pytest.mark.acceptance

OPTIONS = {"fsync": "off"}  # the machine stays up; commits must be written all the same


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Embedded]:
    """A server that this test may take down."""
    with Embedded(tmp_path / "pg", options=OPTIONS) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            migrate.apply(conn)
        yield server


@pytest.fixture
def own_fleet(server: Embedded, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of(server.url(), tmp_path) as fleet:
        yield fleet


def jobs_of(server: Embedded) -> Jobs:
    return Jobs(psycopg.connect(server.url(), autocommit=True))


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_workers_outlive_a_restart_under_load_and_lose_nothing(
    server: Embedded, own_fleet: Fleet, mode: Literal["fast", "immediate"]
) -> None:
    workers = [own_fleet.start(KEPT_LEASE="20s") for _ in range(2)]
    before = jobs_of(server)
    running = before.enqueue("hold", gate=str(own_fleet.gate()))
    own_fleet.sees("start", running)
    count = 3000
    ids = before.enqueue_many("note", count)
    eventually(lambda: before.value("select count(*) from kept.history") > 200, what="the load to begin")
    before.conn.close()
    server.restart(mode)
    for worker in workers:
        worker.says("connection_restored")
    jobs = jobs_of(server)
    own_fleet.gate().touch()
    assert jobs.all_settled(note=own_fleet.told) == {"done": count + 1}
    assert jobs.one(running)["attempt"] == 1, "its lease outlived the restart"
    ends = Counter(effect.job for effect in own_fleet.effects("end"))
    assert set(ends) == {running, *ids}
    assert all(worker.process.poll() is None for worker in workers)
    assert not any(worker.lines("worker_fenced") for worker in workers)
    again = jobs.enqueue("note")
    assert jobs.settled(again)["attempt"] == 1
    jobs.conn.close()


def test_a_database_away_for_longer_than_the_lease_costs_an_identity_and_nothing_else(
    server: Embedded, own_fleet: Fleet
) -> None:
    worker = own_fleet.start(KEPT_LEASE="2s")
    jobs = jobs_of(server)
    job = jobs.enqueue("hold", gate=str(own_fleet.gate()))
    own_fleet.sees("start", job)
    jobs.conn.close()
    server._cluster.stop("immediate")
    own_fleet.sees("cancelled", job)  # the lease cannot be told to live any more: the handler must stop
    server.acquire()
    jobs = jobs_of(server)
    assert worker.says("worker_fenced")["cancelled"] == 1
    own_fleet.sees("start", job, count=2)
    own_fleet.gate().touch()
    assert jobs.settled(job)["attempt"] == 2
    jobs.conn.close()


def test_a_worker_that_must_stop_while_the_database_is_away_leaves_its_jobs_to_its_keeper(
    server: Embedded, own_fleet: Fleet
) -> None:
    worker = own_fleet.start("--grace", "500ms", KEPT_LEASE="60s", KEPT_RENEW="1s")
    jobs = jobs_of(server)
    job = jobs.enqueue("hold", gate=str(own_fleet.gate()))
    own_fleet.sees("start", job)
    jobs.conn.close()
    server._cluster.stop("fast")
    worker.kill(signal.SIGTERM)
    assert worker.ended() == 0
    server.acquire()
    jobs = jobs_of(server)
    eventually(lambda: jobs.state(job) == "pending", 10, what="the job given back, long before its lease ends")
    assert jobs.one(job)["charged"] == 0
    eventually(lambda: not own_fleet.alive, what="no process left")
    jobs.conn.close()


def test_a_tick_without_a_database_asks_to_be_tried_later(own_fleet: Fleet) -> None:
    away = "postgresql://postgres@127.0.0.1:1/nowhere"
    tried = own_fleet.run("tick", "errands:app", database=away)
    assert (tried.returncode, tried.stdout) == (75, "")
    assert tried.stderr.startswith("kept: the database is not available")
    assert own_fleet.run("tick", "errands:nothing").returncode == 2
    worked = own_fleet.run("tick", "errands:app")
    assert worked.returncode == 0, worked.stderr
