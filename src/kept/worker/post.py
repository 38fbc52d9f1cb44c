"""A worker's post: its connection, its lanes, its lease and its runner; how it is taken up, lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Self

import psycopg

from kept.config import Settings
from kept.db import migrate
from kept.db.connect import Link
from kept.db.lineage import Lineage, followed, lineage_of
from kept.db.queries import Queries, load
from kept.db.tx import arun
from kept.jobs.attempt import Attempt
from kept.jobs.lanes import LaneBook
from kept.jobs.model import Lane, LostLease, Outcome
from kept.jobs.reclaim import hand_back
from kept.jobs.registry import Registry
from kept.jobs.runner import JobsRunner
from kept.jobs.running import Options
from kept.jobs.settling import Identity
from kept.jobs.store import Store
from kept.outbox.subscriptions import Added, Registered, Subscriptions, missed, register
from kept.outbox.types import EventTypes
from kept.runners.model import Lost, RunnerDeclaration
from kept.runners.rules import BUILT_IN, chosen
from kept.runners.runner import OwnRunners, Terms
from kept.runners.store import RunnerStore
from kept.schedules.declared import Definitions, Synchronised, synchronise
from kept.signals import KeeperRestarted, LeaseRenewed, RenewalFailed, Signals, TaskUnknown, Warned, WorkerFenced
from kept.worker.alone import Alone
from kept.worker.lease import Lease

LEAST_STALL = 600.0  # seconds without a sign of life before a keeper ends its worker, at least
CLEAN_UP = 5.0  # seconds for cancelled handlers to tidy up


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker is to do: whose tasks, from which queues, by which settings."""

    registry: Registry
    subscriptions: Subscriptions
    event_types: EventTypes
    definitions: Definitions
    settings: Settings
    database: str
    runners: tuple[RunnerDeclaration, ...] = ()
    location: str | None = None  # where a child process finds the App
    spare: bool = False  # have such a child stand by before it is needed
    kept: bool = True  # put a keeper beside the lease
    once: bool = False  # tick mode: budgets bind, and what was started is waited for


class Post:
    """What a worker works with. Between :meth:`take_up` and :meth:`leave` it is always whole."""

    def __init__(self, plan: Plan, signals: Signals, name: str, wake: Callable[[], None]) -> None:
        self.plan = plan
        self.signals = signals
        self.name = name
        self.book = LaneBook()
        self.newest_lane = 0
        self.threads = ThreadPoolExecutor(plan.settings.concurrency, thread_name_prefix="kept-handler")
        self.alone = _alone(plan)
        self.own = _own(plan, signals, name, wake)
        self.link: Link
        self.store: Store
        self.lease: Lease
        self.runner: JobsRunner
        self._wake = wake
        self._secure = True  # the lease, when we last looked
        self._cancelled = 0  # handlers that were told to stop since the lease went
        self._unknown: set[tuple[str, str]] = set()
        self._taken: set[str] = set()
        self._lineage: Lineage | None = None  # of the server that we last worked on

    async def take_up(self) -> Self:
        """Connect, check the schema, register lanes and begin a lease."""
        await self._connect()
        try:
            self.store = Store(self.link, self.plan.settings.schema)
            self._tell(await declare(self.link, self.plan, who=f"worker {self.name}"))
            await self.refresh_lanes()
            await self.own.declare()
            self.lease = await self._begin_lease()
        except BaseException:
            await self.link.close()
            raise
        self.runner = self._make_runner()
        if self.alone is not None and self.plan.spare:
            self.alone.keep_spare(self.name, self.signals, busy=lambda: not self.runner.exhausted)
        return self

    def _tell(self, declared: Declared) -> None:
        for each in declared.registered.added:
            self.signals.report(Warned(code="new_subscription", message=str(each)))
        for odd in declared.registered.unmatched:
            self.signals.report(Warned(code="unmatched_pattern", message=str(odd)))
        self._tell_taken(declared.schedules)

    def _tell_taken(self, schedules: Synchronised) -> None:
        for name in schedules.taken:
            if name not in self._taken:
                self._taken.add(name)
                message = (
                    f"schedule {name} is declared here, but one of this name was added at run time: that one stands"
                )
                self.signals.report(Warned(code="schedule_taken", message=message))

    async def synchronise(self) -> None:
        """Have our schedules in force again if whoever declared others is gone."""
        self._tell_taken(await synchronise_schedules(self.link, self.plan, who=f"worker {self.name}"))

    async def leave(self, *, closed: bool) -> None:
        """Let go of everything. *closed*: nothing is in our name any more."""
        if self.alone is not None:
            await self.alone.close()
        await self.link.close()
        self.lease.end(closed=closed)
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.own.close()

    async def refresh_lanes(self) -> None:
        """Serve the lanes there are now; tell once of tasks that nobody here knows and jobs wait for."""
        settings, registry = self.plan.settings, self.plan.registry
        lanes = [lane for lane in await self.store.lanes(settings.queues) if _in_shard(lane, settings)]
        self.newest_lane = max([self.newest_lane, *(lane.id for lane in lanes)])
        self.book.serve((lane, found) for lane in lanes if (found := registry.find(lane.task)) is not None)
        unknown = [lane.id for lane in lanes if registry.find(lane.task) is None]
        for queue, task in await self.store.waiting_tasks(unknown) if unknown else ():
            if (queue, task) not in self._unknown:
                self._unknown.add((queue, task))
                self.signals.report(TaskUnknown(queue=queue, task=task))

    # --- the lease

    def look_after_lease(self) -> None:
        """Report on the keeper, and to it; when the lease is gone, tell every handler to stop."""
        if self.runner.exhausted:
            self.lease.board.say_calm()
        if self.lease.gone:
            told = self.runner.interrupt_all(LostLease()) + self.own.interrupt_all(Lost())
            self._cancelled = max(self._cancelled, told)
            self._wake()
        if self.lease.secure and not self._secure:
            self._wake()  # there may be much to claim by now
        self._secure = self.lease.secure
        renewals, failures = self.lease.news()
        if renewals:
            self.signals.report(LeaseRenewed(name=self.name, count=renewals))
        if failures:
            self.signals.report(RenewalFailed(name=self.name, count=failures))
        code = self.lease.look_after_keeper()
        if code is not None:
            self.signals.report(KeeperRestarted(name=self.name, exit_code=code))

    async def fence(self) -> None:
        """The lease is gone: cancel everything, forget it, and go on under a new identity."""
        old = self.lease
        passes = self.own.forget()
        jobs, _ = await asyncio.gather(self.runner.let_go(CLEAN_UP), self.own.join(CLEAN_UP))
        cancelled, self._cancelled = max(self._cancelled, jobs + passes), 0
        self.lease = await self._begin_lease()
        self.runner.identity = Identity(self.lease.worker)
        self.runner.unsure = False
        self.runner.marks = self.lease.board
        old.end(closed=True)
        self.signals.report(
            WorkerFenced(name=self.name, old=str(old.worker), new=str(self.lease.worker), cancelled=cancelled)
        )
        await self.hand_back(old)

    async def hand_back(self, lease: Lease) -> None:
        """Give back what is left in the name of a lease we gave up; if others were quicker, nothing is.

        Nobody is charged: handlers were told to stop, nothing died. Passes of runners are closed: at those
        of one that is no singleton nobody would look before the next upkeep.
        """
        for each in await hand_back(self.store, lease.worker, started=()):
            self.signals.report(each.signal())
        await self.own.abandon()

    async def close_lease(self) -> bool:
        """End the identity if nothing is in its name; False if that could not be done."""
        with contextlib.suppress(Exception):
            if self.lease.gone:
                await self.hand_back(self.lease)
                return True
            if not self.runner.in_hand and not self.runner.unsure and not self.own.in_hand:
                await self.store.awake(self.lease.worker)
                await self.store.close(self.lease.worker)
                return True
        return False

    # --- the connection

    async def recover(self) -> None:
        """Connect anew; then learn what became of the statement whose reply was lost."""
        with contextlib.suppress(Exception):
            await self.link.close()
        await self._connect()
        self.store.link = self.link
        self.runner.forget_early()
        session = None if self.lease.gone else await self.store.next_session(self.lease.worker)
        if session is None or await self._lost_claims():
            await self.fence()
            return
        self.runner.identity.session = session
        self.runner.take(await self.store.adopt(self.lease.worker, self.runner.known()))
        await self.own.recovered()
        self.runner.unsure = False

    async def _lost_claims(self) -> bool:
        """Whether the database forgot a claim of ours, as after a failover that lost the last moments.

        It may give such a job to us again under the very fence that its first run has, and its id to another job.
        """
        attempts = {job.id: job.attempt for job in self.runner.unsettled()}
        gone = attempts.keys() - await self.store.present(self.lease.worker, attempts) if attempts else ()
        completed = await self.store.settled_by(self.lease.worker, [(id, attempts[id]) for id in gone]) if gone else ()
        return len(gone) > len(completed)

    async def _connect(self) -> None:
        self.link = await Link.open(self.plan.database, name=f"kept worker {self.name}"[:63])
        try:
            await migrate.acheck(self.link.conn, self.plan.settings.schema)
            self._lineage = followed(self._lineage, await lineage_of(self.link.conn))
        except BaseException:
            await self.link.close()
            raise
        self.own.store = RunnerStore(self.link, self.plan.settings.schema)

    # --- making the parts

    async def _begin_lease(self) -> Lease:
        settings = self.plan.settings
        longest = max((self.own.longest, *(declaration.timeout for declaration in self.plan.registry)))
        lease = Lease(
            database=self.plan.database,
            schema=settings.schema,
            name=self.name,
            queues=settings.queues,
            concurrency=settings.concurrency,
            batch=settings.batch + sum(each.batch * each.concurrency for each in self.plan.registry),
            declared=self.plan.registry.digests(),
            schedules=self.plan.definitions.digests(),
            seconds=settings.lease.total_seconds(),
            renew=settings.renew.total_seconds(),
            stall=max(LEAST_STALL, longest + settings.grace.total_seconds()),
            kept=self.plan.kept,
        )
        await lease.begin(self.store)
        self.own.worker = lease.worker
        return lease

    def _make_runner(self) -> JobsRunner:
        settings = self.plan.settings
        return JobsRunner(
            store=self.store,
            book=self.book,
            identity=Identity(self.lease.worker),
            options=Options(settings.concurrency, settings.batch, settings.payload_limit),
            marks=self.lease.board,
            threads=self.threads,
            signals=self.signals,
            run_alone=self.alone.run if self.alone else self._run_alone_here,
            wake=self._wake,
            secure=lambda: self.lease.secure,
        )

    async def _run_alone_here(self, attempt: Attempt) -> Outcome:
        return await attempt.run(self.threads, asyncio.current_task(), monotonic())


@dataclass(frozen=True, slots=True)
class Declared:
    """What registering an App's declarations changed: lanes, who wants which events, schedules."""

    changed: int
    added: int
    registered: Registered
    schedules: Synchronised


async def declare(link: Link, plan: Plan, *, who: str = "kept", exact: bool = False) -> Declared:
    """Register the lanes of every declared task, then the subscriptions and schedules.

    A worker only adds to what other versions have registered; `kept sync` is *exact*.
    """
    lanes = [declaration.lane() for declaration in plan.registry]
    schema = plan.settings.schema
    changed, added = await Store(link, schema).declare(lanes, exact=exact) if lanes else (0, 0)
    sql = load("kept.outbox", schema)
    async with link.conn.transaction():
        registered = await arun(link.conn, register(sql, plan.subscriptions, plan.event_types, exact=exact))
    for name, id in registered.new:
        registered.added.append(Added(name, await _missed(link, sql, id)))
    return Declared(changed, added, registered, await synchronise_schedules(link, plan, who=who, exact=exact))


async def synchronise_schedules(link: Link, plan: Plan, *, who: str, exact: bool = False) -> Synchronised:
    """Make the database know the schedules that *plan* declares."""
    sql = load("kept.schedules", plan.settings.schema)
    async with link.conn.transaction():
        return await arun(link.conn, synchronise(sql, plan.definitions, who=who, exact=exact))


async def _missed(link: Link, sql: Queries, subscription: int) -> int | None:
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        async with link.conn.transaction():
            return await arun(link.conn, missed(sql, subscription))
    return None


def _own(plan: Plan, signals: Signals, name: str, wake: Callable[[], None]) -> OwnRunners:
    """The user's own runners that are to run here; what one of them lacks stops the start."""
    settings = plan.settings
    wanted = chosen(settings.tick_runners, (*BUILT_IN, *(each.name for each in plan.runners)))
    here = sorted((each for each in plan.runners if each.name in wanted), key=lambda each: wanted.index(each.name))
    for each in here:
        if each.check is not None:
            each.check(settings)
    terms = Terms(
        worker_name=name,
        items=settings.tick_items,
        seconds=settings.tick_runner.total_seconds(),
        once=plan.once,
        scan=settings.reclaim_scan.total_seconds(),
        shard_index=settings.shard_index,
        shard_count=settings.shard_count,
    )
    return OwnRunners(here, terms, signals, wake)


def _alone(plan: Plan) -> Alone | None:
    if plan.location is None:
        return None
    settings = plan.settings
    return Alone(plan.location, database=plan.database, schema=settings.schema, limit=settings.payload_limit)


def _in_shard(lane: Lane, settings: Settings) -> bool:
    return settings.shard_count is None or lane.id % settings.shard_count == settings.shard_index
