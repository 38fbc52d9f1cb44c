"""Claims jobs, has them run and settles them in batches: the jobs runner of a worker's tick."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol
from uuid import UUID

import psycopg

from kept.db.wire import Ready, Sent
from kept.errors import Unavailable
from kept.jobs import reports, rules
from kept.jobs.attempt import Attempt, timed_out
from kept.jobs.context import Terms
from kept.jobs.lanes import LaneBook
from kept.jobs.model import DONE, NOTHING, Claimed, Completed, Leave, LostLease, Outcome, Park, Raised, Released
from kept.jobs.reports import Finished
from kept.jobs.slots import RunAlone, Slots
from kept.jobs.store import Stepped, StepReply, Store, Survey, Unacceptable, Want
from kept.jobs.text import message_of
from kept.signals import Signals

STALE_AFTER = 1.0  # seconds a claimed job may wait in hand before it is given back
TIDY_UP = 5.0  # seconds for a cancelled handler to end; then its job is settled without it
LARGE = 100  # jobs: an answer that takes long enough to read that the next step is sent first
LINGER = 0.05  # seconds a step may go on with the next one; then others of the tick have their turn
TRIES = 5  # sendings of a step that somebody else's locks stopped


class Marks(Protocol):
    """Where it is written down which jobs have started and are not settled, for whoever finds this process dead."""

    def start(self, job: int) -> None: ...
    def end(self, job: int) -> None: ...


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


class Order(NamedTuple):
    """What one step is to do."""

    sent: list[Finished]
    wants: list[Want]
    most: int
    early: Sent | None = None  # it has been sent already


@dataclass(slots=True)
class JobsRunner:
    """Claims, runs and settles. Nothing here waits for time: whoever ticks decides when."""

    store: Store
    book: LaneBook
    identity: Identity
    options: Options
    marks: Marks
    threads: Executor
    signals: Signals
    run_alone: RunAlone
    wake: Callable[[], None]
    claiming: bool = True
    reserved: bool = False  # for a suspect, which must be alone in this very process: no other job is claimed
    exhausted: bool = False  # the last claim took all there was
    park_until: float | None = None  # when the first of those that this runner parked comes back
    unsure: bool = False  # a step was sent and its answer did not come: jobs may be ours that we do not know
    _slots: Slots = field(init=False)
    _terms: dict[int, Terms] = field(default_factory=dict)  # by lane
    _finished: list[Finished] = field(default_factory=list)
    _unconfirmed: dict[int, Finished] = field(default_factory=dict)
    _missing: list[Finished] = field(default_factory=list)  # sent, and not settled by that
    _made_up: dict[str, tuple[Order, Ready | None]] = field(default_factory=dict)  # claims, by the hint they answer
    _early: Order | None = None  # the claim that was sent as soon as we were woken
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
        written = len(self._finished) + len(self._unconfirmed) + len(self._missing) + self.has_early
        return len(self._slots.running) + len(self._slots.waiting) + written

    @property
    def has_settlements(self) -> bool:
        return bool(self._finished or self._unconfirmed or self._missing or self._early)

    @property
    def has_early(self) -> bool:
        """Whether a claim is on its way that a step has to go on from; nobody else can use the connection before."""
        return self._early is not None

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

    def make_up(self, entries: Iterable[tuple[int, int]], *, deep: bool) -> None:
        """Make up the claims that wake-ups for these lanes and priorities will be answered with."""
        self._made_up.clear()
        if not self.claiming or self.reserved or self._budget is not None or self._slots.idle <= 0:
            return
        for entry in entries:
            want = self.book.early_want(
                entry, self._slots.idle, self.options.concurrency, self.options.batch, deep=deep
            )
            if want is not None:
                worker, session = self.identity.worker, self.identity.session
                claim = self.store.made_up_claim(worker, session, [want], want.want)
                self._made_up[f"{want.lane}:{want.priority}"] = (Order([], [want], want.want), claim)

    def claim_early(self, hint: str) -> None:
        """Send the claim made up for *hint*: while the server works on it, whoever ticks gets up.

        The next step goes on from it.
        """
        order, claim = self._made_up.get(hint, (None, None))
        if order is not None and claim is not None and self.claiming and not self.has_settlements:
            sent = claim.send()
            if sent is not None:
                self._early = order._replace(early=sent)

    def forget_early(self) -> None:
        """The connection that claims were to be sent on is gone: what one of them brought is to be adopted."""
        self._early = None
        self._made_up.clear()

    async def step(self) -> int:
        """Write what is finished and claim what there is room for; returns how many jobs were claimed.

        The answer to a large step is read after the next one was sent: the server does not wait for us to read.
        """
        await self._confirm()
        self._give_back_stale()
        order, self._early = self._early or self._order(), None
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

    def _finish(self, job: Claimed, outcome: Outcome, duration: float, *, completed: bool = False) -> None:
        settlement = rules.settle(job, outcome, self.book.declaration(job.lane).retry, random.random())  # noqa: S311
        finished = Finished(job, settlement, outcome, duration)
        if isinstance(outcome, LostLease):
            self._lost(job)
        elif completed or isinstance(outcome, Completed):
            # Its row may be locked by the handler's own transaction: a step must not wait for that.
            self._unconfirmed[job.id] = finished
        else:
            self._finished.append(finished)
            if isinstance(settlement, Park) and settlement.delay <= 0:
                self.book.lower((job.lane, job.priority), job.id)
        if isinstance(outcome, Released):
            self.marks.end(job.id)  # given back in good order: whoever has to tell for us must not charge it
        self.wake()

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
        tries, early = TRIES, order.early
        while True:
            try:
                if early is not None:
                    sent, early = early, None
                    return StepReply(await sent.reply(), worker, settles=False)
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

    # --- settled, lost, or neither

    def _settled(self, settled: list[Finished]) -> None:
        if settled:
            for each in settled:
                self.marks.end(each.job.id)
                if isinstance(each.settlement, Park) and each.settlement.delay > 0:
                    self.park_until = min(self.park_until or inf, monotonic() + each.settlement.delay)
            self._learn_pace(settled)
            self.signals.report(reports.settled(self.book, settled))

    async def _look_for_missing(self) -> None:
        """What a step did not settle is lost, unless an earlier step, whose reply was lost, had settled it."""
        if not self._missing:
            return
        lost = await self._really_lost(self._missing)
        missing, self._missing = self._missing, []
        self._settled([each for each in missing if each.job.id not in lost])
        for each in missing:
            if each.job.id in lost:
                self._lost(each.job)

    def _lost(self, job: Claimed) -> None:
        self.marks.end(job.id)
        self.signals.report(reports.lost(self.book, job))

    def _learn_pace(self, settled: list[Finished]) -> None:
        durations: defaultdict[int, list[float]] = defaultdict(list)
        for each in settled:
            if not isinstance(each.outcome, Released):
                durations[each.job.lane].append(each.duration)
        for lane, seconds in durations.items():
            self.book.finished(lane, seconds)

    async def _really_lost(self, missing: list[Finished]) -> frozenset[int]:
        """Those not settled by ourselves in a step whose reply was lost.

        What was closed then stands in history. What was parked may be anywhere by now; but as long as our lease
        lives, nobody but us can have moved it.
        """
        parked = {each.job.id for each in missing if each.resent and isinstance(each.settlement, Park)}
        resent = [(each.job.id, each.job.attempt) for each in missing if each.resent]
        lost = frozenset(each.job.id for each in missing) - parked
        return lost - await self.store.settled_by(self.identity.worker, resent) if resent else lost

    async def _confirm(self) -> None:
        """Check on jobs that handlers say are no longer ours to settle, because they completed them or lost them.

        Gone is good; still there means that the completion was rolled back, or the loss an error.
        """
        await self._look_for_missing()
        if not self._unconfirmed:
            return
        worker = self.identity.worker
        present = await self.store.present(worker, self._unconfirmed)
        gone = [self._unconfirmed.pop(id) for id in list(self._unconfirmed) if id not in present]
        for each in gone:
            self.marks.end(each.job.id)
            if isinstance(each.outcome, LostLease):
                self.signals.report(reports.lost(self.book, each.job))
        if gone:
            self.signals.report(reports.completed(self.book, gone))
        for id in await self.store.still_ours(worker, present) if present else ():
            each = self._unconfirmed.pop(id)
            self._finish(each.job, _unfounded(each.outcome), each.duration)

    def _give_back_stale(self) -> None:
        """A job that waits in hand behind slow ones is better off elsewhere; and its lane is not quick any more."""
        stale = self._slots.take_waiting(since=monotonic() - STALE_AFTER)
        for lane in {job.lane for job in stale}:
            self.book.finished(lane, [STALE_AFTER])
        self._release(stale)


def _unfounded(outcome: Outcome) -> Outcome:
    """What became of a job whose handler said it was settled or lost, and the database says otherwise."""
    match outcome:
        case LostLease():
            return Raised("lease_lost", "the handler raised LeaseLost, but the lease is still held")
        case Completed():
            message = "the handler returned after complete(), but its transaction was not committed"
            return Raised("completion_rolled_back", message)
        case _:
            return outcome
