"""The App: what a program declares, and the way in and out of its database."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from kept.config import Settings
from kept.db import tx as txs
from kept.db.embedded import Embedded, is_embedded, location
from kept.db.pool import AsyncPool, SyncPool
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.db.tx import Steps
from kept.durations import Duration, duration
from kept.errors import JobCancelled, JobFailed, NotFound, Refused, ResultPending
from kept.jobs import door
from kept.jobs.declaration import Declaration, wants_context
from kept.jobs.door import Outcome, Record, Request, Ticket
from kept.jobs.handle import Job
from kept.jobs.payload import Signature, check_name, decode_result
from kept.jobs.registry import Registry
from kept.jobs.retry import Retry
from kept.loading import locate
from kept.signals import JobsSettled, Signal, Signals
from kept.tasks import (
    MOST_QUEUE,
    MOST_TASK,
    AsyncTask,
    Call,
    SyncTask,
    TaskDecorator,
    check_priority,
    is_async,
)
from kept.worker.worker import Plan, Worker, tick_once

T = TypeVar("T")
R = TypeVar("R")
POLL_FIRST, POLL_MOST = 0.005, 0.25  # seconds between looks for a result


class App:
    """The tasks of a program and the database their jobs live in.

    ``App("postgresql://…")``, or the URL in KEPT_DATABASE_URL; ``embedded:`` starts a PostgreSQL of your own.
    Nothing is opened before it is needed. *imports* names modules that declare tasks; *default_tx* is asked for a
    transaction whenever a call has none.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        imports: Iterable[str] = (),
        default_tx: Callable[[], object | None] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.registry = Registry()
        self.signals = Signals()
        self._database = database
        self._imports = tuple(imports)
        self._default_tx = default_tx
        self._given = settings
        self._settings: Settings | None = None
        self._embedded: Embedded | None = None
        self._pools: tuple[SyncPool, AsyncPool] | None = None
        self._made_in = str(sys._getframe(1).f_globals.get("__name__", ""))

    # --- declaring

    def task(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
    ) -> TaskDecorator:
        """Declare a task: ``@app.task(queue="mail", retry=Retry(max_attempts=5), timeout="30s")``."""

        def decorate(handler: Callable[..., Any]) -> AsyncTask[Any, Any] | SyncTask[Any, Any]:
            declaration = self._declare(handler, name, aliases, queue, retry, timeout, priority)
            kind = AsyncTask if declaration.is_async else SyncTask
            return kind(self, declaration)

        return decorate  # type: ignore[return-value]  # its overloads say which of the two comes back

    def _declare(
        self,
        handler: Callable[..., Any],
        name: str | None,
        aliases: Iterable[str],
        queue: str,
        retry: Retry | None,
        timeout: Duration | None,
        priority: int,
    ) -> Declaration:
        called = check_name(name or getattr(handler, "__name__", None), what="task", most=MOST_TASK)
        takes_context = wants_context(handler, called)
        limit = self.settings.timeout if timeout is None else duration(timeout, field="timeout")
        if not limit:
            raise Refused(f"task {called!r}: the timeout must not be zero", field="timeout")
        declaration = Declaration(
            name=called,
            aliases=tuple(check_name(alias, what="alias", most=MOST_TASK) for alias in aliases),
            queue=check_name(queue, what="queue", most=MOST_QUEUE),
            retry=retry or self._default_retry(),
            timeout=limit.total_seconds(),
            priority=check_priority(priority),
            handler=handler,
            is_async=is_async(handler),
            takes_context=takes_context,
            signature=Signature(handler, task=called, takes_context=takes_context),
        )
        self.registry.add(declaration)
        return declaration

    def _default_retry(self) -> Retry:
        settings = self.settings
        return Retry(
            max_attempts=settings.max_attempts,
            delay=settings.retry_base,
            max_delay=settings.retry_max,
            jitter=settings.retry_jitter,
        )

    def load_imports(self) -> None:
        """Import the modules named by *imports*, so that all tasks are declared."""
        for module in self._imports:
            importlib.import_module(module)

    # --- configuration and connections

    @property
    def settings(self) -> Settings:
        """The settings in force: given, or read from the environment on first use."""
        if self._settings is None:
            self._settings = self._given or Settings.from_env(os.environ)
        return self._settings

    @property
    def payload_limit(self) -> int:
        return self.settings.payload_limit

    @property
    def database(self) -> str:
        """The database's URL; an embedded server is started, and stays until :meth:`close`."""
        url = self._database or self.settings.require_database()
        if not is_embedded(url):
            return url
        if self._embedded is None:
            self._embedded = Embedded(location(url))
            return self._embedded.acquire()
        return self._embedded.url()

    @property
    def sql(self) -> Queries:
        return load_queries("kept.jobs", self.settings.schema)

    @property
    def location(self) -> str | None:
        """Where another process finds this App, as ``module:name``; None if it cannot."""
        return self._location or locate(self, self._made_in)

    _location: str | None = None

    def configure(self, settings: Settings, location: str | None = None) -> None:
        """Put these settings in force, as a command line does; a database they name wins over the App's own."""
        self._settings = settings
        self._database = settings.database or self._database
        self._location = location

    def _pool(self) -> tuple[SyncPool, AsyncPool]:
        if self._pools is None:
            url = self.database
            self._pools = (SyncPool(url), AsyncPool(url))
        return self._pools

    def close(self) -> None:
        """Close what was opened; the App can be used again."""
        if self._pools is not None:
            self._pools[0].close()
            self._pools = None
        if self._embedded is not None:
            self._embedded.release()
            self._embedded = None

    async def aclose(self) -> None:
        """:meth:`close` for async code."""
        if self._pools is not None:
            await self._pools[1].close()
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def lifespan(self, _asgi: object = None) -> AsyncIterator[None]:
        """For ASGI apps: ``FastAPI(lifespan=app.lifespan)`` runs a worker beside the requests and stops it after."""
        async with self, self.worker():
            yield

    # --- running one operation in whatever transaction there is

    def _run(self, steps: Steps[T], tx: object | None) -> T:
        tx = self._transaction(tx)
        if tx is not None:
            return txs.run(txs.sync_tx(tx), steps)
        _refuse_on_loop()
        with self._pool()[0].connection() as conn, conn.transaction():
            return txs.run(conn, steps)

    async def _arun(self, steps: Steps[T], tx: object | None) -> T:
        tx = self._transaction(tx)
        if tx is not None:
            return await txs.arun(txs.async_tx(tx), steps)
        async with self._pool()[1].connection() as conn, conn.transaction():
            return await txs.arun(conn, steps)

    def _transaction(self, tx: object | None) -> object | None:
        return self._default_tx() if tx is None and self._default_tx is not None else tx

    # --- enqueue

    def enqueue_request(self, request: Request, tx: object | None) -> Job[Any]:
        """Write one job."""
        ticket = self._run(door.enqueue(self.sql, request), tx)
        return self._job_of(request, ticket) if ticket.created else self._existing(ticket, tx)

    async def aenqueue_request(self, request: Request, tx: object | None) -> Job[Any]:
        """:meth:`enqueue_request` for async code."""
        ticket = await self._arun(door.enqueue(self.sql, request), tx)
        return self._job_of(request, ticket) if ticket.created else await self._aexisting(ticket, tx)

    def enqueue_many(self, calls: Iterable[Call[R]], *, tx: object | None = None) -> list[Job[R]]:
        """Write many jobs in one go, in order: all of them or none."""
        requests = _requests(calls)
        tickets = self._run(door.enqueue_many(self.sql, requests), tx)
        return [self._job_of(request, ticket) for request, ticket in zip(requests, tickets, strict=True)]

    async def aenqueue_many(self, calls: Iterable[Call[R]], *, tx: object | None = None) -> list[Job[R]]:
        """:meth:`enqueue_many` for async code."""
        requests = _requests(calls)
        tickets = await self._arun(door.enqueue_many(self.sql, requests), tx)
        return [self._job_of(request, ticket) for request, ticket in zip(requests, tickets, strict=True)]

    def _job_of(self, request: Request, ticket: Ticket) -> Job[Any]:
        return Job(
            id=ticket.id,
            task=request.task,
            queue=request.queue,
            key=request.key,
            state="pending",
            created=ticket.created,
            due_at=request.due_at,
            _app=self,
        )

    def _existing(self, ticket: Ticket, tx: object | None) -> Job[Any]:
        return replace(self._found(self._run(door.find(self.sql, [ticket.id]), tx), ticket.id), created=False)

    async def _aexisting(self, ticket: Ticket, tx: object | None) -> Job[Any]:
        return replace(self._found(await self._arun(door.find(self.sql, [ticket.id]), tx), ticket.id), created=False)

    # --- looking at jobs

    def job(self, id: int) -> Job[Any]:
        """The job with this id, live or settled."""
        return self._found(self._run(door.find(self.sql, [id]), None), id)

    async def ajob(self, id: int) -> Job[Any]:
        """:meth:`job` for async code."""
        return self._found(await self._arun(door.find(self.sql, [id]), None), id)

    def _found(self, records: list[Record], id: int) -> Job[Any]:
        if not records:
            raise NotFound(f"there is no job {id}; it may have been purged")
        record = records[-1]
        return Job(
            id=record.id,
            task=record.task,
            queue=record.queue,
            key=record.key,
            state=record.state,  # type: ignore[arg-type]  # the view gives the six states
            code=record.code,
            reason=record.reason,
            message=record.message,
            attempt=record.attempt,
            priority=record.priority,
            created_at=record.created_at,
            due_at=record.due_at,
            settled_at=record.settled_at,
            retry_of=record.retry_of,
            headers=record.headers or {},
            _app=self,
        )

    def result_of(self, job: Job[Any], timeout: Duration) -> Any:
        """Wait for the job's end; see :meth:`Job.result`."""
        deadline = time.monotonic() + duration(timeout, field="timeout").total_seconds()
        pause = POLL_FIRST
        while (outcome := self._run(door.outcome(self.sql, job.id), None)) is None:
            if time.monotonic() >= deadline:
                raise ResultPending(f"job {job.id} was not settled within {timeout}")
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(POLL_MOST, pause * 2)
        return self._result(job, outcome)

    async def aresult_of(self, job: Job[Any], timeout: Duration) -> Any:
        """:meth:`result_of` for async code."""
        deadline = time.monotonic() + duration(timeout, field="timeout").total_seconds()
        pause = POLL_FIRST
        while (outcome := await self._arun(door.outcome(self.sql, job.id), None)) is None:
            if time.monotonic() >= deadline:
                raise ResultPending(f"job {job.id} was not settled within {timeout}")
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(POLL_MOST, pause * 2)
        return self._result(job, outcome)

    def _result(self, job: Job[Any], outcome: Outcome) -> Any:
        match outcome.state:
            case "done":
                declaration = self.registry.find(job.task)
                return decode_result(outcome.result, declaration.signature.result_type if declaration else Any)
            case "failed":
                raise JobFailed(
                    f"job {job.id} failed ({outcome.reason}): {outcome.code}: {outcome.message}",
                    job_id=job.id,
                    job_code=outcome.code,
                    reason=outcome.reason,
                )
            case _:
                raise JobCancelled(f"job {job.id} was {outcome.state}: {outcome.message or outcome.reason}")

    def cancel_job(self, job: Job[Any]) -> Job[Any]:
        """Settle a pending job as cancelled; see :meth:`Job.cancel`."""
        self._check_cancelled(job, self._run(door.cancel(self.sql, job.id), None))
        return self.job(job.id)

    async def acancel_job(self, job: Job[Any]) -> Job[Any]:
        """:meth:`cancel_job` for async code."""
        self._check_cancelled(job, await self._arun(door.cancel(self.sql, job.id), None))
        return await self.ajob(job.id)

    def _check_cancelled(self, job: Job[Any], state: str | None) -> None:
        if state is None:
            raise NotFound(f"there is no job {job.id}; it may have been purged")
        if state == "running":
            raise Refused(f"job {job.id} is running; only pending jobs can be cancelled for now")
        if state not in ("pending", "cancelled"):
            raise Refused(f"job {job.id} is {state} already")

    # --- working

    def plan(self, *, kept: bool = True, once: bool = False, **changes: Any) -> Plan:
        """What a worker of this App is to do; *changes* replace settings."""
        self.load_imports()
        return Plan(
            registry=self.registry,
            settings=replace(self.settings, **changes),
            database=self.database,
            location=self.location,
            kept=kept,
            once=once,
        )

    def worker(self, *, queues: Iterable[str] | None = None, concurrency: int | None = None) -> Worker:
        """A worker inside this process: ``async with app.worker(): …``."""
        changes: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
        if queues is not None:
            changes["queues"] = tuple(check_name(queue, what="queue", most=MOST_QUEUE) for queue in queues)
        return Worker(self.plan(**changes), self.signals)

    async def drain(self) -> list[Job[Any]]:
        """Run everything that is due, here and now, and return the jobs that were settled: for tests."""
        settled: list[int] = []

        def note(signal: Signal) -> None:
            if isinstance(signal, JobsSettled):
                settled.extend(each.job_id for each in signal.jobs if each.state != "pending")

        stop = self.signals.subscribe(note)
        try:
            hour = timedelta(hours=1)
            limits = {"tick_items": 2**31 - 1, "lease": hour, "tick_overall": hour, "tick_runner": hour}
            await tick_once(self.plan(kept=False, once=True, **limits), self.signals)
        finally:
            stop()
        records = await self._arun(door.find(self.sql, settled), None)
        return [self._found([record], record.id) for record in records]


def _requests(calls: Iterable[Call[Any]]) -> list[Request]:
    requests = []
    for call in calls:
        if not isinstance(call, Call):
            raise TypeError(f"enqueue_many: expected task.bind(…), got {type(call).__name__}")
        if call.tx is not None:
            raise Refused("enqueue_many: give the transaction as enqueue_many(…, tx=…), not to single calls", field="tx")
        requests.append(call.request)
    return requests


def _refuse_on_loop() -> None:
    """A sync call on a running event loop would block it: say so instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Refused("this is a sync call on a running event loop; await the async one (aenqueue, ajob, aresult, …)")
