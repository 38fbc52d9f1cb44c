"""Claims jobs, has them run and settles them in batches: the jobs runner of a worker's tick."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import psycopg

from kept.db.wire import Ready, Sent
from kept.errors import Unavailable
from kept.jobs import reports
from kept.jobs.model import Claimed
from kept.jobs.order import LOOKS
from kept.jobs.reports import Finished
from kept.jobs.rows import Ordered, OrderWant, Stepped, StepReply, Survey, Want
from kept.jobs.running import Running
from kept.jobs.slots import Run
from kept.jobs.store import Unacceptable
from kept.jobs.text import message_of

T = TypeVar("T")

LARGE = 100  # jobs: an answer that takes long enough to read that the next step is sent first
LINGER = 0.05  # seconds a step may go on with the next one; then others of the tick have their turn
SUSPECTS, SOON = 50, 0.05  # suspects claimed at once, at most, and seconds in which they should be over
TRIES = 5  # sendings of a step that somebody else's locks stopped


class Order(NamedTuple):
    """What one step is to do."""

    sent: list[Finished]
    wants: list[Want]
    most: int
    early: Sent | None = None  # it has been sent already


@dataclass(slots=True, kw_only=True)
class JobsRunner(Running):
    """Claims, runs and settles. Nothing here waits for time: whoever ticks decides when."""

    secure: Callable[[], bool] = lambda: True  # whether our lease is sure to last for what is begun now
    claiming: bool = True
    reserved: bool = False  # for a suspect, which must be alone in this very process: no other job is claimed
    exhausted: bool = False  # the last claim took all there was
    unsure: bool = False  # a step was sent and its answer did not come: jobs may be ours that we do not know
    _made_up: dict[str, tuple[Order, Ready | None]] = field(default_factory=dict)  # claims, by the hint they answer
    _early: Order | None = None  # the claim that was sent as soon as we were woken
    _budget: int | None = None
    _suspects: int = 1  # to claim at once
    _setbacks: int = 0  # steps in a row that did not get through: each makes the next one smaller

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
        if order is not None and claim is not None and self._may_claim and not self.has_settlements:
            sent = claim.send()
            if sent is not None:
                self._early, self.has_early = order._replace(early=sent), True

    def forget_early(self) -> None:
        """The connection that claims were to be sent on is gone: what one of them brought is to be adopted."""
        self._early, self.has_early = None, False
        self._made_up.clear()

    async def step(self) -> int:
        """Write what is finished and claim what there is room for; returns how many jobs were claimed."""
        await self._confirm()
        self._give_back_stale()
        claimed = await self._settle_and_claim()
        if self.book.apart:
            if claimed:
                self.book.order.passed_over()
            claimed += await self._claim_apart()
        await self._look_for_missing()
        return claimed

    async def _settle_and_claim(self) -> int:
        """A step, or several: the answer to a large one is read after the next was sent. The server does not wait."""
        order, self._early, self.has_early = self._early or self._order(), None, False
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
        return claimed

    async def claim_suspects(self) -> int:
        """Claim jobs whose process died, if none runs alone yet, and run them alone; how many."""
        if not self.claiming or not self.secure() or self.runs_alone or not self.book.ids or self._left <= 0:
            return 0
        self._suspects = self._more_suspects()
        most = int(min(self._suspects, self._left))
        lanes = random.sample(self.book.ids, len(self.book.ids))  # so that no lane's suspects wait for another's
        try:
            jobs = await self.store.claim_suspects(self.identity.worker, self.identity.session, lanes, most)
        except BaseException:
            self.unsure = True
            raise
        if jobs and self._taken(jobs):
            self._slots.start_alone(jobs, self._begin_alone, self.run_alone)
        return len(jobs)

    def _more_suspects(self) -> int:
        """How many to claim at once: more, as long as they are over soon. A dead host leaves hundreds."""
        return min(SUSPECTS, 2 * self._suspects) if self._slots.alone_took < SOON else max(1, self._suspects // 2)

    def take(self, jobs: list[Claimed]) -> None:
        """Jobs under our lease, to be run as slots come free."""
        if not jobs or not self._taken(jobs):
            return
        # Suspects are adopted after a lost reply; they run alone, so such a one is given back and claimed anew.
        self._release(job for job in jobs if job.suspect)
        if self.book.apart:
            jobs = self._taken_apart(jobs)
        self._slots.add(job for job in jobs if not job.suspect)

    def _taken(self, jobs: list[Claimed]) -> bool:
        """Take note of a claim. False if it came too late: it is given back, before others run it as well."""
        if self._budget is not None:
            self._budget -= len(jobs)
        self.signals.report(reports.claimed(self.book, jobs))
        in_time = self.secure()
        if not in_time:
            self._release(jobs)
        return in_time

    def _taken_apart(self, jobs: list[Claimed]) -> list[Claimed]:
        """Put aside what is not for the slots. Jobs with an order were adopted: as with suspects, but nobody knows
        whether another job comes before them."""
        jobs = [job for job in jobs if not job.suspect]
        self._release(job for job in jobs if job.lane in self.book.order)
        self._batches.add(job for job in jobs if job.lane in self.book.apart and job.lane not in self.book.order)
        return [job for job in jobs if job.lane not in self.book.apart]

    def surveyed(self, survey: Survey, *, bottom: bool) -> None:
        self.book.surveyed(survey, bottom=bottom)
        if bottom:
            self.book.order.look(monotonic())

    # --- lanes that are claimed by themselves

    @property
    def looking(self) -> bool:
        """Whether to claim of ordered lanes once more: surveys tell nothing of them."""
        return self._may_claim and self._left > 0 and self.book.order.looking

    @property
    def _may_claim(self) -> bool:
        return self.claiming and not self.reserved and self.secure()

    @property
    def _left(self) -> float:
        """How many more jobs may be claimed."""
        return inf if self._budget is None else self._budget

    async def _claim_apart(self) -> int:
        """Claim of ordered lanes, and of those that are run in batches."""
        left = self._left
        if not self._may_claim or left <= 0 or (self._setbacks and self._finished):
            return 0
        if len(self._finished) > self.options.batch:
            return 0  # settle first: what was done and is not written is done again if we die
        room = {lane: int(min(room, left)) for lane, room in self._batches.room(self.book.batched).items()}
        wants = self.book.batch_wants(room)
        claimed = await self._claim_batches(wants, sum(want.want for want in wants)) if wants else 0
        ordered = self._order_wants(room, left - claimed)
        claimed += await self._claim_ordered(ordered) if ordered else 0
        self.exhausted = (self.exhausted or self.book.apart >= set(self.book.ids)) and not claimed and not self.looking
        return claimed

    async def _claim_batches(self, wants: list[Want], most: int) -> int:
        worker, session = self.identity.worker, self.identity.session
        stepped = await self._surely(lambda: self.store.step(worker, session, [], wants, most))
        self.book.brought(wants, stepped.claimed, monotonic())
        self.take(stepped.claimed)
        return stepped.count

    def _order_wants(self, room: Mapping[int, int], left: float) -> list[OrderWant]:
        concurrency, batch = self.options.concurrency, self.options.batch
        in_hand = [attempt.job.lane for attempt in self.running.values()] + [job.lane for job in self._slots.claimed()]
        wants = []
        for want in self.book.order_wants(
            self._slots.idle, room, concurrency=concurrency, batch=batch, in_hand=in_hand
        ):
            if left > 0:
                wants.append(want._replace(want=int(min(want.want, left))))
                left -= want.want
        return wants

    async def _claim_ordered(self, wants: list[OrderWant]) -> int:
        began = monotonic()
        worker, session = self.identity.worker, self.identity.session
        brought = await self._surely(lambda: self.store.claim_ordered(worker, session, wants, LOOKS))
        now = monotonic()
        self.book.order.claimed(wants, brought, now, now - began)
        self._take_ordered(brought)
        return len(brought.claimed)

    def _take_ordered(self, brought: Ordered) -> None:
        """Runs of jobs, each of one key; what would overtake another job is given back."""
        if not brought.claimed or not self._taken(brought.claimed):
            return
        runs: dict[tuple[int, str | None], Run] = {}
        for job in brought.claimed:
            key = (job.lane, job.order_key)
            if job.id > brought.gaps.get((job.lane, job.order_key or ""), job.id):
                self._release([job])
            elif key in runs:
                runs[key].jobs.append(job)
            else:
                runs[key] = Run(deque([job]))
        batched = set(self.book.batched)
        self._slots.add(run for run in runs.values() if run.lane not in batched)
        self._batches.add(run for run in runs.values() if run.lane in batched)

    async def _surely(self, claim: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a claim brought. Without its answer, jobs may be ours that we do not know."""
        tries = TRIES
        while True:
            try:
                return await claim()
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                tries -= 1  # as for a step
                if not tries:
                    raise
            except BaseException:
                self.unsure = True
                raise

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
        if not self._may_claim or self._left <= coming:
            return [], 0
        if self._setbacks and self._finished:
            return [], 0  # first let go of what did not get through
        concurrency, batch = self.options.concurrency, self.options.batch
        idle = self._slots.idle - coming - max(0, len(self._finished) - batch)
        if idle > 0 and self.book.order.comes_first:
            idle = 0
            self.wake()  # next time they are not
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
        self.book.claimed(order.wants, stepped.claimed, monotonic(), order.most)
        self.take(stepped.claimed)
        settled = order.sent
        if stepped.lost:
            settled = [each for each in order.sent if each.job.id not in stepped.lost]
            self._missing += [each for each in order.sent if each.job.id in stepped.lost]
        self._settled(settled)
