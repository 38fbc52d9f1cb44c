"""Jobs that are run together: the handler is given a list and answers for each. Such lanes have slots of their own.

So a handler that waits, for a broker say, never keeps another lane's jobs waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, get_args

from kept.jobs.attempt import Attempt, cancelled, outcome_of
from kept.jobs.context import Terms
from kept.jobs.declaration import Declaration
from kept.jobs.model import Claimed, Outcome, Raised
from kept.jobs.slots import Deaf, Run, jobs_of
from kept.jobs.text import detail_of, message_of

OUTCOMES = get_args(Outcome)
SLOW = 0.5  # seconds: behind a batch that takes longer no other is held in hand


class Batch(Attempt, kw_only=True):
    """An attempt at several jobs at once: under one timeout, interrupted together."""

    jobs: list[Claimed]

    async def run(self, threads: Executor, task: asyncio.Task[Any] | None, now: float) -> Outcome:  # noqa: ARG002
        """:meth:`answer` for a batch of one."""
        return (await self.answer(task, now))[0]

    async def answer(self, task: asyncio.Task[Any] | None, now: float) -> list[Outcome]:
        """Run the handler to its end in *task*, the one that calls this *now*; an outcome for each job."""
        if self.verdict is not None:
            return self._for_all(self.verdict)
        self.begin(now)
        self._task = task
        try:
            outcomes = self._checked(await self.declaration.handler(self.jobs))
        except asyncio.CancelledError as error:
            outcomes = self._for_all(cancelled(error))
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            at = self.job.claimed_at + timedelta(seconds=self.duration)
            outcomes = self._for_all(outcome_of(error, now=at))
        self._judged(outcomes[0])
        return outcomes if self.verdict is None else self._for_all(self.verdict)

    def _checked(self, answered: object) -> list[Outcome]:
        if isinstance(answered, list | tuple) and len(answered) == len(self.jobs):
            strange = next((each for each in answered if not isinstance(each, OUTCOMES)), None)
            if strange is None:
                return list(answered)
            problem = f"{type(strange).__name__} is not an outcome"
        else:
            count = f"{len(answered)} outcomes" if isinstance(answered, list | tuple) else type(answered).__name__
            problem = f"{count} for {len(self.jobs)} jobs"
        return self._for_all(Raised("invalid_outcomes", f"the handler of a batch answered wrongly: {problem}"))

    def _for_all(self, outcome: Outcome) -> list[Outcome]:
        return [outcome] * len(self.jobs)


def attempt_at(job: Claimed, declaration: Declaration, terms: Terms) -> Attempt:
    """An attempt at *job* alone, whatever its handler takes."""
    if declaration.batch:
        return Batch(job=job, declaration=declaration, terms=terms, jobs=[job])
    return Attempt(job, declaration, terms)


@dataclass(slots=True)
class Batches:
    """Runs waiting jobs in batches, as many at a time as their task says. *ended* is told all outcomes once."""

    declared: Callable[[int], Declaration]  # the task of a lane
    begin: Callable[[list[Claimed]], Batch]
    ended: Callable[[Batch, list[Outcome], float], None]
    running: dict[int, Batch] = field(default_factory=dict)
    _waiting: dict[int, deque[tuple[Claimed | Run, float]]] = field(default_factory=dict)  # by lane, and since when
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _deaf: Deaf = field(default_factory=Deaf)
    _slow: set[int] = field(default_factory=set)  # lanes whose last batch took long
    _count: int = 0

    def __len__(self) -> int:
        """Jobs under way or waiting, roughly: a run that waits is one."""
        return sum(len(batch.jobs) for batch in self.running.values()) + sum(map(len, self._waiting.values()))

    @property
    def stale_from(self) -> float | None:
        """Since when the one that waits longest does."""
        return min((line[0][1] for line in self._waiting.values() if line), default=None)

    def room(self, lanes: Iterable[int]) -> dict[int, int]:
        """How many more jobs of each lane to take in hand: to fill every batch, and one to follow if they are quick."""
        held = Counter(job.lane for batch in self.running.values() for job in batch.jobs)
        held.update(job.lane for job in self.claimed())
        room = {}
        for lane in lanes:
            declaration = self.declared(lane)
            batches = declaration.concurrency + (lane not in self._slow)
            room[lane] = max(0, batches * declaration.batch - held[lane])
        return room

    def add(self, jobs: Iterable[Claimed | Run]) -> None:
        """Jobs to be run with others of their lane; those of a run are never parted."""
        now = monotonic()
        lanes = set()
        for each in jobs:
            self._waiting.setdefault(each.lane, deque()).append((each, now))
            lanes.add(each.lane)
        for lane in lanes:
            self._start(lane)

    def claimed(self) -> list[Claimed]:
        """All that has not started."""
        return [job for line in self._waiting.values() for each, _ in line for job in jobs_of(each)]

    def take_waiting(self, since: float | None = None) -> list[Claimed]:
        """Take back what has not started; with *since*, only what waits since before that."""
        taken: list[Claimed] = []
        for lane, line in self._waiting.items():
            while line and (since is None or line[0][1] < since):
                taken += jobs_of(line.popleft()[0])
                if since is not None:
                    self._slow.add(lane)
        return taken

    def give_up(self, number: int) -> Batch:
        """Be done with a batch that does not end; its place stays taken until it does."""
        self._deaf.add(self._tasks[number])
        return self.running.pop(number)

    async def join(self, timeout: float) -> None:
        """Wait until nothing runs, or *timeout* seconds."""
        tasks = [self._tasks[number] for number in self.running]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def _start(self, lane: int) -> None:
        declaration, line = self.declared(lane), self._waiting[lane]
        while line and sum(task.get_name() == str(lane) for task in self._tasks.values()) < declaration.concurrency:
            jobs = list(jobs_of(line.popleft()[0]))
            while line and len(jobs) + len(jobs_of(line[0][0])) <= declaration.batch:
                jobs += jobs_of(line.popleft()[0])
            self._count += 1
            batch = self.running[self._count] = self.begin(jobs)
            self._tasks[self._count] = asyncio.create_task(self._run(self._count, batch), name=str(lane))

    async def _run(self, number: int, batch: Batch) -> None:
        task, lane = self._tasks[number], batch.job.lane
        try:
            outcomes = await batch.answer(task, monotonic())
        except Exception as error:  # noqa: BLE001  # a fault of ours must not strand the jobs
            outcomes = [Raised("internal_error", message_of(error), detail=detail_of(error))] * len(batch.jobs)
        finally:
            del self._tasks[number]
        if batch.duration > SLOW:
            self._slow.add(lane)
        else:
            self._slow.discard(lane)
        if self.running.pop(number, None) is batch:  # else it was given up, and told of then
            self.ended(batch, outcomes, batch.duration)
        self._start(lane)
