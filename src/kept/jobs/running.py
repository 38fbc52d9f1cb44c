"""What is under way: attempts in their slots, batches in theirs, and how each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from kept.jobs.attempt import Attempt, timed_out
from kept.jobs.batches import Batch, Batches
from kept.jobs.context import Terms
from kept.jobs.model import DONE, NOTHING, Claimed, Leave, LostLease, Outcome, Released
from kept.jobs.reports import Finished
from kept.jobs.rules import is_out_of_the_way
from kept.jobs.settling import Settling
from kept.jobs.slots import RunAlone, Slots

STALE_AFTER = 1.0  # seconds a claimed job may wait in hand before it is given back
TIDY_UP = 5.0  # seconds for a cancelled handler to end; then its job is settled without it


@dataclass(slots=True)
class Options:
    """What a runner needs to know of the settings."""

    concurrency: int = 10
    batch: int = 500
    result_limit: int = 1024**2


@dataclass(slots=True, kw_only=True)
class Running(Settling):
    """Jobs under our lease, from their claim to the end of their attempt."""

    options: Options
    threads: Executor
    run_alone: RunAlone
    _slots: Slots = field(init=False)
    _batches: Batches = field(init=False)
    _terms: dict[int, Terms] = field(default_factory=dict)  # by lane

    def __post_init__(self) -> None:
        count = self.options.concurrency
        self._slots = Slots(count, self.threads, self._begin, self._ended, self.book.is_quick, self.wake)
        self._batches = Batches(self.book.declaration, self._begin_batch, self._answered)

    # --- what the tick asks

    @property
    def running(self) -> dict[int, Attempt]:
        """Attempts under way, by slot."""
        return self._slots.running

    @property
    def in_hand(self) -> int:
        """Jobs under our lease: running, waiting for a slot, finished and not yet written, or on their way to us."""
        written = len(self._finished) + len(self._unconfirmed) + len(self._missing) + self.has_early
        return len(self._slots.running) + len(self._slots.waiting) + len(self._batches) + written

    @property
    def has_room(self) -> bool:
        """Whether a job could start now."""
        return self._slots.idle > 0 or any(self._batches.room(self.book.batched).values())

    @property
    def stale_at(self) -> float | None:
        """When the job that waits longest is to be given back."""
        waiting, since = self._slots.waiting, self._batches.stale_from
        if waiting:
            since = min(waiting[0][1], since or inf)
        return None if since is None else since + STALE_AFTER

    @property
    def runs_alone(self) -> bool:
        """Whether a suspect is running."""
        return self._slots.runs_alone

    # --- ending

    def expire(self) -> None:
        """Interrupt attempts whose time is over, again and again; give up those that do not listen."""
        now = monotonic()
        for slot, attempt in list(self.running.items()):
            if now >= attempt.deadline:
                attempt.interrupt(timed_out(attempt.declaration.timeout))
            if now >= attempt.told_at + TIDY_UP:
                self._give_up(slot)
        for number, batch in list(self._batches.running.items()):
            if now >= batch.deadline:
                batch.interrupt(timed_out(batch.declaration.timeout))
            if now >= batch.told_at + TIDY_UP:
                self._give_up_batch(number)

    def release_waiting(self) -> int:
        """Give back what was claimed and has not started."""
        return self._release([*self._slots.take_waiting(), *self._batches.take_waiting()])

    def interrupt_all(self, verdict: Outcome) -> int:
        """End every attempt with *verdict*."""
        attempts = [*self.running.values(), *self._batches.running.values()]
        for attempt in attempts:
            attempt.interrupt(verdict)
        return len(self.running) + sum(len(batch.jobs) for batch in self._batches.running.values())

    async def let_go(self, timeout: float) -> int:
        """The lease is gone: nothing in hand is ours any more, however handlers end; how many jobs that were."""
        count = self.interrupt_all(LostLease()) + self._forget()
        await self.join(timeout)
        self._forget()  # what came to another verdict: one that was told to stop, for its time, before the lease went
        return count

    def _forget(self) -> int:
        """Drop what has not started, and what is finished and not written."""
        self._slots.take_waiting()
        self._batches.take_waiting()
        lost = [*self._finished, *self._unconfirmed.values(), *self._missing]
        self._finished.clear()
        self._unconfirmed.clear()
        self._missing.clear()
        for each in lost:
            self._lost(each.job)
        return len(lost)

    async def join(self, timeout: float) -> None:
        """Wait until no attempt runs; after *timeout* seconds those that do not listen are given up."""
        await asyncio.gather(self._slots.join(timeout), self._batches.join(timeout))
        for slot in list(self.running):
            self._give_up(slot)
        for number in list(self._batches.running):
            self._give_up_batch(number)

    def known(self) -> list[int]:
        """Ids of everything in hand under our present identity."""
        jobs = [attempt.job for attempt in self.running.values()] + self._not_started()
        jobs += [job for batch in self._batches.running.values() for job in batch.jobs]
        jobs += [each.job for each in (*self._finished, *self._unconfirmed.values())]
        return [job.id for job in jobs if job.worker == self.identity.worker]

    def unsettled(self) -> list[Claimed]:
        """What is in hand and no statement of ours can have settled; but its handler may have completed it."""
        jobs = [attempt.job for attempt in self.running.values()]
        jobs += [job for batch in self._batches.running.values() for job in batch.jobs]
        jobs += self._not_started() + [each.job for each in self._finished if not each.resent]
        return [job for job in jobs if job.worker == self.identity.worker]

    def _not_started(self) -> list[Claimed]:
        return self._slots.claimed() + self._batches.claimed()

    def _give_up(self, slot: int) -> None:
        """Settle a job whose handler does not end."""
        attempt = self._slots.give_up(slot)
        verdict = attempt.verdict or LostLease()
        self._finish(attempt.job, verdict, attempt.duration, completed=attempt.completed)
        self._cut_short(attempt, verdict)

    def _give_up_batch(self, number: int) -> None:
        """Settle the jobs of a batch whose handler does not end."""
        batch = self._batches.give_up(number)
        self._answered(batch, [batch.verdict or LostLease()] * len(batch.jobs), batch.duration)

    def _release(self, jobs: Iterable[Claimed]) -> int:
        """Give back what has not started: uncharged."""
        count = 0
        for count, job in enumerate(jobs, 1):  # noqa: B007  # how many there were
            self._finish(job, Released(), 0.0)
        return count

    def _give_back_stale(self) -> None:
        """A job that waits in hand behind slow ones is better off elsewhere; and its lane is not quick any more."""
        since = monotonic() - STALE_AFTER
        stale = self._slots.take_waiting(since)
        for lane in {job.lane for job in stale}:
            self.book.finished(lane, [STALE_AFTER])
        self._release([*stale, *self._batches.take_waiting(since)])

    # --- attempts

    def _begin(self, job: Claimed) -> Attempt:
        """The attempt that starts now; from here on this job is charged if we die."""
        terms = self._terms.get(job.lane)
        if terms is None or terms.lane is not self.book.lane(job.lane):
            terms = self._new_terms(job.lane)
        self.marks.start(job.id)
        return Attempt(job, self.book.declaration(job.lane), terms)

    def _begin_batch(self, jobs: list[Claimed]) -> Batch:
        """:meth:`_begin` for several."""
        lane = jobs[0].lane
        for job in jobs:
            self.marks.start(job.id)
        return Batch(job=jobs[0], declaration=self.book.declaration(lane), terms=self._new_terms(lane), jobs=jobs)

    def _begin_alone(self, job: Claimed) -> Attempt:
        """:meth:`_begin`, whatever the handler takes."""
        return self._begin_batch([job]) if self.book.declaration(job.lane).batch else self._begin(job)

    def _new_terms(self, lane: int) -> Terms:
        timeout = self.book.declaration(lane).timeout
        terms = self._terms[lane] = Terms(self.book.lane(lane), timeout, self.store.sql, self.options.result_limit)
        return terms

    def _ended(self, attempt: Attempt, outcome: Outcome, duration: float) -> None:
        if outcome is NOTHING:  # by far the most frequent
            self._finished.append(Finished(attempt.job, DONE, NOTHING, duration))
            self.wake()
        elif not self._concluded(attempt, attempt.job, outcome, duration) or attempt.leftover is not None:
            self._cut_short(attempt, outcome)

    def _answered(self, batch: Batch, outcomes: list[Outcome], duration: float) -> None:
        for job, outcome in zip(batch.jobs, outcomes, strict=True):
            if outcome is NOTHING:
                self._finished.append(Finished(job, DONE, NOTHING, duration))
            else:
                self._concluded(batch, job, outcome, duration)
        self.wake()

    def _concluded(self, attempt: Attempt, job: Claimed, outcome: Outcome, duration: float) -> bool:
        """Decide on *job*; whether those behind it, of the same order key, may go on."""
        if isinstance(outcome, LostLease) and attempt.verdict is None:
            # The handler says so. If it was misled, by an old snapshot say, the job must not stay in our name.
            self._unconfirmed[job.id] = Finished(job, Leave(), outcome, duration)
            self.wake()
            return False
        settlement = self._finish(job, outcome, duration, completed=attempt.completed)
        # What the handler settled itself may yet turn out to stand there.
        return is_out_of_the_way(settlement) and not attempt.completed

    def _cut_short(self, attempt: Attempt, outcome: Outcome) -> None:
        """Give back what was to run after this attempt: its job is still in the way, or its thread."""
        if attempt.rest:
            behind = list(attempt.rest)
            attempt.rest.clear()
            self.book.order.cut_short(attempt.job.lane)
            if not isinstance(outcome, LostLease) or attempt.verdict is None:  # else they are not ours any more
                self._release(behind)
