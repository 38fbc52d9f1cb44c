"""Bugs, planted in processes that are started for it and nowhere else: the oracle has to raise the alarm at each.

A plant alters the text of our statements, or replaces a function, before anything runs. One that finds nothing to alter
says so: it has to follow what it breaks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable

import psycopg

import kept.jobs.store
import kept.schedules.runner
from kept.db.queries import Queries, in_schema
from kept.jobs.lanes import LaneBook
from kept.jobs.order import OrderBook
from kept.jobs.rows import StepReply
from kept.jobs.runner import JobsRunner
from kept.worker import pacing
from kept.worker.alarm import Alarm
from kept.worker.keeper import Keeper
from kept.worker.lease import Lease

Edit = tuple[str, str, str]  # statement, what stands there (a pattern for white space), what shall
ALIVE = """(select from kept.worker
             where id = %(worker)s and state = 'live' and lease_until > kept.now() and session = %(session)s
               for key share) alive"""
SETTLED = "j.id = any(array[d.id]) and j.attempt = d.attempt and j.worker = %(worker)s"
PARKED = "j.id = any(array[p.id]) and j.attempt = p.attempt and j.worker = %(worker)s"
SLOWLY = 0.3  # seconds that a decision takes on a slow machine
PLANTS: dict[str, Callable[[], None]] = {}


def planted(bug: Callable[[], None]) -> Callable[[], None]:
    PLANTS[bug.__name__] = bug
    return bug


def plant(names: Iterable[str]) -> None:
    """Break this process."""
    for name in names:
        PLANTS[name]()


def edited(text: str, edit: Edit, schema: str) -> str:
    """The statement with *edit* made, or ValueError if there is nothing to edit."""
    statement, old, new = edit
    pattern = r"\s+".join(map(re.escape, in_schema(old, schema).split()))
    found, count = re.subn(pattern, lambda _: in_schema(new, schema), text)
    if count != 1:
        raise ValueError(f"{statement}: {count} places like {old!r}; the plant has to follow the statement")
    return found


def edit(package: str, *edits: Edit) -> None:
    """Have *package* say something else from now on."""
    before = Queries.__init__

    def init(self: Queries, loaded: str, schema: str = "kept") -> None:
        before(self, loaded, schema)
        if loaded == package:
            for each in edits:
                self._statements[each[0]] = edited(self._statements[each[0]], each, schema)

    Queries.__init__ = init


@planted
def settle_without_the_fence() -> None:
    """Whoever settles, settles."""
    edit(
        "kept.jobs",
        ("complete", "and attempt = %(attempt)s::int and worker = %(worker)s::uuid", ""),
        ("step", SETTLED, "j.id = any(array[d.id])"),
    )


@planted
def fence_without_the_attempt() -> None:
    """The worker is fenced, but not from itself."""
    edit(
        "kept.jobs",
        ("complete", "and attempt = %(attempt)s::int and", "and"),
        ("step", "and j.attempt = d.attempt and", "and"),
    )


@planted
def claim_without_the_lease_check() -> None:
    """A worker whose lease is gone claims all the same: neither it nor the database looks."""
    Lease.secure = True
    names = ("claim", "step", "claim_ordered", "claim_suspects")
    edit("kept.jobs", *((name, ALIVE, "(select) alive") for name in names))


@planted
def reclaim_by_id() -> None:
    """What the dead had is taken back by its id, whoever has it now."""
    edit(
        "kept.jobs",
        ("held", "j.headers::text, j.payload::text, j.worker,", "j.headers::text, j.payload::text, %(worker)s::uuid,"),
        ("held", "where j.worker = %(worker)s", ""),
        ("step", PARKED, "j.id = any(array[p.id])"),
    )


@planted
def mark_before_effect() -> None:
    """A job is on record as done when its handler begins."""
    take = JobsRunner.take
    mark = """
        with gone as (delete from kept.job where id = any(%s) returning *)
        insert into kept.history (id, settled_at, created_at, claimed_at, worker, lane, priority, attempt, uncharged,
                                  state, payload)
        select id, kept.now(), created_at, claimed_at, worker, lane, priority, attempt, uncharged, 'done', payload
          from gone
    """

    def marked(self, jobs) -> None:
        if jobs:
            with psycopg.connect(os.environ["KEPT_DATABASE_URL"]) as conn:
                conn.execute(in_schema(mark, os.environ.get("KEPT_SCHEMA", "kept")), [[job.id for job in jobs]])
        take(self, jobs)

    JobsRunner.take = marked


@planted
def attempts_counted_on_failure_only() -> None:
    """Nobody counts an attempt whose process does not live to fail."""
    claims = ("claim", "step", "claim_ordered", "claim_suspects")
    failed = "suspect = p.suspect, attempt = j.attempt + (p.charged and not p.suspect)::int,"
    edit(
        "kept.jobs",
        *((name, "attempt = attempt + 1", "attempt = attempt") for name in claims),
        ("step", "suspect = p.suspect,", failed),
    )


@planted
def id_cursor_instead_of_row_state() -> None:
    """A worker goes on from the highest id it has seen."""
    cursor: dict[int, int] = {}
    params, read = kept.jobs.store.claim_params, StepReply.read

    def from_cursor(worker, session, wants, most):
        return params(worker, session, [want._replace(floor=cursor.get(want.lane, 0)) for want in wants], most)

    def advance(self):
        stepped = read(self)
        for job in stepped.claimed:
            cursor[job.lane] = max(job.id + 1, cursor.get(job.lane, 0))
        return stepped

    kept.jobs.store.claim_params, StepReply.read = from_cursor, advance


@planted
def lock_only_cron() -> None:
    """Whoever has the schedule's lock fires what it has found due, however long ago it looked."""
    edit(
        "kept.schedules",
        ("fire", "and s.revision = w.revision", ""),
        ("fire", "where o.slot > m.last_before or o.slot = m.queued_before", ""),
        ("fire", "where (d.job in (select job from recorded)) is true", "where d.job is not null"),
    )


@planted
def notify_trusted() -> None:
    """A worker that wants to be woken sleeps until it is."""
    pause = Alarm.pause

    async def until_rung(self, delay, *moments) -> None:
        if delay < pacing.LONG:
            await pause(self, delay, *moments)
        else:
            await self.sleep(3600)

    Alarm.pause = until_rung


@planted
def order_by_rows_skipped() -> None:
    """Jobs of an order key are claimed one by one, past those that somebody has."""
    serve, lanes = OrderBook.serve, LaneBook.serve
    edit("kept.jobs", ("claim", "and not l.ordered", ""), ("step", "and not l.ordered", ""))

    def unordered(self, served) -> None:
        lanes(self, served)
        self.apart = frozenset(lane for lane in self.apart if self._declared[lane].batch)

    OrderBook.serve = lambda self, _: serve(self, ())
    LaneBook.serve = unordered


@planted
def keeper_that_tells_nobody() -> None:
    """A worker's keeper sees its death, and leaves it to the end of the lease."""

    async def ends(self) -> None:
        """And that is all."""

    Keeper._hand_back = ends


# --- not a bug: a machine on which one shows


@planted
def slow_decisions() -> None:
    """It takes a while to decide on a slot."""
    decide = kept.schedules.runner.decide

    def slowly(standing, now):
        time.sleep(SLOWLY)
        return decide(standing, now)

    kept.schedules.runner.decide = slowly
