"""Who acts in the world of jobs: what handlers do, what producers do, and a worker process with its keepers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from kept import App, Context, Defer, Failure, Retry, Skip
from kept.config import Settings
from kept.db.connect import Link
from kept.db.queries import load
from kept.db.tx import arun
from kept.jobs import door
from kept.jobs.store import Store
from kept.worker.keeper import Keeper
from kept.worker.worker import Worker
from simulation_oracle import Accepted, Oracle, Terms
from simulation_stage import ACTOR, Gated, Loop, Stage

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
LEASE, RENEW, SCAN = timedelta(seconds=10), timedelta(seconds=3), timedelta(seconds=2)
SQL = load("kept.jobs", "kept")  # the very one that a worker of this schema uses
SETTINGS = Settings(
    concurrency=2,
    batch=4,
    poll_only=True,
    lease=LEASE,
    renew=RENEW,
    reclaim_scan=SCAN,
    error_backoff=timedelta(seconds=1),
    tick_runners=("reclaim", "promote", "jobs"),
)
TASKS = {
    "plain": {"retry": Retry(max_attempts=2, delay="2s", max_delay="4s", jitter="0s"), "timeout": "20s"},
    "eager": {"retry": Retry(max_attempts=3, delay="100ms", max_delay="1s"), "timeout": "8s", "priority": 5},
    "ordered": {"retry": Retry(max_attempts=2, delay="1s", max_delay="2s"), "ordered": True},
    "aside": {"retry": Retry(max_attempts=2, delay="1s", max_delay="2s"), "ordered": "step_aside"},
}
PREPARE = """
create table if not exists kept.world (at timestamptz not null);
create table if not exists kept.effect (job bigint not null, attempt int not null);
create or replace function kept.now() returns timestamptz language sql stable as 'select at from kept.world';
alter table kept.job set (autovacuum_enabled = false);
alter table kept.worker set (autovacuum_enabled = false);
"""
CLEAN = """
truncate kept.job, kept.unique_key, kept.worker, kept.sleeper, kept.history, kept.job_log, kept.lane, kept.reclaim,
         kept.world, kept.effect restart identity cascade
"""


class Wish(NamedTuple):
    """One job that a producer wants."""

    task: str
    key: str | None = None
    delay: float = 0.0
    priority: int | None = None
    order_key: str | None = None
    unique_for: float = 86_400.0

    def request(self) -> door.Request:
        return door.Request(
            queue="q",
            task=self.task,
            payload="{}",
            priority=self.priority,
            delay=self.delay,
            key=self.key,
            unique_for=self.unique_for,
            order_key=self.order_key,
        )


@dataclass
class Hand:
    """A worker process, and the keepers of its identities."""

    actor: str
    worker: Worker
    keepers: dict[UUID, Keeper] = field(default_factory=dict)
    stopping: bool = False

    @property
    def keeper(self) -> Keeper:
        return self.keepers[self.worker._post.lease.worker]


class Cast:
    """A stage with a database behind it, and what everybody on it does."""

    def __init__(self, database: str, conn: psycopg.Connection, loop: Loop) -> None:
        self.database = database
        self.conn = conn
        self.loop = loop
        self.stage = Stage(conn, loop, {SQL[name]: name for name in SQL})
        self.oracle = Oracle(conn)
        self.now = self.furthest = BEGIN
        self.workers: dict[str, Hand] = {}  # by place
        self.ghosts: dict[str, Hand] = {}  # the last that died at a place
        self.hands: list[Hand] = []
        self.producers: dict[str, tuple[str, Link | None]] = {}
        self.meant: dict[Gated, dict[int, Accepted]] = {}  # what a transaction is about to commit
        self.completing: dict[Gated, tuple[int, int]] = {}  # which attempt it is about to complete
        self.trace: list[tuple[object, ...]] = []
        self._said: dict[Gated, list[tuple[str, datetime]]] = {}
        self._crowded: set[Gated] = set()  # whose transaction was not the only one
        self._dead: dict[Gated, frozenset[UUID]] = {}  # whose lease was over when it looked for such
        self.stirring: set[str] = set()  # frozen workers that say what they were about to say
        self._count = 0
        self._handling: set[str] = set()
        self._busy: dict[str, asyncio.Task[Any]] = {}  # keepers and producers in the middle of something

    # --- the beginning

    async def begin(self) -> None:
        self.conn.execute(PREPARE)
        self.conn.execute(CLEAN)
        self.conn.execute("insert into kept.world values (%s)", [self.now])
        self.app = App(self.database, settings=SETTINGS)
        for name, options in TASKS.items():
            self.app.task(name=name, queue="q", **options)(self._handler())
        link = await Link.open(self.database)
        await Store(link).declare([declaration.lane() for declaration in self.app.registry])
        for lane in await Store(link).lanes(None):
            aside = TASKS[lane.task].get("ordered") == "step_aside"
            self.oracle.lanes[lane.id] = Terms(lane.task, lane.max_attempts, lane.ordered, aside)
        await link.close()

    async def connect(self, database: str, *, name: str = "") -> Link:
        """What a worker or a keeper gets when it connects."""
        return await self.stage.link(ACTOR.get().partition("#")[0], database)

    # --- producers and handlers

    async def _produce(self, place: str, wishes: list[Wish], end: str) -> None:
        actor, link = self.producers[place]
        if link is None:
            link = await self.stage.link(place, self.database)
            self.producers[place] = (actor, link)
        conn: Any = link.conn
        made: dict[int, Accepted] = {}
        with suppress(psycopg.Error):
            async with conn.transaction():
                for some in (wishes[:1], wishes[1:]):
                    made |= await self._enqueue(conn, some, made)
                if end != "commit":
                    raise psycopg.Rollback
                self.meant[conn] = made

    async def _enqueue(self, conn: Any, wishes: list[Wish], before: dict[int, Accepted]) -> dict[int, Accepted]:
        """One call of the front door; what it made, to be accepted if the transaction commits."""
        requests = [wish.request() for wish in wishes]
        steps = door.enqueue(SQL, requests[0]) if len(requests) == 1 else door.enqueue_many(SQL, requests)
        answer = await arun(conn, steps)
        made: dict[int, Accepted] = {}
        for wish, ticket in zip(wishes, [answer] if isinstance(answer, door.Ticket) else answer, strict=True):
            key = wish.key and f"{wish.task}:{wish.key}"
            accepted = Accepted(wish.task, key, self.now + timedelta(seconds=wish.unique_for))
            if ticket.id not in before | made:
                self.oracle.told(ticket.id, accepted, created=ticket.created, now=self.now)
            if ticket.created:
                made[ticket.id] = accepted
        return made

    def _handler(self) -> Any:
        async def handle(ctx: Context) -> None:
            await self._handle(ctx)

        return handle

    async def _handle(self, ctx: Context) -> None:
        claimed, place = ctx._claimed, ACTOR.get().partition("#")[0]
        if ACTOR.get() in self.stage.dead:
            return
        mine = next(name for n in range(100) if (name := f"{place}.h{n}") not in self._handling)
        self._handling.add(mine)
        self.oracle.begins(claimed.id, claimed.attempt, claimed.worker)
        end = partial(self.oracle.ended, claimed.id, claimed.attempt)
        try:
            how = await self.stage.gate(mine, f"job {claimed.id}, attempt {claimed.attempt}")
            if how in ("complete", "unkept"):
                how = await self._complete(ctx, mine, how)
            end(how)
        except asyncio.CancelledError:
            end("interrupted")
            raise
        except BaseException:
            end("raise")
            raise
        finally:
            self._handling.discard(mine)
        match how:
            case "raise":
                raise Failure("no luck", code="no_luck")
            case "fatal":
                raise Failure("never", code="never", retryable=False)
            case "defer":
                raise Defer("3s")
            case "skip":
                raise Skip

    async def _complete(self, ctx: Context, mine: str, how: str) -> str:
        """Settle the job in a transaction of the handler's own, with an effect; or roll that back and say nothing."""
        link = await self.stage.link(f"{mine}t", self.database)
        conn: Any = link.conn
        try:
            async with conn.transaction(), self._stoppable(ctx):
                await conn.execute("insert into kept.effect values (%s, %s)", [ctx._claimed.id, ctx._claimed.attempt])
                await ctx.acomplete(conn)
                if how == "unkept":
                    raise psycopg.Rollback
                self.completing[conn] = (ctx._claimed.id, ctx._claimed.attempt)
        finally:
            self.stage.connections[conn.actor].remove(conn)
            await conn.close()
        return how

    @asynccontextmanager
    async def _stoppable(self, ctx: Context) -> AsyncIterator[None]:
        """A handler that is told to stop is told so now, whatever it does then."""
        try:
            yield
        except asyncio.CancelledError:
            self.oracle.ended(ctx._claimed.id, ctx._claimed.attempt, "interrupted")
            raise

    @property
    def producing(self) -> bool:
        """Whether somebody may yet enqueue something."""
        return any(not task.done() for place, task in self._busy.items() if place in self.producers)
