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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Self

from kept.archive.rules import Retention
from kept.archive.runner import upkeep
from kept.config import Settings
from kept.db import migrate
from kept.db.connect import Link
from kept.durations import Duration, duration
from kept.errors import Unavailable
from kept.jobs.attempt import Attempt
from kept.jobs.lanes import LaneBook
from kept.jobs.model import Lane, LostLease, Outcome, Released
from kept.jobs.reclaim import hand_back, reclaim_abandoned, reclaim_expired
from kept.jobs.registry import Registry
from kept.jobs.runner import Identity, JobsRunner, Options
from kept.jobs.store import Store, Survey
from kept.signals import (
    ConnectionLost,
    ConnectionRestored,
    KeeperRestarted,
    LeaseRenewed,
    RenewalFailed,
    RunnerFailed,
    Signals,
    TaskUnknown,
    Warned,
    WorkerDraining,
    WorkerFenced,
    WorkerStarted,
    WorkerStopped,
)
from kept.worker import pacing
from kept.worker.alone import Alone
from kept.worker.lease import Lease
from kept.worker.listener import Listener
from kept.worker.pacing import Pacing
from kept.worker.tick import Budget, Limits, Report, Tick, Unreachable

WATCH = 0.1  # seconds between looks at deadlines and the lease
UPKEEP_EVERY = 3600.0
UPKEEP_LOOK = 60.0
LEAST_STALL = 600.0
CLEAN_UP = 5.0  # seconds for cancelled handlers to tidy up


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker is to do: whose tasks, from which queues, by which settings."""

    registry: Registry
    settings: Settings
    database: str
    location: str | None = None  # where a child process finds the App
    kept: bool = True  # put a keeper beside the lease
    once: bool = False  # tick mode: budgets bind, and what was started is waited for


class Worker:
    """The worker inside your own process: ``async with app.worker(): …``. It installs no signal handlers."""

    def __init__(self, plan: Plan, signals: Signals) -> None:
        self._plan = plan
        self.signals = signals
        settings = plan.settings
        self.name = f"{platform.node()}:{os.getpid()}"
        self._pacing = Pacing(
            idle_min=settings.idle_min.total_seconds(),
            idle_max=settings.idle_max.total_seconds(),
            idle_jitter=settings.idle_jitter.total_seconds(),
            busy=settings.busy_delay.total_seconds(),
            error=settings.error_backoff.total_seconds(),
            error_jitter=settings.error_jitter.total_seconds(),
        )
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hints: set[tuple[int, int]] = set()
        self._streak = 0
        self._survey = Survey(ready={}, promoted={})
        self._surveyed_at = self._bottom_at = self._slept_at = -1e9
        self._bottom_cost = 0.0
        self._next_reclaim = self._next_upkeep = 0.0
        self._due_at: float | None = None
        self._suspect_at: float | None = None
        self._no_suspect_before = 0.0
        self._failures = 0
        self._flag_until = 0.0
        self._newest_lane = 0
        self._unknown: set[tuple[str, str]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._alone: Alone | None = None
        self._answered_at = monotonic()
        self._listener: Listener | None = None

    # --- the life of a worker

    async def __aenter__(self) -> Self:
        await self.open()
        self._tasks = [asyncio.create_task(self._loop()), asyncio.create_task(self._watch())]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def open(self) -> None:
        """Connect, check the schema, register lanes and begin a lease."""
        settings = self._plan.settings
        self._link = await Link.open(self._plan.database, name=f"kept worker {self.name}"[:63])
        try:
            await migrate.acheck(self._link.conn, settings.schema)
            self._store = Store(self._link, settings.schema)
            await declare(self._store, self._plan.registry)
            self._book = LaneBook()
            await self._refresh_lanes()
            self._lease = await self._begin_lease()
        except BaseException:
            await self._link.close()
            raise
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="kept-handler")
        self._runner = self._make_runner()
        self._tick = self._make_tick()
        self._start_listening()
        self.signals.report(
            WorkerStarted(
                worker=str(self._lease.worker),
                name=self.name,
                queues=settings.queues,
                tasks=tuple(sorted(declaration.name for declaration in self._plan.registry)),
                concurrency=settings.concurrency,
            )
        )

    async def once(self) -> list[Report]:
        """One pass, then close."""
        self._tasks = []
        watch = asyncio.create_task(self._watch())
        try:
            return await self._tick()
        except Unreachable as error:
            raise error if isinstance(error, Unavailable) else Unavailable(str(error)) from None
        finally:
            watch.cancel()
            await self.stop("1s")

    async def stop(self, grace: Duration | None = None) -> None:
        """Claim nothing more, let what runs finish within *grace*, give back the rest uncharged, close."""
        given = self._plan.settings.grace if grace is None else duration(grace, field="grace")
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._wake.set()
        self._runner.claiming = False
        until = monotonic() + given.total_seconds()
        try:
            await self._end_loop(until)
            await self._drain(until)
        finally:
            await self._close()

    async def _end_loop(self, until: float) -> None:
        """Let the tick under way end; a statement that waits for a lock does not use up more than the grace."""
        loop = set(self._tasks[:1])
        while loop and monotonic() < until and not self._hurried:
            _, loop = await asyncio.wait(loop, timeout=WATCH)
        for task in loop:
            task.cancel()
            await asyncio.wait([task], timeout=CLEAN_UP)

    def hurry(self) -> None:
        """Give back at once: the grace is over."""
        self._hurried = True
        self._wake.set()

    async def wait_stopped(self) -> None:
        """Return when the loop has ended."""
        if self._tasks:
            await asyncio.wait([self._tasks[0]])

    # --- what health checks ask

    @property
    def running(self) -> int:
        return len(self._runner.running)

    def beat_age(self) -> float:
        """Seconds since the event loop last moved."""
        return self._lease.board.beat_age

    def not_ready(self) -> str | None:
        """Why this worker cannot work now, or None."""
        age = monotonic() - self._answered_at
        limit = max(5.0, 3 * self._plan.settings.idle_max.total_seconds())
        if self._stopping.is_set():
            return "shutting down"
        if age > limit:
            return f"the database has not answered for {age:.0f} s"
        return "the lease is gone" if self._lease.gone else None

    # --- opening

    def _make_runner(self) -> JobsRunner:
        settings = self._plan.settings
        if self._plan.location is not None:
            self._alone = Alone(
                self._plan.location,
                database=self._plan.database,
                schema=settings.schema,
                limit=settings.payload_limit,
            )
        return JobsRunner(
            store=self._store,
            book=self._book,
            identity=Identity(self._lease.worker),
            options=Options(settings.concurrency, settings.batch, settings.payload_limit),
            marks=self._lease.board,
            threads=self._threads,
            signals=self.signals,
            run_alone=self._alone.run if self._alone else self._run_alone_here,
            wake=self._wake.set,
        )

    def _make_tick(self) -> Tick:
        settings = self._plan.settings
        runners = {
            "reclaim": self._reclaim,
            "promote": self._promote,
            "upkeep": self._upkeep,
            "jobs": self._drain_jobs if self._plan.once else self._step_jobs,
        }
        limits = Limits(
            overall=settings.tick_overall.total_seconds(),
            runner=settings.tick_runner.total_seconds(),
            items=settings.tick_items if self._plan.once else None,
        )
        patient = {"jobs"} if self._plan.once else set()
        return Tick(runners, self.signals, limits, settings.tick_runners, patient=patient)

    async def _begin_lease(self) -> Lease:
        settings = self._plan.settings
        timeouts = [declaration.timeout for declaration in self._plan.registry]
        grace = settings.grace.total_seconds()
        lease = Lease(
            database=self._plan.database,
            schema=settings.schema,
            name=self.name,
            queues=settings.queues,
            concurrency=settings.concurrency,
            batch=settings.batch,
            declared=self._plan.registry.digests(),
            seconds=settings.lease.total_seconds(),
            renew=settings.renew.total_seconds(),
            stall=max(LEAST_STALL, max(timeouts, default=0.0) + grace),
            kept=self._plan.kept,
        )
        await lease.begin(self._store)
        return lease

    def _start_listening(self) -> None:
        if self._plan.once or self._plan.settings.poll_only:
            return
        if self._link.pooled:
            self.signals.report(
                Warned(
                    code="pooled",
                    message="a connection pooler stands before the server: polling instead of LISTEN, no session state",
                )
            )
            return
        self._listener = Listener(self._plan.database, self._plan.settings.schema, self.name, self._heard)
        self._listener.start()

    async def _refresh_lanes(self) -> None:
        settings = self._plan.settings
        lanes = [lane for lane in await self._store.lanes(settings.queues) if _in_shard(lane, settings)]
        self._newest_lane = max(self._newest_lane, max((lane.id for lane in lanes), default=0))
        registry = self._plan.registry
        known = [(lane, found) for lane in lanes if (found := registry.find(lane.task)) is not None]
        self._book.serve(known)
        unknown = [lane.id for lane in lanes if registry.find(lane.task) is None]
        for queue, task in await self._store.waiting_tasks(unknown) if unknown else ():
            if (queue, task) not in self._unknown:
                self._unknown.add((queue, task))
                self.signals.report(TaskUnknown(queue=queue, task=task))

    # --- the loop

    async def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                reports = await self._tick()
                self._answered_at = monotonic()
                self._failures = 0
                if self._lease.gone:
                    await self._fence()
                await self._rest(reports)
            except Unreachable as error:
                await self._reconnect(error)
            except Exception as error:  # noqa: BLE001  # whatever it is, the worker must outlive it
                self.signals.report(RunnerFailed(runner="tick", error=f"{type(error).__name__}: {error}"))
                await self._sleep(pacing.error_delay(self._pacing, random.random()))  # noqa: S311

    async def _rest(self, reports: Sequence[Report]) -> None:
        """Go on at once after work; wait longer and longer when there is none, but never past the next due time."""
        if any(report.error for report in reports):
            await self._sleep(pacing.error_delay(self._pacing, random.random()))  # noqa: S311
        elif any(report.items for report in reports):
            self._streak = 0
            await self._pause(self._pacing.busy)
        else:
            delay = pacing.idle_delay(self._pacing, self._streak, random.random())  # noqa: S311
            self._streak += 1
            if delay < pacing.LONG or await self._ask_to_be_woken():
                await self._pause(delay)

    async def _pause(self, delay: float) -> None:
        """Sleep until the time is over, a job comes due, or something happened."""
        due = pacing.until(*self._moments(), now=monotonic())
        if due is not None:
            delay = min(delay, due)
        if delay <= 0 or self._wake.is_set():
            self._wake.clear()
            await asyncio.sleep(0)
            return
        await self._sleep(delay)
        if delay >= pacing.LONG:
            self._slept_at = monotonic()

    async def _sleep(self, delay: float) -> None:
        """Sleep until the time is over or something happened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()
        self._wake.clear()

    def _moments(self) -> list[float | None]:
        """When there is something to do: a job is due (a suspect waits while another runs alone), a lease ran out."""
        suspect = self._suspect_at if self._does("jobs") and self._can_run_alone else None
        reclaim = self._next_reclaim if self._does("reclaim") and self._survey.expired else None
        return [self._due_at, suspect, reclaim]

    def _does(self, runner: str) -> bool:
        chosen = self._plan.settings.tick_runners
        return chosen is None or runner in chosen

    async def _ask_to_be_woken(self) -> bool:
        """Make sure our wish to be woken stands; False if it was just expressed, so that one more look is due."""
        now = monotonic()
        if self._listener is None or not self._listener.listening.is_set() or now < self._flag_until - pacing.FLAG_LEFT:
            return True
        fresh = now >= self._flag_until
        await self._store.sleep(self._lease.worker, self._book.ids, pacing.FLAG_FOR)
        self._flag_until = now + pacing.FLAG_FOR
        self._slept_at = now  # we are about to; else the wish would be withdrawn for want of sleep
        if fresh:
            self._hints.update((id, self._book.lane(id).priority) for id in self._book.ids)
        return not fresh

    def _heard(self, payload: str) -> None:
        if payload == "lanes":
            self._newest_lane = -1
            self._surveyed_at = -1e9
        elif payload == "suspects":
            self._suspect_at = monotonic()
        elif payload:
            lane, _, priority = payload.partition(":")
            with contextlib.suppress(ValueError):
                self._hints.add((int(lane), int(priority)))
        self._wake.set()

    # --- runners

    async def _reclaim(self, _budget: Budget) -> int:
        if not self._survey.expired or monotonic() < self._next_reclaim:
            return 0
        scan = self._plan.settings.reclaim_scan.total_seconds()
        self._next_reclaim = monotonic() + scan * (0.9 + 0.2 * random.random())  # noqa: S311
        reclaimed = await reclaim_expired(self._store)
        for each in reclaimed:
            self.signals.report(each.signal("expired"))
        self._survey.expired = False
        self._surveyed_at = -1e9
        return sum(each.jobs for each in reclaimed)

    async def _promote(self, _budget: Budget) -> int:
        """Look around when it is time to: what came due, what lies below the floors, who died."""
        now = monotonic()
        # A hint comes first: whoever wakes us wants the job started, not the surroundings explored.
        every = 0.0 if self._resting and not self._hints else pacing.SURVEY_BUSY
        due = pacing.until(*self._moments(), now=now)
        if now - self._surveyed_at < every and due != 0.0:
            return 0
        bottom = pacing.bottom_allowed(now, self._bottom_at, self._bottom_cost)
        survey = await self._store.survey(self._book.ids, bottom=bottom, most=self._plan.settings.batch)
        done = monotonic()
        self._surveyed_at = done
        if bottom:
            self._bottom_at, self._bottom_cost = done, done - now
        await self._take_survey(survey, bottom=bottom)
        return survey.count

    async def _take_survey(self, survey: Survey, *, bottom: bool) -> None:
        now = monotonic()
        self._survey = survey
        self._due_at = None if survey.due_in is None else now + survey.due_in
        suspect_at = None if survey.suspect_in is None else now + survey.suspect_in
        self._suspect_at = None if suspect_at is None else max(suspect_at, self._no_suspect_before)
        self._runner.surveyed(survey, bottom=bottom)
        if survey.ready or survey.promoted:
            self._streak = 0
        if survey.newest_lane > self._newest_lane:
            await self._refresh_lanes()
            self._newest_lane = max(self._newest_lane, survey.newest_lane)
            self._surveyed_at = -1e9
            self._wake.set()
        if now - self._slept_at > pacing.BUSY_AFTER and self._flag_until:
            self._flag_until = 0.0
            await self._store.awake(self._lease.worker)

    async def _upkeep(self, _budget: Budget) -> int:
        """Partitions and purges: once an hour in the whole cluster."""
        now = monotonic()
        if now < self._next_upkeep:
            return 0
        self._next_upkeep = now + UPKEEP_LOOK
        await self._refresh_lanes()
        if not await self._store.turn("upkeep", self._lease.worker, UPKEEP_EVERY):
            return 0
        settings = self._plan.settings
        keep = Retention(settings.retention_done, settings.retention_failed, settings.retention_log)
        await upkeep(self._link.conn, settings.schema, keep)
        for each in await reclaim_abandoned(self._store):
            self.signals.report(each.signal("orphaned"))
        return 0

    async def _step_jobs(self, _budget: Budget) -> int:
        """Background mode: settle, claim, go on; running jobs stay across ticks."""
        took = await self._take_suspect()
        hinted = self._take_hints()
        if self._resting and not hinted and not self._runner.has_settlements:
            return took  # the survey has just looked, and there was nothing
        return took + await self._runner.step()

    @property
    def _resting(self) -> bool:
        """Whether there was nothing to do for long enough that only surveys look."""
        return pacing.idle_delay(self._pacing, self._streak, 0.0) >= pacing.LONG

    async def _drain_jobs(self, budget: Budget) -> int:
        """Tick mode: claim within the budget and wait for what was started."""
        self._runner.limit(budget.items)
        total = 0
        while True:
            claimed = await self._runner.step()
            claimed += await self._take_suspect()
            total += claimed
            if not claimed and not self._runner.in_hand:
                return total
            if budget.seconds < 1 and self._runner.claiming:
                self._runner.claiming = False
                self._runner.release_waiting()
            if not claimed and not self._runner.has_settlements:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH):
                        await self._wake.wait()
            self._wake.clear()

    def _take_hints(self) -> bool:
        hints, self._hints = self._hints, set()
        cheap = pacing.BOTTOM_COST * self._bottom_cost < pacing.BOTTOM_EVERY
        for entry in hints:
            # A hint may speak of a late commit below the floor: look there if looking is cheap now.
            self._book.hinted(entry, deep=cheap)
        if hints:
            self._streak = 0
        return bool(hints)

    async def _take_suspect(self) -> int:
        """Run one job whose process died, in a child; without a child, when nothing else runs here."""
        due = self._suspect_at is not None and self._suspect_at <= monotonic()
        if self._alone is None:
            self._runner.reserved = due or self._runner.runs_alone
            if self._runner.in_hand:
                return 0
        if not due or self._runner.runs_alone:
            return 0
        took = await self._runner.claim_suspect()
        if not took:  # locked by somebody, say: the next survey will name it again, and that may be at once
            self._no_suspect_before = monotonic() + pacing.SURVEY_BUSY
        self._suspect_at = monotonic() if took else None  # there may be more
        return int(took)

    @property
    def _can_run_alone(self) -> bool:
        """Whether a suspect could start now: in the child, or here when nothing else is in hand."""
        return not (self._runner.runs_alone or (self._alone is None and self._runner.in_hand))

    async def _run_alone_here(self, attempt: Attempt) -> Outcome:
        return await attempt.run(self._threads, result_limit=self._plan.settings.payload_limit)

    # --- the lease

    _cancelled = 0  # handlers that were told to stop since the lease went

    async def _watch(self) -> None:
        """Look after deadlines and the lease, whatever the loop is waiting for."""
        while True:
            self._lease.board.beat()
            try:
                self._look_around()
            except Exception as error:  # noqa: BLE001  # no process to be had, say: the next look may find one
                self.signals.report(RunnerFailed(runner="watch", error=f"{type(error).__name__}: {error}"))
            await asyncio.sleep(WATCH)

    def _look_around(self) -> None:
        self._runner.expire()
        if self._lease.gone:
            self._cancelled = max(self._cancelled, self._runner.interrupt_all(LostLease()))
            self._wake.set()
        self._report_keeper()

    def _report_keeper(self) -> None:
        renewals, failures = self._lease.news()
        if renewals:
            self.signals.report(LeaseRenewed(name=self.name, count=renewals))
        if failures:
            self.signals.report(RenewalFailed(name=self.name, count=failures))
        code = self._lease.look_after_keeper()
        if code is not None:
            self.signals.report(KeeperRestarted(name=self.name, exit_code=code))

    async def _fence(self) -> None:
        """The lease is gone: cancel everything, forget it, and go on under a new identity."""
        old = self._lease
        cancelled, self._cancelled = max(self._cancelled, self._runner.forget()), 0
        await self._runner.join(CLEAN_UP)
        self._lease = await self._begin_lease()
        self._runner.identity = Identity(self._lease.worker)
        self._runner.marks = self._lease.board
        old.end(closed=True)
        self._flag_until = 0.0
        self.signals.report(
            WorkerFenced(name=self.name, old=str(old.worker), new=str(self._lease.worker), cancelled=cancelled)
        )
        await self._hand_back(old)

    async def _hand_back(self, lease: Lease) -> None:
        """Give back what is left in the name of a lease we gave up; if others were quicker, nothing is.

        Nobody is charged: handlers were told to stop, nothing died.
        """
        for each in await hand_back(self._store, lease.worker, started=()):
            self.signals.report(each.signal("handed_back"))

    async def _reconnect(self, error: Exception) -> None:
        """Find the database again; then learn what became of the statement whose reply was lost."""
        lost_at = monotonic()
        while not self._stopping.is_set():
            # Counted until a tick succeeds: a server with a full disk lets us in and refuses the next statement.
            delay = pacing.reconnect_delay(self._failures, random.random())  # noqa: S311
            self._failures += 1
            self.signals.report(ConnectionLost(error=" ".join(str(error).split())[:300], delay=delay))
            await self._wait_for_stop(delay)
            try:
                await self._recover()
            except Exception as again:  # noqa: BLE001  # a standby, a schema half migrated: whatever it is, it passes
                error = again
                continue
            # Workers that were cut off as we were come first: what they hold is not a dead worker's.
            self._next_reclaim = monotonic() + min(self._lease.seconds, 2 * pacing.RECONNECT_MAX)
            self.signals.report(ConnectionRestored(down_for=monotonic() - lost_at))
            return

    async def _wait_for_stop(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    async def _recover(self) -> None:
        with contextlib.suppress(Exception):
            await self._link.close()
        self._link = await Link.open(self._plan.database, name=f"kept worker {self.name}"[:63])
        self._store.link = self._link
        self._flag_until = 0.0  # a server that crashed has forgotten who sleeps
        await migrate.acheck(self._link.conn, self._plan.settings.schema)
        session = None if self._lease.gone else await self._store.next_session(self._lease.worker)
        if session is None:
            await self._fence()
            return
        self._runner.identity.session = session
        self._runner.take(await self._store.adopt(self._lease.worker, self._runner.known()))
        if self._stopping.is_set():
            self._runner.release_waiting()

    # --- ending

    _hurried = False

    async def _drain(self, until: float) -> None:
        grace = max(0.0, until - monotonic())
        self.signals.report(WorkerDraining(name=self.name, running=self.running, grace=grace))
        self._runner.release_waiting()
        while self._runner.in_hand and monotonic() < until and not self._hurried:
            pause = WATCH if await self._flush() else pacing.RECONNECT_MAX / 10
            if self._runner.in_hand:
                await self._sleep(min(pause, max(0.0, until - monotonic())))
        self._released = self._runner.interrupt_all(Released(started=True, reason="aborted:shutdown"))
        await self._runner.join(CLEAN_UP)
        if not await self._flush():
            await self._flush()  # the connection was lost and is new: once more, then it is the keeper's

    _released = 0

    async def _flush(self) -> bool:
        """Write what is finished; False if the database did not answer."""
        try:
            async with asyncio.timeout(CLEAN_UP):
                while self._runner.has_settlements:
                    before = self._runner.in_hand
                    await self._runner.step()
                    if self._runner.in_hand == before:
                        break
        except Exception as error:  # noqa: BLE001  # whatever it is, shutdown goes on
            self.signals.report(ConnectionLost(error=" ".join(str(error).split())[:300], delay=0.0))
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLEAN_UP):
                    await self._recover()
            return False
        return True

    async def _close(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        if self._listener is not None:
            await self._listener.stop()
        if self._alone is not None:
            await self._alone.close()
        closed = False
        with contextlib.suppress(Exception):
            if self._lease.gone:
                await self._hand_back(self._lease)
                closed = True
            elif not self._runner.in_hand:
                await self._store.awake(self._lease.worker)
                await self._store.close(self._lease.worker)
                closed = True
        await self._link.close()
        self._lease.end(closed=closed)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.signals.report(WorkerStopped(worker=str(self._lease.worker), name=self.name, released=self._released))


def _in_shard(lane: Lane, settings: Settings) -> bool:
    return settings.shard_count is None or lane.id % settings.shard_count == settings.shard_index


async def declare(store: Store, registry: Registry) -> tuple[int, int]:
    """Register the lanes of every declared task; (changed, added)."""
    lanes = [declaration.lane() for declaration in registry]
    return await store.declare(lanes) if lanes else (0, 0)


async def tick_once(plan: Plan, signals: Signals) -> list[Report]:
    """One pass in order within budgets; waits for what it started."""
    worker = Worker(plan, signals)
    await worker.open()
    return await worker.once()
