"""Schedules under real workers that are killed and frozen (promise 9): one occurrence and one job for every slot."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import psycopg
import pytest

from fleet import Fleet, Jobs, explained, fleet_of
from kept.db import migrate
from kept.db.embedded import Embedded
from pooler import PGBOUNCER
from support import eventually

pytestmark = pytest.mark.acceptance
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
SLOTS = 8
SECOND = timedelta(seconds=1)


def slots_of(jobs: Jobs, name: str) -> list[tuple]:
    query = (
        "select o.slot, o.state, o.missed, o.job from kept.occurrence o join kept.schedule s on s.id = o.schedule"
        " where s.name = %s order by o.slot"
    )
    return jobs.conn.execute(query, [name]).fetchall()


def has_come(jobs: Jobs, count: int) -> None:
    """Wait until so many slots of both schedules are on record."""
    for name in ("beat", "chime"):
        eventually(lambda name=name: len(slots_of(jobs, name)) >= count, 40, what=f"{count} slots of {name}")


def assert_every_slot_once(fleet: Fleet, jobs: Jobs) -> None:
    """No slot left out, none with two jobs, every job run."""
    for schedule in ("beat", "chime"):
        jobs.conn.execute("update kept.schedule set paused_at = kept.now(), revision = revision + 1 where name = %s",
                          [schedule])  # fmt: skip
    jobs.all_settled(told=fleet.told)
    for schedule in ("beat", "chime"):
        found = slots_of(jobs, schedule)
        assert {b[0] - a[0] for a, b in pairwise(found)} == {SECOND}, "a slot was left out"
        assert {(state, missed) for _, state, missed, _ in found} == {("fired", 0)}
        query = "select headers ->> 'kept-slot', count(*) from kept.jobs where task = %s group by 1"
        made = jobs.conn.execute(query, [schedule]).fetchall()
        assert len(made) == len(found)
        assert {count for _, count in made} == {1}, "a slot has two jobs"
        ran = {effect.job for effect in fleet.effects(schedule)}
        assert ran == {job for *_, job in found}, "a job never ran"
    assert set(jobs.states()) == {"done"}


def disturb(fleet: Fleet, jobs: Jobs, start: Callable[[], object], seed: int) -> None:
    """One worker is killed, another frozen and thawed, at moments drawn from *seed*; a third joins."""
    random = Random(seed)
    frozen, killed = fleet.members[:2]
    has_come(jobs, random.randint(1, 2))
    frozen.kill(signal.SIGSTOP)
    has_come(jobs, random.randint(3, 4))
    frozen.kill(signal.SIGCONT)
    has_come(jobs, random.randint(5, 6))
    killed.kill()
    start()
    has_come(jobs, SLOTS)


@pytest.mark.parametrize("seed", [1])
def test_every_second_fires_once_while_workers_are_killed_and_frozen(fleet: Fleet, jobs: Jobs, seed: int) -> None:
    for _ in range(2):
        fleet.start(app="beats:app")
    with explained(fleet.told):
        disturb(fleet, jobs, lambda: fleet.start(app="beats:app"), seed)
        assert_every_slot_once(fleet, jobs)


@pytest.mark.debian
@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
def test_every_second_fires_once_behind_pgbouncer(fleet: Fleet, jobs: Jobs, pooled: str) -> None:
    for _ in range(2):
        fleet.start(app="beats:app", database=pooled)
    with explained(fleet.told):
        disturb(fleet, jobs, lambda: fleet.start(app="beats:app", database=pooled), 2)
        assert_every_slot_once(fleet, jobs)


@pytest.mark.debian
@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_worker_whose_clock_is_an_hour_off_fires_by_the_databases_time(fleet: Fleet, jobs: Jobs, offset: str) -> None:
    wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    fleet.start(app="beats:app", **wrong)
    began = jobs.value("select kept.now()")
    fleet.start(app="beats:app")
    with explained(fleet.told):
        has_come(jobs, 5)
        assert_every_slot_once(fleet, jobs)
    for slot, *_ in slots_of(jobs, "chime"):
        assert abs(slot - began) < timedelta(minutes=5)


@contextmanager
def own_server(folder: Path) -> Iterator[Embedded]:
    """A server that this test may take down."""
    with Embedded(folder / "pg", options={"fsync": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            migrate.apply(conn)
        yield server


def test_every_second_fires_once_over_a_restart_of_the_server(tmp_path: Path) -> None:
    with own_server(tmp_path) as server, fleet_of(server.url(), tmp_path) as fleet:
        for _ in range(2):
            fleet.start(app="beats:app", KEPT_LEASE="20s")
        with psycopg.connect(server.url(), autocommit=True) as conn, explained(fleet.told):
            has_come(Jobs(conn), 3)
        server.restart("immediate")
        with psycopg.connect(server.url(), autocommit=True) as conn, explained(fleet.told):
            has_come(Jobs(conn), SLOTS)
            assert_every_slot_once(fleet, Jobs(conn))
