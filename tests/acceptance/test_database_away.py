"""PostgreSQL goes away and comes back (promises 2, 3 and 15): workers go on by themselves, nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def jobs_of(server: Embedded) -> Iterator[Jobs]:
    with psycopg.connect(server.url(), autocommit=True) as conn:
        yield Jobs(conn)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_workers_outlive_a_restart_under_load_and_lose_nothing(
    server: Embedded, own_fleet: Fleet, mode: Literal["fast", "immediate"]
) -> None:
    workers = [own_fleet.start(KEPT_LEASE="20s") for _ in range(2)]
    count = 3000
    with jobs_of(server) as jobs:
        running = jobs.enqueue("hold", gate=str(own_fleet.gate()))
        own_fleet.sees("start", running)
        ids = jobs.enqueue_many("note", count)
        eventually(lambda: jobs.value("select count(*) from kept.history") > 200, what="the load to begin")
    server.restart(mode)
    for worker in workers:
        worker.says("connection_restored")
    own_fleet.gate().touch()
    with jobs_of(server) as jobs:
        assert jobs.all_settled(told=own_fleet.told) == {"done": count + 1}
        assert jobs.one(running)["attempt"] == 1, "its lease outlived the restart"
        assert jobs.settled(jobs.enqueue("note"))["attempt"] == 1
        assert not jobs.value("select count(*) from kept.job_log")
    ends = [effect.job for effect in own_fleet.effects("end")]
    assert {running, *ids} <= set(ends)
    assert all(worker.process.poll() is None for worker in workers)
    assert not any(worker.lines("worker_fenced") or worker.lines("lease_lost") for worker in workers)
    # Nobody lost a lease, so nobody ran anything twice.
    assert len(ends) == len(set(ends)) == count + 2


def test_a_database_away_for_longer_than_the_lease_costs_an_identity_and_nothing_else(
    server: Embedded, own_fleet: Fleet
) -> None:
    worker = own_fleet.start(KEPT_LEASE="2s")
    with jobs_of(server) as jobs:
        job = jobs.enqueue("hold", gate=str(own_fleet.gate()))
        own_fleet.sees("start", job)
    assert server.release(), "nobody else uses it, so it stops"
    own_fleet.sees("cancelled", job)  # nobody can say that the lease lives: the handler must stop
    server.acquire()
    assert worker.says("worker_fenced")["cancelled"] == 1
    own_fleet.sees("start", job, count=2)
    own_fleet.gate().touch()
    with jobs_of(server) as jobs:
        ended = jobs.settled(job)
    assert (ended["attempt"], ended["charged"]) == (2, 1)


def test_a_worker_that_must_stop_while_the_database_is_away_leaves_its_jobs_to_its_keeper(
    server: Embedded, own_fleet: Fleet
) -> None:
    worker = own_fleet.start("--grace", "500ms", KEPT_LEASE="60s", KEPT_RENEW="1s")
    with jobs_of(server) as jobs:
        job = jobs.enqueue("hold", gate=str(own_fleet.gate()))
        own_fleet.sees("start", job)
    assert server.release(), "nobody else uses it, so it stops"
    worker.kill(signal.SIGTERM)
    assert worker.ended() == 0
    server.acquire()
    with jobs_of(server) as jobs:
        eventually(lambda: jobs.state(job) == "pending", 10, what="the job given back, long before its lease ends")
        assert jobs.one(job)["charged"] == 0
    eventually(lambda: not own_fleet.alive, what="no process left")


def test_a_tick_without_a_database_asks_to_be_tried_later(own_fleet: Fleet) -> None:
    away = "postgresql://postgres@127.0.0.1:1/nowhere"
    tried = own_fleet.run("tick", "errands:app", database=away)
    assert (tried.returncode, tried.stdout) == (75, "")
    assert tried.stderr.startswith("kept: the database is not available")
    assert own_fleet.run("tick", "errands:nothing").returncode == 2
    worked = own_fleet.run("tick", "errands:app")
    assert worked.returncode == 0, worked.stderr
