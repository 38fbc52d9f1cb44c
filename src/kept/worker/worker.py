"""A worker: claims under a lease, runs what it claimed, gives back what it cannot finish.

``tick`` decides what is done, the loop here only when. Nothing but the loop sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
from collections.abc import Sequence
from time import monotonic
from typing import Self

from kept.durations import Duration, duration
from kept.errors import Unavailable
from kept.jobs.model import Released
from kept.jobs.text import message_of
from kept.signals import (
    ConnectionLost,
    ConnectionRestored,
    RunnerFailed,
    Signals,
    Warned,
    WorkerDraining,
    WorkerStarted,
    WorkerStopped,
)
from kept.worker import pacing
from kept.worker.alarm import Alarm
from kept.worker.listener import Listener
from kept.worker.pacing import Pacing
from kept.worker.post import CLEAN_UP, Plan, Post
from kept.worker.rounds import WATCH, Rounds
from kept.worker.sinks import SinkWatch
from kept.worker.tick import Report, Unreachable
from kept.worker.vacuum import Vacuum


class Worker:
    """The worker inside your own process: ``async with app.worker(): …``. It installs no signal handlers."""

    def __init__(self, plan: Plan, signals: Signals) -> None:
        self.signals = signals
        self.name = f"{platform.node()}:{os.getpid()}"
        self._plan = plan
        self._alarm = Alarm(_pacing(plan))
        self._post = Post(plan, signals, self.name, self._alarm.ring)
        self._rounds = Rounds(self._post, self._alarm)
        self._tick = self._rounds.tick()
        self._sinks = SinkWatch(plan.subscriptions, plan.settings.queues)
        self._vacuum = Vacuum(plan.database, plan.settings.schema, self.name, signals)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._hurried = False
        self._end_by = 0.0  # when a shutdown must be over, whatever the database does
        self._failures = 0  # to reach the database, since a tick last succeeded
        self._answered_at = monotonic()

    # --- the life of a worker

    async def __aenter__(self) -> Self:
        await self.open()
        self._tasks = [asyncio.create_task(self._loop()), asyncio.create_task(self._watch())]
        self._sinks.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def open(self) -> None:
        """Take up the post: connect, check the schema, register lanes, begin a lease."""
        await self._post.take_up()
        try:
            await self._listen()
        except BaseException:
            await self._post.leave(closed=await self._post.close_lease())
            raise
        if self._post.link.pooled and self._may_listen:
            message = "a connection pooler stands before the server: polling instead of LISTEN, no session state"
            self.signals.report(Warned(code="pooled", message=message))
        self.signals.report(
            WorkerStarted(
                worker=str(self._post.lease.worker),
                name=self.name,
                queues=self._plan.settings.queues,
                tasks=tuple(sorted(declaration.name for declaration in self._plan.registry)),
                concurrency=self._plan.settings.concurrency,
            )
        )

    async def once(self, told: asyncio.Event | None = None) -> bool:
        """One pass, then close; False if it was *told* to stop first, which ends it like :meth:`stop`."""
        tick, watch = asyncio.create_task(self._pass()), asyncio.create_task(self._watch())
        self._tasks = [tick, watch]
        word = asyncio.create_task((told or asyncio.Event()).wait())
        try:
            await asyncio.wait([tick, word], return_when=asyncio.FIRST_COMPLETED)
        finally:
            whole = tick.done()
            word.cancel()
            await self.stop("1s" if whole or not word.done() else None)
        if tick.done() and not tick.cancelled():
            tick.result()  # what broke it off
        return whole

    async def _pass(self) -> None:
        try:
            await self._tick()
        except Unreachable as error:
            raise error if isinstance(error, Unavailable) else Unavailable(str(error)) from None

    async def stop(self, grace: Duration | None = None) -> None:
        """Claim nothing more, let what runs finish within *grace*, give back the rest uncharged, close."""
        given = self._plan.settings.grace if grace is None else duration(grace, field="grace")
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._rounds.stopped = True
        self._alarm.ring()
        self._post.runner.claiming = self._post.own.starting = False
        until = monotonic() + given.total_seconds()
        self._end_by = until + 2 * CLEAN_UP
        released = 0
        try:
            await self._end_loop(until)
            released = await self._drain(until)
        finally:
            await self._close(released)

    def hurry(self) -> None:
        """Give back at once: the grace is over."""
        self._hurried = True
        self._end_by = min(self._end_by, monotonic() + 2 * CLEAN_UP)
        self._alarm.ring()

    # --- what others ask

    @property
    def reports(self) -> list[Report]:
        """What the runners of the last pass did, also of one that broke off."""
        return self._tick.reports

    @property
    def running(self) -> int:
        return len(self._post.runner.running)

    def beat_age(self) -> float:
        """Seconds since the event loop last moved."""
        return self._post.lease.board.beat_age

    def not_ready(self) -> str | None:
        """Why this worker cannot work now, or None."""
        age = monotonic() - self._answered_at
        if self._stopping.is_set():
            return "shutting down"
        if age > max(5.0, 3 * self._alarm.rhythm.idle_max):
            return f"the database has not answered for {age:.0f} s"
        lease = self._post.lease
        if lease.gone:
            return "the lease is gone"
        return self._sinks.trouble if lease.secure else "the lease is not being renewed"

    # --- the loop

    async def _loop(self) -> None:
        while not self._stopping.is_set() or self._post.runner.has_early:
            try:
                reports = await self._tick()
                self._answered_at = monotonic()
                self._failures = 0
                if self._post.lease.gone:
                    await self._post.fence()
                await self._rest(reports)
            except Unreachable as error:
                await self._reconnect(error)
            except Exception as error:  # noqa: BLE001  # whatever it is, the worker must outlive it
                self._report_failure("tick", error)
                await self._alarm.sleep_off_error()

    async def _rest(self, reports: Sequence[Report]) -> None:
        """Go on at once after work; wait longer and longer when there is none, but never past the next due time."""
        if any(report.error for report in reports):
            await self._alarm.sleep_off_error()
        elif any(report.items for report in reports) and not self._rounds.nothing_left:
            self._alarm.worked()
            if self._alarm.rhythm.busy > 0:  # else at once: handlers get their turn while the next step is under way
                await self._alarm.pause(self._alarm.rhythm.busy, *self._rounds.moments())
        else:
            if self._rounds.will_be_woken:
                self._alarm.settle_down()
            delay = self._alarm.next_idle()
            if delay >= pacing.LONG and not self._rounds.may_ask:
                delay = 2 * pacing.LONG
            elif delay >= pacing.LONG and not await self._rounds.ask_to_be_woken():
                return  # it was just expressed: one more look
            await self._pause(delay)

    async def _pause(self, delay: float) -> None:
        listener = self._rounds.listener
        if listener is None:
            await self._alarm.pause(delay, *self._rounds.moments())
            return
        self._rounds.make_up_claims(delay)
        with listener.attentive(self._post.runner.claim_early):
            await self._alarm.pause(delay, *self._rounds.moments())

    async def _reconnect(self, error: Exception) -> None:
        """Find the database again."""
        lost_at = monotonic()
        while not self._stopping.is_set():
            # Counted until a tick succeeds: a server with a full disk lets us in and refuses the next statement.
            delay = pacing.reconnect_delay(self._failures, random.random())  # noqa: S311
            self._failures += 1
            self._report_loss(error, delay)
            await self._wait_for_stop(delay)
            try:
                await self._recover()
            except Exception as again:  # noqa: BLE001  # a standby, a schema half migrated: whatever it is, it passes
                error = again
                continue
            self.signals.report(ConnectionRestored(down_for=monotonic() - lost_at))
            return

    async def _recover(self) -> None:
        await self._post.recover()
        await self._listen()
        self._rounds.reconnected()
        if self._stopping.is_set():
            self._post.runner.release_waiting()

    async def _wait_for_stop(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    async def _watch(self) -> None:
        """Look after deadlines, the lease and the dead rows we leave, whatever the loop is waiting for."""
        while True:
            self._post.lease.board.beat()
            try:
                self._post.runner.expire()
                self._post.own.expire()
                self._post.look_after_lease()
                self._vacuum.look(self._post.runner.settled)
            except Exception as error:  # noqa: BLE001  # no process to be had, say: the next look may find one
                self._report_failure("watch", error)
            await asyncio.sleep(WATCH)

    @property
    def _may_listen(self) -> bool:
        return not (self._plan.once or self._plan.settings.poll_only)

    async def _listen(self) -> None:
        """Hear wake-ups on the connection there is now."""
        self._rounds.listener = None
        if self._may_listen and not self._post.link.pooled:
            listener = Listener(self._post.link, self._alarm.hear)
            await listener.start(self._plan.settings.schema)
            self._rounds.listener = listener

    def _report_failure(self, what: str, error: Exception) -> None:
        self.signals.report(RunnerFailed(runner=what, error=f"{type(error).__name__}: {message_of(error)}"))

    def _report_loss(self, error: Exception, delay: float) -> None:
        self.signals.report(ConnectionLost(error=" ".join(message_of(error).split())[:300], delay=delay))

    # --- ending

    async def _end_loop(self, until: float) -> None:
        """Let the tick under way end; a statement that waits for a lock does not use up more than the grace.

        But a moment it gets in any case: one that is cut off leaves us unsure of what it did.
        """
        loop, moment = set(self._tasks[:1]), monotonic() + 2 * WATCH
        while loop and (monotonic() < moment or (monotonic() < until and not self._hurried)):
            _, loop = await asyncio.wait(loop, timeout=WATCH)
        for task in loop:
            task.cancel()
            await asyncio.wait([task], timeout=CLEAN_UP)

    async def _drain(self, until: float) -> int:
        """Let handlers finish; then tell them to stop. How many had to be told."""
        runner = self._post.runner
        grace = max(0.0, until - monotonic())
        self.signals.report(WorkerDraining(name=self.name, running=self.running, grace=grace))
        runner.release_waiting()
        own = self._post.own
        while (runner.in_hand or own.in_hand) and monotonic() < until and not self._hurried:
            pause = WATCH if await self._flush() else pacing.RECONNECT_MAX / 10
            if runner.in_hand or own.in_hand:
                await self._alarm.sleep(min(pause, max(0.0, until - monotonic())))
        released = runner.interrupt_all(Released(started=True, reason="aborted:shutdown"))
        released += own.shut_down()
        await asyncio.gather(runner.join(CLEAN_UP), own.join(CLEAN_UP))
        if not await self._flush():
            await self._flush()  # the connection was lost and is new: once more, then it is the keeper's
        return released

    async def _flush(self) -> bool:
        """Write what is finished; False if the database did not answer."""
        runner = self._post.runner
        try:
            async with asyncio.timeout(self._patience()):
                while runner.has_settlements:
                    before = runner.in_hand
                    await runner.step()
                    if runner.in_hand == before:
                        break
                await self._post.own.flush()
        except Exception as error:  # noqa: BLE001  # whatever it is, shutdown goes on
            self._report_loss(error, 0.0)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._patience()):
                    await self._recover()
            return False
        return True

    def _patience(self) -> float:
        """How long a shutdown may wait for the database once more; what is not written then, the keeper tells."""
        return max(0.1, min(CLEAN_UP, self._end_by - monotonic()))

    async def _close(self, released: int) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        await self._sinks.stop()
        closed = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience()):
                closed = await self._post.close_lease()
        await self._vacuum.stop()
        await self._post.leave(closed=closed)
        self.signals.report(WorkerStopped(worker=str(self._post.lease.worker), name=self.name, released=released))


def _pacing(plan: Plan) -> Pacing:
    settings = plan.settings
    return Pacing(
        idle_min=settings.idle_min.total_seconds(),
        idle_max=settings.idle_max.total_seconds(),
        idle_jitter=settings.idle_jitter.total_seconds(),
        busy=settings.busy_delay.total_seconds(),
        error=settings.error_backoff.total_seconds(),
        error_jitter=settings.error_jitter.total_seconds(),
    )


async def tick_once(plan: Plan, signals: Signals) -> list[Report]:
    """One pass in order within budgets; waits for what it started, and tells what each runner did."""
    worker = Worker(plan, signals)
    await worker.open()
    await worker.once()
    return worker.reports
