"""What the view shows: numbers read from Kept's tables, and from the ledger of effects for what is done."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from fleet import Member
from oracle import Tally

RATE_OVER = 3.0  # seconds

LANES = """
select l.queue,
       count(j.id) filter (where j.worker is null and j.due_at <= kept.now()),
       count(j.id) filter (where j.worker is null and j.due_at > kept.now()),
       count(j.worker),
       extract(epoch from kept.now() - min(j.due_at) filter (where j.worker is null and j.due_at <= kept.now()))::float8
  from kept.lane l left join kept.job j on j.lane = l.id
 group by l.queue order by l.queue"""

# A worker counts as live once its keeper watches over it: the keeper's connection shows that.
WORKERS = """
select w.pid, extract(epoch from w.lease_until - kept.now())::float8, count(j.id)
  from kept.worker w left join kept.job j on j.worker = w.id
 where w.state = 'live' and w.pid = any(%s)
   and exists (select from pg_stat_activity a where a.application_name = left('kept keeper ' || w.name, 63))
 group by w.id"""

# Of a dead worker's jobs that had started: how many there are, how many wait for their next attempt, and when
# the lease was given back and the last of them was claimed by somebody else.
TAKE_OVER = """
with held as (
  select id from kept.worker where pid = %(pid)s and started_at > %(since)s
), stale as (
  select l.job, l.attempt, l.at from kept.job_log l join held on l.worker = held.id where l.event = 'requeued:stale'
)
select (select count(*) from kept.worker w join held using (id) where w.state = 'live'),
       count(s.job),
       count(s.job) filter (where h.id is null and (j.worker is null or j.attempt <= s.attempt)),
       min(s.at), max(coalesce(h.claimed_at, j.claimed_at))
  from stale s left join kept.job j on j.id = s.job left join kept.history h on h.id = s.job"""

TOTALS = """
select (select count(*) from kept.history where state = 'done'),
       (select count(*) from kept.history where state = 'failed'),
       (select count(distinct job) from kept.job_log where event = 'requeued:stale')"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: what waits, what comes later, what runs, what is done and how fast."""

    name: str
    pending: int
    later: int
    running: int
    oldest: float  # seconds the oldest pending job has been due
    done: int
    rate: float


@dataclass(frozen=True, slots=True)
class Live:
    """One worker that has its lease."""

    running: int
    lease_left: float


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of the summary that Kept's tables tell."""

    done: int = 0
    failed: int = 0
    taken_over: int = 0
    waiting: frozenset[int] = frozenset()


@dataclass(slots=True)
class TakeOver:
    """What became of a killed worker's jobs."""

    member: Member
    killed_at: datetime
    jobs: int = 0
    given_back: float | None = None  # seconds after the kill
    running_again: float | None = None

    @property
    def over(self) -> bool:
        return self.given_back is not None and (not self.jobs or self.running_again is not None)


class Figures:
    """Reads them, on a connection of its own."""

    def __init__(self, conn: psycopg.Connection, effects: Tally) -> None:
        self._conn = conn
        self._effects = effects
        self._since = datetime.now(UTC)
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def lanes(self) -> list[Lane]:
        """All lanes, by name."""
        self._effects.update()
        now, done = time.monotonic(), dict(self._effects.counts)
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] < now - RATE_OVER:
            self._seen.popleft()
        then, before = self._seen[0]
        elapsed = max(now - then, 0.001)
        return [
            Lane(
                name, pending, later, running, oldest or 0.0, done.get(name, 0),
                (done.get(name, 0) - before.get(name, 0)) / elapsed,
            )
            for name, pending, later, running, oldest in self._conn.execute(LANES)
        ]  # fmt: skip

    def workers(self, members: list[Member]) -> dict[int, Live]:
        """Those of *members* that have a lease, by pid."""
        rows = self._conn.execute(WORKERS, [[member.pid for member in members]])
        return {pid: Live(running, left) for pid, left, running in rows}

    def follow(self, take_over: TakeOver) -> None:
        """See how far the jobs of a killed worker have got."""
        row = self._conn.execute(TAKE_OVER, {"pid": take_over.member.pid, "since": self._since}).fetchone()
        assert row is not None
        still_live, jobs, waiting, given_back, claimed = row
        if still_live:
            return
        take_over.jobs = jobs
        take_over.given_back = _seconds(take_over.killed_at, given_back)
        if jobs and not waiting:
            take_over.running_again = _seconds(take_over.killed_at, claimed)

    def unfinished(self) -> int:
        """Jobs that are not settled."""
        row = self._conn.execute("select count(*) from kept.job").fetchone()
        return row[0] if row else 0

    def totals(self) -> Totals:
        """The figures of the summary."""
        row = self._conn.execute(TOTALS).fetchone()
        assert row is not None
        waiting = frozenset(id for (id,) in self._conn.execute("select id from kept.job"))
        done, failed, taken_over = row
        return Totals(done, failed, taken_over, waiting)


def _seconds(since: datetime, moment: datetime | None) -> float:
    """The two were read from one machine's clock."""
    return max(0.0, ((moment or datetime.now(UTC)) - since).total_seconds())
