"""Claims jobs, has them run and settles them in batches: the jobs runner of a worker's tick."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import psycopg

from kept.errors import Unavailable
from kept.jobs import reports
from kept.jobs.attempt import Attempt, timed_out
from kept.jobs.context import Terms
from kept.jobs.model import DONE, NOTHING, Claimed, Leave, LostLease, Outcome, Released
from kept.jobs.reports import Finished
from kept.jobs.rows import Stepped, StepReply, Survey, Want
from kept.jobs.settling import Settling
from kept.jobs.slots import RunAlone, Slots
from kept.jobs.store import Unacceptable
from kept.jobs.text import message_of

STALE_AFTER = 1.0  # seconds a claimed job may wait in hand before it is given back
TIDY_UP = 5.0  # seconds for a cancelled handler to end; then its job is settled without it
LARGE = 100  # jobs: an answer that takes long enough to read that the next step is sent first
LINGER = 0.05  # seconds a step may go on with the next one; then others of the tick have their turn
TRIES = 5  # sendings of a step that somebody else's locks stopped


@dataclass(slots=True)
class Options:
    """What a runner needs to know of the settings."""

    concurrency: int = 10
    batch: int = 500
    result_limit: int = 1024**2


class Order(NamedTuple):
    """What one step is to do."""

    sent: list[Finished]
    wants: list[Want]
    most: int


@dataclass(slots=True, kw_only=True)
class JobsRunner(Settling):
    """Claims, runs and settles. Nothing here waits for time: whoever ticks decides when."""

    options: Options
    threads: Executor
    run_alone: RunAlone
    claiming: bool = True
    reserved: bool = False  # for a suspect, which must be alone in this very process: no other job is claimed
    exhausted: bool = False  # the last claim took all there was
    unsure: bool = False  # a step was sent and its answer did not come: jobs may be ours that we do not know
    _slots: Slots = field(init=False)
    _terms: dict[int, Terms] = field(default_factory=dict)  # by lane
    _budget: int | None = None
    _setbacks: int = 0  # steps in a row that did not get through: each makes the next one smaller

    def __post_init__(self) -> None:
        count = self.options.concurrency
        self._slots = Slots(count, self.threads, self._begin, self._ended, self.book.is_quick, self.wake)

    # --- what the tick asks

    @property
    def running(self) -> dict[int, Attempt]:
        """Attempts under way, by slot."""
        return self._slots.running

    @property
    def in_hand(self) -> int:
        """Jobs under our lease: running, waiting for a slot, or finished and not yet written."""
        written = len(self._finished) + len(self._unconfirmed) + len(self._missing)
        return len(self._slots.running) + len(self._slots.waiting) + written

    @property
    def has_room(self) -> bool:
        """Whether a job could start now."""
        return self._slots.idle > 0

    @property
    def stale_at(self) -> float | None:
        """When the job that waits longest is to be given back."""
        waiting = self._slots.waiting
        return waiting[0][1] + STALE_AFTER if waiting else None

    @property
    def runs_alone(self) -> bool:
        """Whether a suspect is running."""
        return self._slots.runs_alone

    def limit(self, items: int | None) -> None:
        """Claim at most *items* more jobs; None: no limit."""
        self._budget = items

    async def step(self) -> int:
        """Write what is finished and claim what there is room for; returns how many jobs were claimed.

        The answer to a large step is read after the next one was sent: the server does not wait for us to read.
        """
        await self._confirm()
        self._give_back_stale()
        order = self._order()
        if order is None:
            return 0
        reply = await self._send(order)
        claimed, until = reply.count, monotonic() + LINGER
        while reply.count >= LARGE and monotonic() < until and (following := self._order(coming=reply.count)):
            sending = asyncio.create_task(self._send(following))
            try:
                await self._take_in_soon(order, reply)
            except BaseException:
                sending.cancel()
                await asyncio.wait([sending])
                raise
            order, reply = following, await self._sent(following, sending)
            claimed += reply.count
        self._take_in(order, reply)
        self.exhausted = self.book.exhausted and reply.count < order.most
        if reply.count:
            await asyncio.sleep(0)  # handlers first; then the next step
        await self._look_for_missing()
        return claimed

    async def claim_suspect(self) -> bool:
        """Claim one job whose process died, if none runs alone yet, and run it alone."""
        if not self.claiming or self.runs_alone or not self.book.ids:
            return False
        lanes = random.sample(self.book.ids, len(self.book.ids))  # so that no lane's suspects wait for another's
        try:
            jobs = await self.store.claim_suspects(self.identity.worker, self.identity.session, lanes, 1)
        except BaseException:
            self.unsure = True
            raise
        if jobs:
            self.signals.report(reports.claimed(self.book, jobs))
        for job in jobs:
            self._slots.start_alone(self._begin(job), self.run_alone)
        return bool(jobs)

    def take(self, jobs: list[Claimed]) -> None:
        """Jobs under our lease, to be run as slots come free."""
        if self._budget is not None:
            self._budget -= len(jobs)
        if not jobs:
            return
        self.signals.report(reports.claimed(self.book, jobs))
        # Suspects are adopted after a lost reply; they run alone, so such a one is given back and claimed anew.
        self._release(job for job in jobs if job.suspect)
        self._slots.add(job for job in jobs if not job.suspect)

    def surveyed(self, survey: Survey, *, bottom: bool) -> None:
        self.book.surveyed(survey, bottom=bottom)

    # --- ending

    def expire(self) -> None:
        """Interrupt attempts whose time is over, again and again; give up those that do not listen."""
        now = monotonic()
        for slot, attempt in list(self.running.items()):
            if now >= attempt.deadline:
                attempt.interrupt(timed_out(attempt.declaration.timeout))
            if now >= attempt.told_at + TIDY_UP:
                self._give_up(slot)

    def release_waiting(self) -> int:
        """Give back what was claimed and has not started."""
        return self._release(self._slots.take_waiting())

    def interrupt_all(self, verdict: Outcome) -> int:
        """End every attempt with *verdict*."""
        for attempt in list(self.running.values()):
            attempt.interrupt(verdict)
        return len(self.running)

    def forget(self) -> int:
        """The lease is gone: nothing in hand is ours any more."""
        count = self.interrupt_all(LostLease())
        self._slots.waiting.clear()
        lost = [*self._finished, *self._unconfirmed.values(), *self._missing]
        self._finished.clear()
        self._unconfirmed.clear()
        self._missing.clear()
        for each in lost:
            self._lost(each.job)
        return count + len(lost)

    async def join(self, timeout: float) -> None:
        """Wait until no attempt runs; after *timeout* seconds those that do not listen are given up."""
        await self._slots.join(timeout)
        for slot in list(self.running):
            self._give_up(slot)

    def known(self) -> list[int]:
        """Ids of everything in hand under our present identity."""
        jobs = [attempt.job for attempt in self.running.values()] + [job for job, _ in self._slots.waiting]
        jobs += [each.job for each in (*self._finished, *self._unconfirmed.values())]
        return [job.id for job in jobs if job.worker == self.identity.worker]

    def unsettled(self) -> list[int]:
        """Ids of what is in hand and no statement of ours can have settled: the database must know them as ours."""
        jobs = [attempt.job for attempt in self.running.values() if not attempt.completed]
        jobs += [job for job, _ in self._slots.waiting] + [each.job for each in self._finished if not each.resent]
        return [job.id for job in jobs if job.worker == self.identity.worker]

    def _give_up(self, slot: int) -> None:
        """Settle a job whose handler does not end."""
        attempt = self._slots.give_up(slot)
        self._finish(attempt.job, attempt.verdict or LostLease(), attempt.duration, completed=attempt.completed)

    def _release(self, jobs: Iterable[Claimed]) -> int:
        """Give back what has not started: uncharged."""
        count = 0
        for count, job in enumerate(jobs, 1):  # noqa: B007  # how many there were
            self._finish(job, Released(), 0.0)
        return count

    # --- attempts

    def _begin(self, job: Claimed) -> Attempt:
        """The attempt that starts now; from here on this job is charged if we die."""
        lane = self.book.lane(job.lane)
        declaration = self.book.declaration(job.lane)
        terms = self._terms.get(job.lane)
        if terms is None or terms.lane is not lane:
            terms = Terms(lane, declaration.timeout, self.store.sql, self.options.result_limit)
            self._terms[job.lane] = terms
        self.marks.start(job.id)
        return Attempt(job, declaration, terms)

    def _ended(self, attempt: Attempt, outcome: Outcome, duration: float) -> None:
        if outcome is NOTHING:  # by far the most frequent
            self._finished.append(Finished(attempt.job, DONE, NOTHING, duration))
            self.wake()
        elif isinstance(outcome, LostLease) and attempt.verdict is None:
            # The handler says so. If it was misled, by an old snapshot say, the job must not stay in our name.
            self._unconfirmed[attempt.job.id] = Finished(attempt.job, Leave(), outcome, duration)
            self.wake()
        else:
            self._finish(attempt.job, outcome, duration, completed=attempt.completed)

    # --- steps

    def _order(self, coming: int = 0) -> Order | None:
        """What the next step is to do, when *coming* jobs more are ours already; None: nothing."""
        sent = self._finished[: max(1, self.options.batch >> self._setbacks)]
        wants, most = self._wants(coming)
        if not sent and not wants:
            return None
        del self._finished[: len(sent)]
        return Order(sent, wants, most)

    def _wants(self, coming: int) -> tuple[list[Want], int]:
        if not self.claiming or self.reserved or (self._budget is not None and self._budget <= coming):
            return [], 0
        if self._setbacks and self._finished:
            return [], 0  # first let go of what did not get through
        concurrency, batch = self.options.concurrency, self.options.batch
        idle = self._slots.idle - coming - max(0, len(self._finished) - batch)
        most = self.book.most(idle, concurrency=concurrency, batch=batch)
        if self._budget is not None:
            most = min(most, self._budget - coming)
        if most <= 0:
            return [], 0
        in_hand = [attempt.job.lane for attempt in self.running.values()] + [job.lane for job, _ in self._slots.waiting]
        return self.book.wants(idle, concurrency=concurrency, batch=batch, in_hand=in_hand), most

    async def _send(self, order: Order) -> StepReply | Stepped:
        """The database's answer. What is not known to be written stays in hand."""
        try:
            reply = await self._step(order)
        except BaseException:
            self._put_back(order.sent)
            self._setbacks += 1
            self.unsure = True
            raise
        self._setbacks = 0
        return reply

    async def _sent(self, order: Order, sending: asyncio.Task[StepReply | Stepped]) -> StepReply | Stepped:
        """The answer to a step that another task sent. It is not lost if we are told to stop when it has just come."""
        try:
            return await sending
        except asyncio.CancelledError:
            await asyncio.wait([sending])
            if not sending.cancelled() and sending.exception() is None:
                self._take_in(order, sending.result())
            else:
                self.unsure = True
            raise

    def _put_back(self, sent: list[Finished]) -> None:
        for each in sent:
            each.resent = True
        self._finished[:0] = sent

    async def _step(self, order: Order) -> StepReply | Stepped:
        worker, session = self.identity.worker, self.identity.session
        decisions = [(each.job, each.settlement) for each in order.sent]
        tries = TRIES
        while True:
            try:
                return await self.store.ask_step(worker, session, decisions, order.wants, order.most)
            except Unacceptable:  # a settlement that the server refuses
                lost = await self.store.settle(worker, decisions)
                known = [*self.known(), *(each.job.id for each in order.sent)]
                return Stepped(await self.store.adopt(worker, known), lost)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                tries -= 1  # it was rolled back whole, so it can be sent again; but not for ever
                if not tries:
                    raise

    async def _take_in_soon(self, order: Order, reply: StepReply | Stepped) -> None:
        """:meth:`_take_in` when the next step was sent, and then at once: these jobs are ours, and nobody knows yet."""
        try:
            await asyncio.sleep(0)
        finally:
            self._take_in(order, reply)

    def _take_in(self, order: Order, reply: StepReply | Stepped) -> None:
        """Go on from what a step brought."""
        try:
            stepped = reply.read()
        except Exception as error:  # what it claimed is ours all the same
            self._put_back(order.sent)
            self.unsure = True
            raise Unavailable(f"the answer to a step cannot be read: {message_of(error)}") from error
        self.book.claimed(order.wants, stepped.claimed, monotonic())
        self.take(stepped.claimed)
        settled = order.sent
        if stepped.lost:
            settled = [each for each in order.sent if each.job.id not in stepped.lost]
            self._missing += [each for each in order.sent if each.job.id in stepped.lost]
        self._settled(settled)

    def _give_back_stale(self) -> None:
        """A job that waits in hand behind slow ones is better off elsewhere; and its lane is not quick any more."""
        stale = self._slots.take_waiting(since=monotonic() - STALE_AFTER)
        for lane in {job.lane for job in stale}:
            self.book.finished(lane, [STALE_AFTER])
        self._release(stale)
