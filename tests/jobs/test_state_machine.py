"""The kernel's operations in any order, over three connections, against a model of a few lines: after each of them both
say the same of every job."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kept.admin import bulk
from kept.admin import store as admin
from kept.admin.model import Filter
from kept.db.connect import Link
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs import door
from kept.jobs.model import Claimed, Close, Park
from kept.jobs.reclaim import reclaim_expired
from kept.jobs.rows import Want
from kept.jobs.store import Store
from kernel import SQL, declare, live

ADMIN = load("kept.admin")
BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
LEASE, MOST, BASE, CAP = 10.0, 2, 5.0, 8.0  # seconds, attempts, seconds, seconds
WAYS = {
    "done": Close("done"),
    "failed": Close("failed", code="no_luck", reason="fatal"),
    "retry": Park(2.0, charged=True),
    "defer": Park(1.0, charged=False),
    "release": Park(0.0, charged=False),
    "died": Park(0.0, charged=True, suspect=True),
}
CLOCK = """
create table kept.world (at timestamptz not null);
create or replace function kept.now() returns timestamptz language sql stable as 'select at from kept.world';
"""
CLEAN = """
truncate kept.job, kept.unique_key, kept.worker, kept.history, kept.job_log, kept.lane, kept.world
  restart identity cascade
"""
STATES = """
select j.id, j.state, j.attempt, j.attempt - j.charged, j.suspect, coalesce(k.ready, false), k.worker
  from kept.jobs j left join kept.job k on k.id = j.id
"""
EXAMPLES = int(os.environ.get("KEPT_SIMULATE_SEEDS", "60"))  # the same ones each time, as many as are asked for
WORKERS, BOOL = st.integers(0, 1), st.booleans()


@dataclass
class Known:
    """What the model knows of a job."""

    due: datetime
    priority: int
    ready: bool
    key: str | None = None
    state: str = "pending"
    attempt: int = 0
    uncharged: int = 0
    suspect: bool = False
    worker: UUID | None = None


@dataclass
class Place:
    """A worker: its identity, its lease, and all it was ever given."""

    worker: UUID
    until: datetime
    state: str
    given: list[Claimed]


class Kernel(RuleBasedStateMachine):
    """Two workers' stores and a producer's connection, beside a model in memory."""

    def __init__(self, database: str, conn: psycopg.Connection, runner: asyncio.Runner, links: list[Link]) -> None:
        super().__init__()
        self.database, self.conn, self.run = database, conn, runner.run
        self.stores = [Store(link) for link in links]
        self.now = BEGIN
        self.jobs: dict[int, Known] = {}
        self.keys: dict[str, tuple[int, datetime]] = {}
        self.paused = False

    @initialize()
    def begin(self) -> None:
        self.conn.execute(CLEAN)
        self.conn.execute("insert into kept.world values (%s)", [self.now])
        self.lane = self.run(declare(self.stores[0], max_attempts=MOST, retry_base=BASE, retry_max=CAP))
        self.places = [self._identity(0), self._identity(1)]
        self.enqueue_many(3, None, commits=True)

    def _identity(self, number: int) -> Place:
        worker = self.run(live(self.stores[number], lease=LEASE))
        return Place(worker, self._in(LEASE), "live", [])

    def _in(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    # --- producers

    @rule(data=st.data(), how=st.sampled_from(["one", "key", "many"]))
    def produce(self, data: st.DataObject, how: str) -> None:
        match how:
            case "one":
                self.enqueue(data.draw(st.sampled_from([0.0, 3.0])), data.draw(st.sampled_from([0, 5])))
            case "key":
                self.enqueue_with_a_key(data.draw(st.sampled_from("ab")), data.draw(st.sampled_from([1.0, 3600.0])))
            case "many":
                self.enqueue_many(
                    data.draw(st.integers(1, 3)), data.draw(st.sampled_from([None, "a"])), commits=data.draw(BOOL)
                )

    def enqueue(self, delay: float, priority: int) -> None:
        request = door.Request("mail", "send", "{}", delay=delay, priority=priority)
        self._made(run(self.conn, door.enqueue(SQL, request)), request)

    def enqueue_with_a_key(self, key: str, unique_for: float) -> None:
        request = door.Request("mail", "send", "{}", key=key, unique_for=unique_for)
        self._made(run(self.conn, door.enqueue(SQL, request)), request)

    def enqueue_many(self, count: int, key: str | None, commits: bool) -> None:
        requests = [door.Request("mail", "send", "{}", key=key)] * count + [
            door.Request("mail", "send", "{}", delay=1.0)
        ]
        with self.conn.transaction(force_rollback=not commits):
            tickets = run(self.conn, door.enqueue_many(SQL, requests))
        for ticket, request in zip(tickets, requests, strict=True) if commits else ():
            self._made(ticket, request)

    def _made(self, ticket: door.Ticket, request: door.Request) -> None:
        held = self.keys.get(request.key or "")
        if held is not None and (held[1] > self.now or self.jobs[held[0]].state in ("pending", "running")):
            assert (ticket.id, ticket.created) == (held[0], False)
            return
        assert ticket.created and ticket.id not in self.jobs
        due = self._in(request.delay)
        self.jobs[ticket.id] = Known(due, request.priority or 0, due <= self.now, request.key)
        if request.key is not None:
            self.keys[request.key] = (ticket.id, self._in(request.unique_for))

    # --- workers

    def _alive(self, place: Place) -> bool:
        return place.state == "live" and place.until > self.now and not self.paused

    @rule(number=WORKERS, most=st.integers(1, 3), renews=st.sampled_from([True, True, False]))
    def claim(self, number: int, most: int, renews: bool) -> None:
        if not any(job.ready and job.state == "pending" for job in self.jobs.values()):
            self.enqueue_many(3, None, commits=True)
        if renews:
            self.begin_anew()
            self.renew(number)
        place = self.places[number]
        wants = [Want(self.lane, priority, most, 0) for priority in (5, 0)]
        claimed = self.run(self.stores[number].step(place.worker, 0, [], wants, most)).claimed
        free = [(-job.priority, id) for id, job in self.jobs.items() if job.state == "pending" and job.ready]
        self._given(place, claimed, [id for _, id in sorted(free)][:most] if self._alive(place) else [])
        self.claim_suspect(number)

    def claim_suspect(self, number: int) -> None:
        place = self.places[number]
        claimed = self.run(self.stores[number].claim_suspects(place.worker, 0, [self.lane], 1))
        due = [(job.due, id) for id, job in self.jobs.items() if job.state == "pending" and job.suspect]
        first = min((at for at, _ in due if at <= self.now), default=None) if self._alive(place) else None
        told = [job.id for job in claimed]
        assert bool(told) == (first is not None) and all(self.jobs[id].due == first for id in told)
        self._given(place, claimed, told)

    def _given(self, place: Place, claimed: list[Claimed], expected: list[int]) -> None:
        assert sorted(job.id for job in claimed) == sorted(expected)
        for job in claimed:
            known = self.jobs[job.id]
            known.state, known.worker, known.attempt = "running", place.worker, known.attempt + 1
            assert (job.attempt, job.uncharged, job.suspect) == (known.attempt, known.uncharged, known.suspect)
            place.given.append(job)

    @precondition(lambda self: any(place.given for place in self.places))
    @rule(data=st.data(), way=st.sampled_from(list(WAYS)))
    def settle(self, data: st.DataObject, way: str) -> None:
        """Also what was lost, settled or given to others long ago."""
        number, job = self._any_given(data)
        ours = self._is_held(job)
        lost = self.run(self.stores[number].settle(job.worker, [(job, WAYS[way])]))
        assert lost == (frozenset() if ours else {job.id})
        if ours:
            self._settled(job.id, WAYS[way])

    @precondition(lambda self: any(place.given for place in self.places))
    @rule(data=st.data(), commits=st.booleans())
    def complete(self, data: st.DataObject, commits: bool) -> None:
        _, job = self._any_given(data)
        ours = self._is_held(job)
        with self.conn.transaction(force_rollback=not commits):
            done = run(self.conn, door.complete(SQL, id=job.id, attempt=job.attempt, worker=job.worker, result=None))
        assert done == ours
        if done and commits:
            self._settled(job.id, Close("done"))

    def _any_given(self, data: st.DataObject) -> tuple[int, Claimed]:
        return data.draw(st.sampled_from([(n, job) for n, place in enumerate(self.places) for job in place.given]))

    def _is_held(self, job: Claimed) -> bool:
        known = self.jobs[job.id]
        return (known.state, known.attempt, known.worker) == ("running", job.attempt, job.worker)

    def _settled(self, id: int, settlement: Close | Park) -> None:
        known = self.jobs[id]
        known.worker = None
        if isinstance(settlement, Close):
            known.state, known.suspect, known.ready = settlement.state, False, False
            return
        known.state, known.suspect = "pending", settlement.suspect
        known.ready = settlement.delay <= 0 and not settlement.suspect
        known.due = min(known.due, self.now) if settlement.delay <= 0 else self._in(settlement.delay)
        known.uncharged += not settlement.charged

    # --- leases and time

    def renew(self, number: int) -> None:
        place = self.places[number]
        alive = self.run(self.stores[number].renew(place.worker, LEASE))
        assert alive == (place.state == "live")
        if alive:
            place.until = self._in(LEASE)

    @rule(number=WORKERS)
    def reclaim(self, number: int) -> None:
        expired = [each for each in self.places if each.state == "live" and each.until <= self.now]
        reclaimed = self.run(reclaim_expired(self.stores[number]))
        assert {each.worker for each in reclaimed} == {place.worker for place in expired}
        for place in expired:
            place.state = "lost"
            for id, known in self.jobs.items():
                if known.worker == place.worker:
                    self._settled(id, self._after_death(known))

    def _after_death(self, known: Known) -> Close | Park:
        charged = known.attempt - known.uncharged
        if known.suspect and charged >= MOST:
            return Close("failed")
        delay = min(CAP, BASE * 2.0 ** (max(charged, 1) - 1)) if known.suspect else 0.0
        return Park(delay, charged=True, suspect=True)

    def begin_anew(self) -> None:
        """Who lost its lease goes on under another identity; what it was given before, it still remembers."""
        for number, place in enumerate(self.places):
            if place.state == "lost":
                self.places[number] = self._identity(number)
                self.places[number].given = place.given

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 11.0, -3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now = self._in(seconds)
        self.conn.execute("update kept.world set at = %s", [self.now])

    @rule(number=WORKERS)
    def survey(self, number: int) -> None:
        found = self.run(self.stores[number].survey([self.lane], bottom=True, most=100))
        due = [job for job in self.jobs.values() if job.state == "pending" and not job.ready and not job.suspect]
        due = [] if self.paused else [job for job in due if job.due <= self.now]
        assert found.count == len(due)
        for job in due:
            job.ready = True

    # --- operators

    @rule(data=st.data(), what=st.sampled_from(["cancel", "retry", "pause"]))
    def operate(self, data: st.DataObject, what: str) -> None:
        match what:
            case "cancel":
                self.cancel(data)
            case "retry":
                self.retry_failed()
            case "pause":
                self.pause_and_resume(data.draw(WORKERS))

    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        known = self.jobs[id]
        assert run(self.conn, door.cancel(SQL, id)) == known.state
        if known.state == "pending":
            known.state, known.ready, known.suspect = "cancelled", False, False

    def retry_failed(self) -> None:
        plain = sorted(id for id, job in self.jobs.items() if job.state == "failed" and job.key is None)
        wanted = bulk.bulk("retry", Filter(ids=tuple(plain[:1])), again=True)
        for each in bulk.change(self.conn, "kept", wanted) if plain else ():
            assert each.id == plain[0] and each.became not in self.jobs
            self.jobs[each.became] = Known(self.now, self.jobs[each.id].priority, True)

    def pause_and_resume(self, number: int) -> None:
        run(self.conn, admin.pause(ADMIN, [self.lane], None))
        self.paused = True
        self.claim(number, 3, renews=True)
        self.survey(number)
        run(self.conn, admin.resume(ADMIN, [self.lane]))
        self.paused = False

    # --- what must hold

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "places"):
            return
        told = {row[0]: row[1:] for row in self.conn.execute(STATES).fetchall()}
        known = {
            id: (job.state, job.attempt, job.uncharged, job.suspect, job.ready, job.worker)
            for id, job in self.jobs.items()
        }
        assert told == known


@pytest.mark.timeout(60 + 10 * EXAMPLES)  # one that fails is made as short as can be
def test_any_order_of_operations_leaves_what_the_model_says(database: str, conn: psycopg.Connection) -> None:
    conn.execute(CLOCK)
    with asyncio.Runner() as runner:
        links = [runner.run(Link.open(database)) for _ in range(2)]
        try:
            run_state_machine_as_test(
                lambda: Kernel(database, conn, runner, links),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=30,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for link in links:
                runner.run(link.close())
