"""Where attempts run: slots, and the consumers that bring waiting jobs to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from msgspec import Struct

from kept.jobs.attempt import Attempt
from kept.jobs.model import Claimed, Outcome, Raised
from kept.jobs.text import detail_of, message_of

BREATH = 0.0002  # seconds a consumer may keep the loop before others get a turn: the reply to a step needs several
ALONE = 0  # the suspect's slot

RunAlone = Callable[[Attempt], Awaitable[Outcome]]


class Deaf:
    """Tasks that were given up and still hold their slots."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        asyncio._unregister_task(task)  # who closes the loop must not wait for it


class Run(Struct, eq=False):
    """Jobs of one order key, for one slot: one after the other, as long as nothing comes between."""

    jobs: deque[Claimed]

    @property
    def lane(self) -> int:
        return self.jobs[0].lane


@dataclass(slots=True)
class Slots:
    """Runs waiting jobs, at most *count* at a time, and one suspect beside them. *ended* is told each outcome once."""

    count: int
    threads: Executor
    begin: Callable[[Claimed], Attempt]
    ended: Callable[[Attempt, Outcome, float], None]
    is_quick: Callable[[int], bool]  # whether attempts of a lane are over in no time
    wake: Callable[[], None]
    running: dict[int, Attempt] = field(default_factory=dict)
    waiting: deque[tuple[Claimed | Run, float]] = field(default_factory=deque)  # and since when
    alone_took: float = inf  # seconds, for the last suspects that were run to the end
    _rests: dict[int, deque[Claimed]] = field(default_factory=dict)  # what each slot is to run next, of a run
    _free: list[int] = field(default_factory=list)
    _consumers: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _deaf: Deaf = field(default_factory=Deaf)
    _alone: asyncio.Task[None] | None = None
    _starting: int = 0  # consumers on their way to their first job
    _breathing: int = 0  # consumers that let others have a turn
    _again: bool = False  # another look at what waits is under way

    def __post_init__(self) -> None:
        self._free = list(range(self.count, ALONE, -1))

    @property
    def idle(self) -> int:
        """Slots with nothing to do; negative: so many jobs wait for one."""
        return len(self._free) - len(self.waiting)

    @property
    def runs_alone(self) -> bool:
        """Whether a suspect is running."""
        return self._alone is not None

    def add(self, jobs: Iterable[Claimed | Run]) -> None:
        """Jobs to be run as slots come free."""
        now = monotonic()
        self.waiting.extend([(job, now) for job in jobs])
        self._start_consumers()

    def take_waiting(self, since: float | None = None) -> list[Claimed]:
        """Take back what has not started; with *since*, only what waits since before that, or behind such a job."""
        taken: list[Claimed] = []
        while self.waiting and (since is None or self.waiting[0][1] < since):
            taken += jobs_of(self.waiting.popleft()[0])
        for slot, rest in self._rests.items():
            if since is None or (slot in self.running and self.running[slot].began < since):
                taken += rest
                rest.clear()
        return taken

    def claimed(self) -> list[Claimed]:
        """All that has not started: what waits for a slot, and what waits for the job before it."""
        waiting = [job for each, _ in self.waiting for job in jobs_of(each)]
        return waiting + [job for rest in self._rests.values() for job in rest]

    def start_alone(self, suspects: Iterable[Claimed], begin: Callable[[Claimed], Attempt], run: RunAlone) -> None:
        """Run suspects beside the slots, one after the other."""
        rest = self._rests[ALONE] = deque(suspects)
        self.alone_took = inf
        first = self._begin_alone(rest, begin)
        self._alone = asyncio.create_task(self._run_alone(first, rest, begin, run))

    def give_up(self, slot: int) -> Attempt:
        """Be done with an attempt that does not end; its slot stays taken until it does."""
        attempt = self.running.pop(slot)
        if slot == ALONE:
            task, self._alone = self._alone, None
        else:
            task = self._consumers.pop(slot)
        if task is not None:
            self._deaf.add(task)
        return attempt

    async def join(self, timeout: float) -> None:
        """Wait until nothing runs, or *timeout* seconds."""
        tasks = {*self._consumers.values(), *([self._alone] if self._alone else [])}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    # --- consumers

    def _start_consumers(self) -> None:
        """Let waiting jobs begin: each on a slot of its own, or one behind the other where they are over in no time.

        Then a consumer more does not help, and the worker's own loop, which has the next step to send, would have
        to wait until each of them has had its turn.
        """
        more = len(self.waiting) - self._starting
        if self._free and more > 0:
            count = min(more, len(self._free))
            if self.is_quick(self.waiting[0][0].lane):
                count = 0 if self._starting or self._breathing else 1
                self._look_again()
            for _ in range(count):
                self._starting += 1
                slot = self._free.pop()
                self._consumers[slot] = asyncio.create_task(self._consume(slot))

    def _look_again(self) -> None:
        if not self._again:
            self._again = True
            asyncio.get_running_loop().call_soon(self._looked_again)

    def _looked_again(self) -> None:
        self._again = False
        self._start_consumers()

    async def _consume(self, slot: int) -> None:
        """Run waiting jobs until there are none: cheaper than a task for each."""
        self._starting -= 1
        task, running, waiting = self._consumers[slot], self.running, self.waiting
        attempt: Attempt | None = None
        rest: deque[Claimed] | None = None
        now = monotonic()
        breath = now + BREATH
        try:
            while (rest or waiting) and slot in self._consumers:
                if now > breath:
                    await self._breathe()
                    now = monotonic()
                    breath = now + BREATH
                    continue
                job = rest.popleft() if rest else waiting.popleft()[0]
                if isinstance(job, Run):
                    rest = self._rests[slot] = job.jobs
                    job = rest.popleft()
                attempt = running[slot] = self.begin(job)
                if rest is not None:
                    attempt.rest = rest
                outcome = await attempt.run(self.threads, task, now)
                now = monotonic()
                self._end(slot, attempt, outcome, now)
                if attempt.leftover is not None:
                    break
        except Exception as error:  # noqa: BLE001  # a fault of ours must not strand the job
            if attempt is not None:
                outcome = Raised("internal_error", message_of(error), detail=detail_of(error))
                self._end(slot, attempt, outcome, monotonic())
        finally:
            if rest:  # a fault of ours: it says nothing against those behind
                waiting.appendleft((Run(rest), now))
            self._rests.pop(slot, None)
            self._consumers.pop(slot, None)
            if attempt is None or attempt.leftover is None:
                self._free_slot(slot)
            else:
                self._free_slot_after(attempt.leftover, slot)

    async def _breathe(self) -> None:
        """Let others have a turn; and if the next job then keeps us waiting, another consumer is to go on."""
        self._breathing += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._breathing -= 1
        self._look_again()

    async def _run_alone(
        self, attempt: Attempt, rest: deque[Claimed], begin: Callable[[Claimed], Attempt], run: RunAlone
    ) -> None:
        me, began, left = asyncio.current_task(), monotonic(), len(rest)
        try:
            while True:
                outcome = await run(attempt)
                self._end(ALONE, attempt, outcome, monotonic())
                if not rest or self._alone is not me:
                    break
                left -= 1
                attempt = self._begin_alone(rest, begin)
            if not left:  # else some were given back
                self.alone_took = monotonic() - began
        finally:
            if self._alone is me:
                self._alone = None
                self._rests.pop(ALONE, None)

    def _begin_alone(self, rest: deque[Claimed], begin: Callable[[Claimed], Attempt]) -> Attempt:
        attempt = self.running[ALONE] = begin(rest.popleft())
        attempt.rest, attempt.began = rest, monotonic()
        return attempt

    def _end(self, slot: int, attempt: Attempt, outcome: Outcome, now: float) -> None:
        if self.running.get(slot) is attempt:  # else it was given up, and told of then
            del self.running[slot]
            self.ended(attempt, outcome, now - attempt.began)

    def _free_slot(self, slot: int) -> None:
        self._free.append(slot)
        self._start_consumers()
        self.wake()

    def _free_slot_after(self, thread: Future[Any], slot: int) -> None:
        """A thread cannot be stopped: its slot stays taken until it ends."""
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed before the thread ended
                loop.call_soon_threadsafe(self._free_slot, slot)

        thread.add_done_callback(ended)


def jobs_of(each: Claimed | Run) -> Collection[Claimed]:
    """The jobs of a run, or the one there is."""
    return each.jobs if isinstance(each, Run) else (each,)
