"""What is finished and not yet settled: decided here, written by the next step, looked after until that is certain."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Protocol
from uuid import UUID

from kept.jobs import reports, rules
from kept.jobs.lanes import LaneBook
from kept.jobs.model import Claimed, Completed, LostLease, Outcome, Park, Raised, Released, Settlement
from kept.jobs.reports import Finished
from kept.jobs.store import Store
from kept.signals import Signals


class Marks(Protocol):
    """Where it is written down which jobs have started and are not settled, for whoever finds this process dead."""

    def start(self, job: int) -> None: ...
    def end(self, job: int) -> None: ...


@dataclass(slots=True)
class Identity:
    """Under which name we claim: the worker's uuid and its session number."""

    worker: UUID
    session: int = 0


@dataclass(slots=True, kw_only=True)
class Settling:
    """Settlements on their way, and those of which it is not known whether they arrived."""

    store: Store
    book: LaneBook
    identity: Identity
    marks: Marks
    signals: Signals
    wake: Callable[[], None]
    has_early: bool = False  # a claim is on its way that a step has to go on from: the connection is taken
    park_until: float | None = None  # when the first of those that this runner parked comes back
    settled: int = 0  # jobs that left a dead row behind
    _finished: list[Finished] = field(default_factory=list)
    _unconfirmed: dict[int, Finished] = field(default_factory=dict)
    _missing: list[Finished] = field(default_factory=list)  # sent, and not settled by that

    @property
    def has_settlements(self) -> bool:
        return bool(self._finished or self._unconfirmed or self._missing or self.has_early)

    def _finish(self, job: Claimed, outcome: Outcome, duration: float, *, completed: bool = False) -> Settlement:
        declaration = self.book.declaration(job.lane)
        settlement = rules.settle(job, outcome, declaration.retry, random.random())  # noqa: S311
        if declaration.ordered == "step_aside":
            settlement = rules.step_aside(settlement, outcome)
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
        return settlement

    # --- settled, lost, or neither

    def _settled(self, settled: list[Finished]) -> None:
        if settled:
            self.settled += len(settled)
            for each in settled:
                self.marks.end(each.job.id)
                if isinstance(each.settlement, Park) and each.settlement.delay > 0:
                    self.park_until = min(self.park_until or inf, monotonic() + each.settlement.delay)
            self._make_way(settled)
            self._learn_pace(settled)
            self.signals.report(reports.settled(self.book, settled))

    def _make_way(self, settled: list[Finished]) -> None:
        """The next of their order keys may go."""
        if self.book.apart:
            for lane in {each.job.lane for each in settled}:
                self.book.order.hint(lane)

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
        worker, asked = self.identity.worker, list(self._unconfirmed)  # more may come while we wait for the answer
        present = await self.store.present(worker, asked)
        gone = [self._unconfirmed.pop(id) for id in asked if id not in present]
        self._make_way(gone)
        for each in gone:
            self.marks.end(each.job.id)
            if isinstance(each.outcome, LostLease):
                self.signals.report(reports.lost(self.book, each.job))
        if gone:
            self.settled += len(gone)
            self.signals.report(reports.completed(self.book, gone))
        for id in await self.store.still_ours(worker, present) if present else ():
            each = self._unconfirmed.pop(id)
            self._finish(each.job, _unfounded(each.outcome), each.duration)


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
