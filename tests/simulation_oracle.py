"""What the world of jobs knows by itself: what was accepted, what handlers did, whose identities are whose. After every
step the tables are held against it. It is told, never asks Kept, and believes no table about what ought to be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row

Attempt = tuple[int, int]  # job, attempt

LIVE = "select id, lane, priority, worker, attempt, uncharged, suspect, ready, due_at, order_key from kept.job"
SETTLED = "select id, state, attempt, uncharged, worker, reason, code from kept.history"
WORKERS = "select id, state, lease_until from kept.worker"
DEAD = "select id from kept.worker where state <> 'live' or lease_until <= %s"
EFFECTS = "select job, attempt from kept.effect"
OUT_OF_THE_WAY = ("return", "skip", "fatal")
FAILING = ("raise", "unkept", "interrupted")  # interrupted: out of time


class Deed(NamedTuple):
    """A statement, or a transaction, that took effect: whose it was, what it said, and when it said that.

    *alone*: all it said was heard, and beside its transaction no other was open, whose rows it would have had to leave.
    """

    actor: str
    said: tuple[tuple[str, datetime], ...]
    alone: bool
    dead: frozenset[UUID] = frozenset()  # whose lease was over when it looked for such

    def when(self, what: str) -> datetime | None:
        return next((at for said, at in self.said if said == what), None)


@dataclass
class Accepted:
    """A job that a committed transaction made."""

    task: str
    key: str | None
    held_until: datetime


@dataclass
class Terms:
    """What is promised for the jobs of one lane."""

    task: str
    max_attempts: int
    ordered: bool
    aside: bool


@dataclass
class Oracle:
    """Facts of one world; :meth:`check` is the judge."""

    conn: psycopg.Connection
    lanes: dict[int, Terms] = field(default_factory=dict)
    accepted: dict[int, Accepted] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    owner: dict[UUID, str] = field(default_factory=dict)  # whose identity it is
    gone: set[str] = field(default_factory=set)  # actors that died or ended
    over: set[UUID] = field(default_factory=set)  # identities whose lease was over when their worker died
    begun: dict[Attempt, UUID] = field(default_factory=dict)
    ends: dict[Attempt, str] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)  # jobs that have a key, as producers were told
    faults: list[str] = field(default_factory=list)
    live: dict[int, Any] = field(default_factory=dict)
    settled: dict[int, Any] = field(default_factory=dict)
    workers: dict[UUID, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    # --- what the world tells

    def begins(self, job: int, attempt: int, worker: UUID) -> None:
        """A handler was called."""
        if (job, attempt) in self.begun:
            self.faults.append(f"3: attempt {attempt} at job {job} was begun twice")
        self.begun[job, attempt] = worker
        row = self.live.get(job)
        if row is not None and self.lanes[row.lane].ordered:
            self._in_order(row, worker)

    def _in_order(self, row: Any, worker: UUID) -> None:
        for other in self.live.values():
            if (other.lane, other.order_key) == (row.lane, row.order_key) and other.id < row.id:
                end, terms = self.ends.get((other.id, other.attempt)), self.lanes[other.lane]
                spent = terms.aside or other.attempt - other.uncharged >= terms.max_attempts
                if other.worker != worker or not (end in OUT_OF_THE_WAY or (end in FAILING and spent)):
                    self.faults.append(f"3: job {row.id} was begun before job {other.id} of the same order key")

    def ended(self, job: int, attempt: int, how: str) -> None:
        self.ends.setdefault((job, attempt), how)

    def told(self, id: int, made: Accepted, *, created: bool, now: datetime) -> None:
        """A producer was told, before it commits, that this is the job it has made, or that has its key."""
        holders = [id for id, each in self.accepted.items() if made.key and each.key == made.key]
        held = [each for each in holders if each in self.live or self.accepted[each].held_until > now]
        if created and held:
            self.faults.append(f"1: the key {made.key} is held by job {held}, and job {id} was made all the same")
        if not created:
            self.named.add(id)  # whoever had to wait for its commit hears of it together with us

    # --- what must hold

    def check(self, deeds: list[Deed], *, furthest: datetime) -> None:
        """Compare the tables with what is known, and with what they said before *deeds*."""
        assert not self.faults, "; ".join(self.faults)
        unknown = self.named - set(self.accepted)
        assert not unknown, f"1: a key was answered with job {unknown}, which nobody has committed"
        live, settled, workers = self._read()
        self._nothing_lost_nothing_made_up(live, settled)
        acted = [deed for deed in deeds if deed.said]
        for id, row in live.items():
            before = self.live.get(id)
            if row.worker is not None and (before is None or before.worker is None or before.attempt != row.attempt):
                self._claimed(row, before, acted, furthest)
            elif before is not None and row != before and row.worker is None:
                self._came_back(row, before, acted)
        for id, record in settled.items():
            if id not in self.settled:
                self._closed(record, self.live.get(id), acted)
            elif record != self.settled[id]:
                raise AssertionError(f"2: the record of job {id} changed: {self.settled[id]} became {record}")
        for id, known in workers.items():
            before = self.workers.get(id)
            if before is not None and before.state != "live" and known.state == "live":
                raise AssertionError(f"4: the identity {id} was lost and lives again")
        self.live, self.settled, self.workers = live, settled, workers
        for deed in acted:
            self._taken_over(deed)
        self._effects()

    def _read(self) -> tuple[dict[int, Any], dict[int, Any], dict[UUID, Any]]:
        found = []
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            for query in (LIVE, SETTLED, WORKERS):
                rows = cursor.execute(query).fetchall()
                byid = {row.id: row for row in rows}
                assert len(byid) == len(rows), f"2: something is there twice: {rows}"
                found.append(byid)
        return found[0], found[1], found[2]

    def _nothing_lost_nothing_made_up(self, live: dict[int, Any], settled: dict[int, Any]) -> None:
        there = set(live) | set(settled)
        assert not set(self.accepted) - there, f"2: lost: {sorted(set(self.accepted) - there)}"
        assert not there - set(self.accepted), f"1: nobody committed these: {sorted(there - set(self.accepted))}"
        both = set(live) & set(settled)
        assert not both, f"2: both live and settled: {sorted(both)}"

    def _claimed(self, row: Any, before: Any, deeds: list[Deed], furthest: datetime) -> None:
        self.counts["claimed"] += 1
        if before is not None and len(deeds) == 1:
            assert before.worker is None, f"3: job {row.id} was taken from {before.worker} while it held it: {deeds}"
            assert row.attempt == before.attempt + 1, f"5: {before} became {row}"
            assert row.uncharged == before.uncharged, f"5: {before} became {row}"
            assert row.lane not in self.paused, f"job {row.id} was claimed from a paused lane"
        assert row.due_at <= furthest, f"job {row.id} was claimed before it was due"
        for deed in deeds:
            if self.owner.get(row.worker) == deed.actor and (lease := self.workers.get(row.worker)):
                alive = lease.state == "live" and lease.lease_until > deed.said[-1][1]
                assert alive or len(deeds) > 1, f"3: job {row.id} was claimed under a lease that was gone: {lease}"

    def _came_back(self, row: Any, before: Any, deeds: list[Deed]) -> None:
        assert row.attempt == before.attempt, f"5: {before} became {row}"
        if before.worker is None:
            assert row.uncharged == before.uncharged, f"5: {before} became {row}"
            return
        if len(deeds) != 1:
            return  # one had to wait for the other: who did what cannot be told
        free = row.uncharged - before.uncharged
        allowed, why = self._may_come_back(before, deeds[0])
        self.counts[f"back: {why}"] += 1
        assert free in allowed, f"5: job {row.id} came back ({why}), and {free} was taken off: {before} by {deeds[0]}"

    def _may_come_back(self, before: Any, deed: Deed) -> tuple[set[int], str]:
        """What may be taken off its charges, and why it is back."""
        at = (before.id, before.attempt)
        end, begun, holder = self.ends.get(at), at in self.begun, self.owner.get(before.worker)
        if deed.when("lose_expired"):
            self._was_expired(before, deed)
            return {0}, "expired"
        if deed.when("lose") or deed.when("held"):
            if holder == deed.actor:
                return {1}, "fenced"
            assert holder in self.gone, f"4: job {before.id} was handed back while its worker {holder} lives: {deed}"
            # Who gives up a lease that is over lets go of what has ended under it, and may die before it says so.
            either = end == "interrupted" or (end is not None and before.worker in self.over)
            return ({0, 1} if either else {0} if begun else {1}), "handed back"
        assert holder == deed.actor, f"4: {deed} moved job {before.id}, which {holder} holds: {before}"
        if not begun:
            return {1}, "released"
        assert end is not None, f"4: job {before.id} was put back while attempt {before.attempt} still runs: {deed}"
        charged = before.attempt - before.uncharged
        if end in ("raise", "unkept"):
            assert charged < self.lanes[before.lane].max_attempts, f"5: {before} had no attempt left"
        assert end in ("defer", "raise", "unkept", "interrupted"), f"4: {before} came to {end} and was put back"
        return {"defer": {1}, "interrupted": {0, 1}}.get(end, {0}), end

    def _was_expired(self, before: Any, deed: Deed) -> None:
        lease, at = self.workers.get(before.worker), deed.when("lose_expired")
        assert lease is None or lease.state == "lost" or (at is not None and lease.lease_until <= at), (
            f"4: job {before.id} was taken from a live worker: {lease} at {at}"
        )

    def _taken_over(self, deed: Deed) -> None:
        """Whoever looks for the dead takes back all that they held, at once."""
        if deed.alone and deed.when("lose_expired"):
            self.counts["looked for the dead"] += 1
            left = [row.id for row in self.live.values() if row.worker in deed.dead]
            assert not left, f"6: {left} are still in the name of the dead after {deed}"

    def looked_below(self, floors: Mapping[tuple[int, int], int]) -> None:
        """A worker has just looked below its *floors*: what it may claim is above them, by lane and priority."""
        self.counts["looked below"] += 1
        for row in self.live.values():
            if row.worker is None and row.ready and row.lane not in self.paused and not self.lanes[row.lane].ordered:
                floor = floors.get((row.lane, row.priority))
                assert floor is not None and floor <= row.id, f"13: {row} is hidden by the floor {floor}"

    def dead(self, now: datetime) -> frozenset[UUID]:
        """Whose lease is over, as everybody can see."""
        return frozenset(row[0] for row in self.conn.execute(DEAD, [now]))

    def _closed(self, record: Any, before: Any, deeds: list[Deed]) -> None:
        self.counts[record.state] += 1
        if record.state == "cancelled":
            assert record.id in self.cancelled, f"nobody cancelled job {record.id}"
            return
        if before is None or len(deeds) != 1:
            return
        deed, charged = deeds[0], before.attempt - before.uncharged
        assert before.worker is not None, f"4: job {record.id} was settled, and nobody held it: {before} by {deed}"
        assert (record.attempt, record.uncharged) == (before.attempt, before.uncharged), f"5: {before} became {record}"
        assert record.worker == before.worker, f"4: {record.worker} settled what {before.worker} held"
        most = self.lanes[before.lane].max_attempts
        if record.reason == "worker_died":
            assert before.suspect and charged >= most, f"5: {before} is innocent, or had attempts left"
            return
        assert deed.actor == self.owner.get(record.worker), f"4: {deed} settled what {before.worker} held"
        end = self.ends.get((record.id, record.attempt))
        assert end is not None, f"4: job {record.id} was settled, but attempt {record.attempt} has not ended: {deed}"
        expected = {"return": "done", "complete": "done", "skip": "skipped"}.get(end, "failed")
        assert record.state == expected, f"4: attempt {record.attempt} came to {end}, and job {record.id} is {record}"
        if expected == "failed" and end != "fatal":
            assert end in FAILING and charged >= most, f"5: {before} came to {end}, and had attempts left"

    def _effects(self) -> None:
        rows = Counter(self.conn.execute(EFFECTS).fetchall())
        for (job, attempt), count in rows.items():
            record = self.settled.get(job)
            assert count == 1 and record is not None and (record.state, record.attempt) == ("done", attempt), (
                f"8: an effect of attempt {attempt} at job {job} was committed {count} times, and the job is {record}"
            )
        kept = {id for id, record in self.settled.items() if self.ends.get((id, record.attempt)) == "complete"}
        assert kept == {job for job, _ in rows}, f"8: completed {kept}, with effects {rows}"

    # --- at the end

    def overdue(self, now: datetime, grace: timedelta) -> list[int]:
        """Jobs that a worker holds whose lease ran out *grace* ago."""
        late = {id for id, each in self.workers.items() if each.state != "live" or each.lease_until + grace <= now}
        return [row.id for row in self.live.values() if row.worker in late]

    def due(self, now: datetime) -> set[int]:
        """Jobs that anybody with room may claim."""
        heads: dict[tuple[int, str], int] = {}
        for row in self.live.values():
            if row.order_key is not None:
                heads[row.lane, row.order_key] = min(row.id, heads.get((row.lane, row.order_key), row.id))
        return {
            row.id
            for row in self.live.values()
            if row.worker is None and not row.suspect and row.due_at <= now
            if row.order_key is None or heads[row.lane, row.order_key] == row.id
        }
