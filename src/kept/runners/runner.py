"""Runners of your own in one worker: each is begun when its time has come, and its pass written when it is over.

Statements are made by the tick alone, one at a time; what runs between them are the functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from time import monotonic
from uuid import UUID

from kept.runners import rules
from kept.runners.context import Budget, RunnerContext
from kept.runners.model import (
    Abandoned,
    Answer,
    Busy,
    Counters,
    Ending,
    Held,
    Lease,
    Lost,
    NotDue,
    Outcome,
    RunnerDeclaration,
    Stopped,
    Taken,
)
from kept.runners.passes import Pass, timed_out
from kept.runners.store import RunnerStore
from kept.signals import RunFinished, RunLeaseLost, RunnerSkipped, Signals

TIDY_UP = 5.0  # seconds for a cancelled function to end before a tick goes on without it
AGAIN = 0.1  # seconds before a statement is repeated that found its row locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for every runner of a worker."""

    worker_name: str
    items: int
    seconds: float
    once: bool = False  # tick mode
    scan: float = 5.0  # seconds between looks for the dead
    shard_index: int | None = None
    shard_count: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a runner's turn in a tick came to."""

    counters: Counters
    note: str | None = None
    error: str | None = None


NOTHING = Told({})


class OwnRunners:
    """The user's own runners in one process: at most one pass of each at a time."""

    def __init__(
        self, declared: Sequence[RunnerDeclaration], terms: Terms, signals: Signals, wake: Callable[[], None]
    ) -> None:
        self.declared = {each.name: each for each in declared}
        self.running: dict[str, Pass] = {}
        self.starting = True  # whether passes may begin
        self.late = False  # somebody holds a slot although its lease is over: reclaim is wanted
        self.store: RunnerStore
        self.worker: UUID
        self._terms = terms
        self._signals = signals
        self._wake = wake
        self._places = {
            each.name: rules.place_of(
                each.name, singleton=each.singleton, index=terms.shard_index, count=terms.shard_count
            )
            for each in declared
        }
        self._look_at = dict.fromkeys(self.declared, 0.0)
        self._over: dict[str, tuple[Pass, Outcome]] = {}  # ended, and not yet written
        self._told: dict[str, Told] = {}  # what came of the last pass
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(max(1, len(declared)), thread_name_prefix="kept-runner")

    async def declare(self) -> None:
        """Have the database know every runner."""
        for name, each in self.declared.items():
            await self.store.declare(self._places[name], each.every, singleton=each.singleton)

    @property
    def longest(self) -> float:
        """Seconds that a pass may take, at most."""
        return max((self._seconds(each) for each in self.declared.values()), default=0.0)

    # --- what the tick asks

    @property
    def in_hand(self) -> int:
        """Passes that run, or whose ending is not written yet."""
        return len(self.running)

    def moment(self) -> float | None:
        """When there is something to do here: a pass may be due, or an ending is to be written."""
        asks = [at for name, at in self._look_at.items() if self.starting and name not in self.running]
        writes = [pass_.again_at for pass_, _ in self._over.values()]
        return min((*asks, *writes), default=None)

    def due(self, name: str) -> bool:
        """Whether *name* needs its turn."""
        over = self._over.get(name)
        if over is not None:
            return monotonic() >= over[0].again_at
        return self.starting and name not in self.running and monotonic() >= self._look_at[name]

    # --- the turn of one runner

    async def step(self, name: str) -> None:
        """Background mode: write what is over, begin what is due; passes go on across ticks."""
        await self._write(name)
        if self.due(name):
            await self._begin(name, inf)

    async def once(self, name: str, seconds: float) -> Told:
        """Tick mode: a whole pass, if one is due, within *seconds*."""
        told = await self._begin(name, seconds)
        if told is not None:
            return told
        pass_ = self.running[name]
        while name in self.running:
            await asyncio.wait([self._tasks[name]], timeout=AGAIN)
            self.expire()
            await self._write(name)
            if pass_.told_at is not None and monotonic() > pass_.told_at + TIDY_UP and name in self.running:
                return Told({}, error="timeout: it was told to stop and still runs")
        return self._told.get(name, NOTHING)

    async def _begin(self, name: str, seconds: float) -> Told | None:
        """Begin a pass; else what is to be told of it."""
        self._look_at[name] = monotonic() + rules.LOOK  # should the database refuse, others must not suffer for it
        answer = await self._take(name)
        if isinstance(answer, Held) and answer.dead:
            await self.abandon()
            answer = await self._take(name)
        now = monotonic()
        match answer:
            case Taken(run):
                self._look_at[name] = now + self.declared[name].every
                self._start(name, run, seconds)
                return None
            case Held(by, wait, _, late):
                self.late = self.late or late
                self._look_at[name] = now + rules.next_look(wait, held=True, scan=self._terms.scan)
                self._signals.report(RunnerSkipped(name=name, holder=by))
                return Told({}, note=f"skipped, held by {by}")
            case NotDue(wait):
                self._look_at[name] = now + rules.next_look(wait, held=False, scan=self._terms.scan)
                return Told({}, note=f"not due for {wait:.0f} s")
            case Busy():
                self._look_at[name] = now + AGAIN
                return Told({}, note="skipped, somebody else is just taking it")

    async def _take(self, name: str) -> Answer:
        each = self.declared[name]
        return await self.store.take(
            self._places[name],
            self.worker,
            self._terms.worker_name,
            every=each.every,
            early=rules.early(each.every, once=self._terms.once),
            singleton=each.singleton,
        )

    def _seconds(self, declaration: RunnerDeclaration) -> float:
        return rules.narrowed(self._terms.seconds, declaration.max_time)

    def _start(self, name: str, run: int, seconds: float) -> None:
        each, place = self.declared[name], self._places[name]
        lease = Lease(run, self.worker)
        items = int(rules.narrowed(self._terms.items, each.max_items))
        budget = Budget(items, min(seconds, self._seconds(each)))
        context = RunnerContext(place, lease, budget, self.store.sql)
        self.running[name] = pass_ = Pass(each, place, lease, budget, context)
        self._tasks[name] = pass_.start(self._threads, self._ended)

    def _ended(self, pass_: Pass, outcome: Outcome) -> None:
        self._over[pass_.place.name] = (pass_, outcome)
        self._wake()

    # --- writing

    async def flush(self) -> None:
        """Write every ending there is."""
        for name in list(self._over):
            await self._write(name)

    async def _write(self, name: str) -> None:
        if name not in self._over or monotonic() < self._over[name][0].again_at:
            return
        pass_, outcome = self._over[name]
        ending = rules.ending(outcome)
        answer = "lost" if ending is None else await self._finish(pass_, ending)
        if answer == "busy":
            pass_.again_at = monotonic() + AGAIN
            return
        del self._over[name]
        self.running.pop(name, None)
        if answer == "lost" and not (ending is not None and pass_.sent):
            self._signals.report(RunLeaseLost(name=name, run=pass_.lease.run))
            self._told[name] = Told({}, error="lease_lost: the lease is gone; what it did counts as abandoned")
        elif ending is not None:
            self._tell(name, pass_, ending)

    async def _finish(self, pass_: Pass, ending: Ending) -> str:
        try:
            return await self.store.finish(pass_.place, pass_.lease, ending)
        except BaseException:
            pass_.again_at = monotonic() + AGAIN
            pass_.sent = True  # whether it got through is unknown: if it did, it is not there any more
            raise

    def _tell(self, name: str, pass_: Pass, ending: Ending) -> None:
        error = None if ending.state != "failed" else f"{ending.code}: {_last_line(ending.error)}"
        note = "cancelled" if ending.state == "cancelled" else None
        self._told[name] = Told(ending.counters, note=note, error=error)
        if ending.after is not None:
            self._look_at[name] = max(self._look_at[name], monotonic() + ending.after)
        self._signals.report(
            RunFinished(
                name=name,
                run=pass_.lease.run,
                state=ending.state,
                duration=pass_.duration,
                counters=dict(ending.counters),
                code=ending.code,
                message=_last_line(ending.error),
            )
        )

    # --- the dead

    async def abandon(self) -> list[Abandoned]:
        """Close what dead workers left open, and see at once whether a pass is to be made up for."""
        closed = await self.store.abandon()
        for each in closed:
            self._signals.report(
                RunFinished(
                    name=each.name,
                    run=each.id,
                    state="abandoned",
                    duration=each.duration,
                    counters={},
                    code="worker_died",
                    message=f"its worker {each.worker} died",
                )
            )
            if each.name in self._look_at:
                self._look_at[each.name] = 0.0
        return closed

    async def recovered(self) -> None:
        """The connection is new: give back what a lost reply may have begun in our name."""
        mine = [pass_.lease.run for pass_ in self.running.values() if pass_.lease.worker == self.worker]
        await self.store.disown(self.worker, mine)

    # --- ending

    def expire(self) -> None:
        """Tell passes that used up their time to stop, again and again."""
        for pass_ in self.running.values():
            if pass_.overran:
                pass_.interrupt(timed_out(pass_, self._seconds(pass_.declaration)))
            elif pass_.verdict is not None:
                pass_.interrupt(pass_.verdict)

    def interrupt_all(self, verdict: Outcome) -> int:
        """End every pass with *verdict*; how many there were."""
        begun = [pass_ for name, pass_ in self.running.items() if name not in self._over]
        for pass_ in begun:
            pass_.interrupt(verdict)
        return len(begun)

    def forget(self) -> int:
        """The lease is gone: no pass of ours counts any more, not even one that is over."""
        for name, (pass_, _) in list(self._over.items()):
            self._over[name] = (pass_, Lost())
        return self.interrupt_all(Lost())

    def shut_down(self) -> int:
        """Cancel what still runs, for a shutdown."""
        return self.interrupt_all(Stopped("shutdown"))

    async def join(self, timeout: float) -> None:
        """Wait until no function runs, but not longer than *timeout* seconds."""
        running = [self._tasks[name] for name in self.running if name not in self._over]
        if running:
            await asyncio.wait(running, timeout=timeout)

    def close(self) -> None:
        """Let go of the threads; one that does not end keeps nobody waiting."""
        for pass_ in self.running.values():
            pass_.give_up()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _last_line(error: str | None) -> str | None:
    """The line of a traceback that says what happened."""
    lines = (error or "").strip().splitlines()
    return lines[-1][:500] if lines else None
