"""Runs claimed jobs and settles them in batches: the jobs runner of a worker's tick."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Protocol
from uuid import UUID

import psycopg

from kept.jobs import rules
from kept.jobs.attempt import Attempt, timed_out
from kept.jobs.context import Context
from kept.jobs.lanes import LaneBook
from kept.jobs.model import Claimed, Close, Completed, Leave, LostLease, Outcome, Park, Raised, Released
from kept.jobs.store import Decision, Stepped, Store, Survey, Want
from kept.jobs.text import detail_of, message_of
from kept.signals import JobLeaseLost, JobsClaimed, JobsSettled, PickUp, Settled, Signals

BREATH = 0.010  # seconds a consumer may keep the loop before others get a turn
STALE_AFTER = 1.0  # seconds a claimed job may wait in hand before it is given back


class Slots(Protocol):
    """Where it is written down which jobs have started, for whoever must tell when this process is dead."""

    def start(self, slot: int, job: int) -> None: ...
    def end(self, slot: int) -> None: ...


RunAlone = Callable[[Attempt], Awaitable[Outcome]]


@dataclass(slots=True)
class Running:
    """An attempt and when it must be over."""

    attempt: Attempt
    deadline: float


@dataclass(slots=True)
class Finished:
    """A settlement on its way to the database."""

    job: Claimed
    decision: Decision
    outcome: Outcome
    duration: float
    resent: bool = False  # a reply was lost: it may be settled already
    tolerated: bool = False  # the handler completed it itself and failed after that


@dataclass(slots=True)
class Identity:
    """Under which name we claim: the worker's uuid and its session number."""

    worker: UUID
    session: int = 0


@dataclass(slots=True)
class Options:
    """What a runner needs to know of the settings."""

    concurrency: int = 10
    batch: int = 500
    result_limit: int = 1024**2


@dataclass(slots=True)
class JobsRunner:
    """Claims, runs and settles. Nothing here waits for time: whoever ticks decides when."""

    store: Store
    book: LaneBook
    identity: Identity
    options: Options
    slots: Slots
    threads: Executor
    signals: Signals
    run_alone: RunAlone
    wake: Callable[[], None]
    claiming: bool = True
    running: dict[int, Running] = field(default_factory=dict)
    _waiting: deque[tuple[Claimed, float]] = field(default_factory=deque)
    _finished: list[Finished] = field(default_factory=list)
    _unconfirmed: dict[int, Finished] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _consumers: set[asyncio.Task[None]] = field(default_factory=set)
    _alone: asyncio.Task[None] | None = None
    _budget: int | None = None

    def __post_init__(self) -> None:
        self._free = list(range(self.options.concurrency, 0, -1))

    # --- what the tick asks

    @property
    def in_hand(self) -> int:
        """Jobs under our lease: running, waiting for a slot, or finished and not yet written."""
        return len(self.running) + len(self._waiting) + len(self._finished) + len(self._unconfirmed)

    @property
    def has_settlements(self) -> bool:
        return bool(self._finished or self._unconfirmed)

    @property
    def runs_alone(self) -> bool:
        """Whether a suspect is running."""
        return self._alone is not None

    @property
    def idle_slots(self) -> int:
        return len(self._free) - len(self._waiting)

    def limit(self, items: int | None) -> None:
        """Claim at most *items* more jobs; None: no limit."""
        self._budget = items

    async def step(self) -> int:
        """Write what is finished and claim what there is room for; returns how many jobs were claimed."""
        await self._confirm()
        self._give_back_stale()
        sent = self._finished[: self.options.batch]
        wants, most = self._wants()
        if not sent and not wants:
            return 0
        del self._finished[: len(sent)]
        try:
            stepped = await self._step(sent, wants, most)
        except BaseException:
            for each in sent:
                each.resent = True
            self._finished[:0] = sent
            raise
        await self._settled(sent, stepped.lost)
        self.book.claimed(wants, stepped.claimed)
        self.take(stepped.claimed)
        return len(stepped.claimed)

    async def claim_suspect(self) -> bool:
        """Claim one job whose process died, if none runs alone yet, and run it alone."""
        if not self.claiming or self._alone is not None or not self.book.ids:
            return False
        jobs = await self.store.claim_suspects(self.identity.worker, self.identity.session, self.book.ids, 1)
        self._report_claims(jobs)
        for job in jobs:
            self._start_alone(job)
        return bool(jobs)

    def take(self, jobs: list[Claimed]) -> None:
        """Jobs under our lease, to be run as slots come free."""
        now = monotonic()
        if self._budget is not None:
            self._budget -= len(jobs)
        self._report_claims(jobs)
        for job in jobs:
            if job.suspect:  # adopted after a lost reply: suspects run alone, so this one is claimed anew
                self._finish(job, Released(), 0.0)
            else:
                self._waiting.append((job, now))
        self._start_consumers()

    def surveyed(self, survey: Survey, *, bottom: bool) -> None:
        self.book.surveyed(survey, bottom=bottom)

    # --- ending

    def expire(self) -> None:
        """Interrupt attempts whose time is over. Again and again: a handler may swallow a cancellation."""
        now = monotonic()
        for running in list(self.running.values()):
            if now >= running.deadline:
                running.attempt.interrupt(timed_out(running.attempt.declaration.timeout))

    def release_waiting(self) -> int:
        """Give back what was claimed and has not started."""
        released = [job for job, _ in self._waiting]
        self._waiting.clear()
        for job in released:
            self._finish(job, Released(), 0.0)
        return len(released)

    def interrupt_all(self, verdict: Outcome) -> int:
        """End every attempt with *verdict*."""
        for running in list(self.running.values()):
            running.attempt.interrupt(verdict)
        return len(self.running)

    def forget(self) -> int:
        """The lease is gone: nothing in hand is ours any more."""
        count = self.interrupt_all(LostLease())
        self._waiting.clear()
        lost = self._finished + list(self._unconfirmed.values())
        self._finished.clear()
        self._unconfirmed.clear()
        for each in lost:
            self._report_lost(each.job)
        return count + len(lost)

    async def join(self, timeout: float) -> bool:
        """Wait until no attempt runs; False if some still do."""
        tasks = {*self._consumers, *([self._alone] if self._alone else [])}
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        return not pending

    def known(self) -> list[int]:
        """Ids of everything in hand."""
        in_hand = [*self.running, *(job.id for job, _ in self._waiting), *self._unconfirmed]
        return in_hand + [each.job.id for each in self._finished]

    # --- running

    def _start_consumers(self) -> None:
        while self._free and len(self._waiting) > 0 and len(self._consumers) < self.options.concurrency:
            if len(self._consumers) - len(self.running) >= len(self._waiting):
                return  # consumers already on their way will take them
            slot = self._free.pop()
            task = asyncio.create_task(self._consume(slot))
            self._consumers.add(task)
            task.add_done_callback(self._consumers.discard)

    async def _consume(self, slot: int) -> None:
        """Run waiting jobs until there are none: cheaper than a task for each."""
        breath = monotonic() + BREATH
        try:
            while self._waiting:
                job, _ = self._waiting.popleft()
                await self._run(slot, job)
                if monotonic() > breath:
                    await asyncio.sleep(0)
                    breath = monotonic() + BREATH
        finally:
            self._free.append(slot)
            self.wake()

    async def _run(self, slot: int, job: Claimed) -> None:
        attempt = self._attempt(job)
        started = perf_counter()
        self.running[job.id] = Running(attempt, monotonic() + attempt.declaration.timeout)
        self.slots.start(slot, job.id)
        try:
            outcome = await attempt.run(self.threads, result_limit=self.options.result_limit)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not strand the job
            outcome = Raised("internal_error", message_of(error), detail=detail_of(error))
        finally:
            del self.running[job.id]
        self.slots.end(slot)
        self._finish(job, outcome, perf_counter() - started, completed=attempt.context.completed)
        if attempt.leftover is not None:  # a thread cannot be stopped: its slot stays taken until it ends
            with contextlib.suppress(BaseException):
                await asyncio.wrap_future(attempt.leftover)

    def _start_alone(self, job: Claimed) -> None:
        attempt = self._attempt(job)
        self.running[job.id] = Running(attempt, monotonic() + attempt.declaration.timeout)
        self.slots.start(0, job.id)
        self._alone = asyncio.create_task(self._run_alone(attempt))

    async def _run_alone(self, attempt: Attempt) -> None:
        started = perf_counter()
        try:
            outcome = await self.run_alone(attempt)
        finally:
            self._alone = None
            del self.running[attempt.job.id]
            self.slots.end(0)
        self._finish(attempt.job, outcome, perf_counter() - started)

    def _attempt(self, job: Claimed) -> Attempt:
        lane = self.book.lane(job.lane)
        declaration = self.book.declaration(job.lane)
        context = Context(
            job, lane, timeout=declaration.timeout, sql=self.store.sql, limit=self.options.result_limit
        )
        return Attempt(job, lane, declaration, context)

    def _finish(self, job: Claimed, outcome: Outcome, duration: float, *, completed: bool = False) -> None:
        settlement = rules.settle(job, outcome, self.book.declaration(job.lane).retry, random.random())  # noqa: S311
        finished = Finished(job, (job, settlement), outcome, duration, tolerated=completed)
        if isinstance(outcome, LostLease):
            self._report_lost(job)
        elif isinstance(outcome, Completed):
            self._unconfirmed[job.id] = finished
        else:
            self._finished.append(finished)
            if isinstance(settlement, Park) and settlement.delay <= 0:
                self.book.lower((job.lane, job.priority), job.id)
        if not isinstance(outcome, Released):
            self.book.finished(job.lane, duration)
        self.wake()

    # --- settling

    def _wants(self) -> tuple[list[Want], int]:
        if not self.claiming or (self._budget is not None and self._budget <= 0):
            return [], 0
        concurrency, batch = self.options.concurrency, self.options.batch
        idle = self.idle_slots
        most = self.book.most(idle, concurrency=concurrency, batch=batch)
        if self._budget is not None:
            most = min(most, self._budget)
        return (self.book.wants(idle, concurrency=concurrency, batch=batch), most) if most > 0 else ([], 0)

    async def _step(self, sent: list[Finished], wants: list[Want], most: int) -> Stepped:
        worker, session = self.identity.worker, self.identity.session
        decisions = [each.decision for each in sent]
        try:
            return await self.store.step(worker, session, decisions, wants, most)
        except psycopg.DataError:
            return Stepped([], await self.store.settle(worker, decisions))

    async def _settled(self, sent: list[Finished], lost: frozenset[int]) -> None:
        if lost:
            lost = await self._really_lost([each for each in sent if each.job.id in lost])
        for each in sent:
            if each.job.id in lost and not each.tolerated:
                self._report_lost(each.job)
        settled = [self._as_settled(each) for each in sent if each.job.id not in lost]
        if settled:
            self.signals.report(JobsSettled(jobs=settled))

    async def _really_lost(self, missing: list[Finished]) -> frozenset[int]:
        """Those not settled by ourselves in a step whose reply was lost."""
        lost = frozenset(each.job.id for each in missing)
        resent = [(each.job.id, each.job.attempt) for each in missing if each.resent]
        return lost - await self.store.settled_by(self.identity.worker, resent) if resent else lost

    async def _confirm(self) -> None:
        """Check on jobs that handlers completed themselves: gone is good; still there means it was rolled back."""
        if not self._unconfirmed:
            return
        worker = self.identity.worker
        present = await self.store.present(worker, self._unconfirmed)
        gone = [self._unconfirmed.pop(id) for id in list(self._unconfirmed) if id not in present]
        if gone:
            self.signals.report(JobsSettled(jobs=[self._as_settled(each) for each in gone]))
        for id in await self.store.still_ours(worker, present) if present else ():
            each = self._unconfirmed.pop(id)
            message = "the handler returned after complete(), but its transaction was not committed"
            self._finish(each.job, Raised("completion_rolled_back", message), each.duration)

    def _give_back_stale(self) -> None:
        """A job that waits in hand behind slow ones is better off elsewhere."""
        oldest = monotonic() - STALE_AFTER
        while self._waiting and self._waiting[0][1] < oldest:
            job, _ = self._waiting.popleft()
            self._finish(job, Released(), 0.0)

    # --- reporting

    def _report_claims(self, jobs: list[Claimed]) -> None:
        if not jobs:
            return
        picked = []
        for job in jobs:
            lane = self.book.lane(job.lane)
            waited = (job.claimed_at - job.due_at).total_seconds()
            picked.append(PickUp(job.id, lane.queue, lane.task, job.attempt, waited))
        self.signals.report(JobsClaimed(jobs=picked))

    def _report_lost(self, job: Claimed) -> None:
        lane = self.book.lane(job.lane)
        self.signals.report(
            JobLeaseLost(job_id=job.id, queue=lane.queue, task=lane.task, attempt=job.attempt)
        )

    def _as_settled(self, each: Finished) -> Settled:
        job, settlement = each.decision
        lane = self.book.lane(job.lane)
        match settlement:
            case Close(state, code, reason, message):
                return Settled(
                    job.id, lane.queue, lane.task, job.attempt, state, code, reason, message, True, each.duration, None
                )
            case Park(delay, charged, _, note):
                code, message = (note.code, note.message) if note else (None, None)
                event = note.event if note else "released"
                return Settled(
                    job.id, lane.queue, lane.task, job.attempt, "pending", code, event, message, charged,
                    each.duration, delay,
                )  # fmt: skip
            case Leave():
                return Settled(
                    job.id, lane.queue, lane.task, job.attempt, "done", None, None, None, True, each.duration, None
                )
