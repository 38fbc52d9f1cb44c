"""The way in and out of the database for a program: connections, enqueue, look-ups, results."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

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
from kept.jobs.door import Outcome, Record, Request, Ticket
from kept.jobs.handle import Job
from kept.jobs.payload import decode_result
from kept.jobs.registry import Registry
from kept.tasks import Call

T = TypeVar("T")
R = TypeVar("R")
POLL_FIRST, POLL_MOST = 0.005, 0.25  # seconds between looks for a result


class Client:
    """What an App does with its database. Nothing is opened before it is needed."""

    def __init__(
        self,
        database: str | None,
        settings: Settings | None,
        default_tx: Callable[[], object | None] | None,
    ) -> None:
        self.registry = Registry()
        self._database = database
        self._given = settings
        self._default_tx = default_tx
        self._settings: Settings | None = None
        self._embedded: Embedded | None = None
        self._pools: tuple[SyncPool, AsyncPool] | None = None

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
    def unique_for(self) -> float:
        return self.settings.unique_for.total_seconds()

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

    # --- running one operation in whatever transaction there is

    def run(self, steps: Steps[T], tx: object | None) -> T:
        """Run *steps* in the caller's transaction, or in one of our own."""
        tx = self._transaction(tx)
        if tx is not None:
            return txs.run(txs.sync_tx(tx), steps)
        return self.run_alone(steps)

    async def arun(self, steps: Steps[T], tx: object | None) -> T:
        """:meth:`run` for async code."""
        tx = self._transaction(tx)
        if tx is not None:
            return await txs.arun(txs.async_tx(tx), steps)
        return await self.arun_alone(steps)

    def run_in(self, steps: Steps[T], tx: object | None) -> T:
        """Run *steps* in the caller's transaction; there must be one."""
        return self.run(steps, self._required(tx))

    async def arun_in(self, steps: Steps[T], tx: object | None) -> T:
        """:meth:`run_in` for async code."""
        return await self.arun(steps, self._required(tx))

    def run_alone(self, steps: Steps[T]) -> T:
        """Run *steps* in a transaction of our own, which commits."""
        _refuse_on_loop()
        with self._pool()[0].connection() as conn:
            return txs.commit(conn, steps)

    async def arun_alone(self, steps: Steps[T]) -> T:
        """:meth:`run_alone` for async code."""
        async with self._pool()[1].connection() as conn:
            return await txs.acommit(conn, steps)

    def _required(self, tx: object | None) -> object:
        tx = self._transaction(tx)
        if tx is None:
            raise Refused("tx: is missing; give the transaction that what you do here shall commit with", field="tx")
        return tx

    def _transaction(self, tx: object | None) -> object | None:
        return self._default_tx() if tx is None and self._default_tx is not None else tx

    # --- enqueue

    def enqueue_request(self, request: Request, tx: object | None) -> Job[Any]:
        """Write one job."""
        ticket = self.run(door.enqueue(self.sql, request), tx)
        return self._job_of(request, ticket) if ticket.created else self._existing(ticket, tx)

    async def aenqueue_request(self, request: Request, tx: object | None) -> Job[Any]:
        """:meth:`enqueue_request` for async code."""
        ticket = await self.arun(door.enqueue(self.sql, request), tx)
        return self._job_of(request, ticket) if ticket.created else await self._aexisting(ticket, tx)

    def enqueue_many(self, calls: Iterable[Call[R]], *, tx: object | None = None) -> list[Job[R]]:
        """Write many jobs in one go, in order: all of them or none."""
        requests = _requests(calls)
        tickets = self.run(door.enqueue_many(self.sql, requests), tx)
        return [self._job_of(request, ticket) for request, ticket in zip(requests, tickets, strict=True)]

    async def aenqueue_many(self, calls: Iterable[Call[R]], *, tx: object | None = None) -> list[Job[R]]:
        """:meth:`enqueue_many` for async code."""
        requests = _requests(calls)
        tickets = await self.arun(door.enqueue_many(self.sql, requests), tx)
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
        return replace(self._found(self.run(door.find(self.sql, ticket.id), tx), ticket.id), created=False)

    async def _aexisting(self, ticket: Ticket, tx: object | None) -> Job[Any]:
        return replace(self._found(await self.arun(door.find(self.sql, ticket.id), tx), ticket.id), created=False)

    # --- looking at jobs

    def job(self, id: int) -> Job[Any]:
        """The job with this id, live or settled."""
        return self._found(self.run(door.find(self.sql, id), None), id)

    async def ajob(self, id: int) -> Job[Any]:
        """:meth:`job` for async code."""
        return self._found(await self.arun(door.find(self.sql, id), None), id)

    def _found(self, record: Record | None, id: int) -> Job[Any]:
        if record is None:
            raise NotFound(f"there is no job {id}; it may have been purged")
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
        while (outcome := self.run(door.outcome(self.sql, job.id), None)) is None:
            if time.monotonic() >= deadline:
                raise ResultPending(f"job {job.id} was not settled within {timeout}")
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(POLL_MOST, pause * 2)
        return self._result(job, outcome)

    async def aresult_of(self, job: Job[Any], timeout: Duration) -> Any:
        """:meth:`result_of` for async code."""
        deadline = time.monotonic() + duration(timeout, field="timeout").total_seconds()
        pause = POLL_FIRST
        while (outcome := await self.arun(door.outcome(self.sql, job.id), None)) is None:
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
        self._check_cancelled(job, self.run(door.cancel(self.sql, job.id), None))
        return self.job(job.id)

    async def acancel_job(self, job: Job[Any]) -> Job[Any]:
        """:meth:`cancel_job` for async code."""
        self._check_cancelled(job, await self.arun(door.cancel(self.sql, job.id), None))
        return await self.ajob(job.id)

    def _check_cancelled(self, job: Job[Any], state: str | None) -> None:
        if state is None:
            raise NotFound(f"there is no job {job.id}; it may have been purged")
        if state == "running":
            raise Refused(f"job {job.id} is running; only pending jobs can be cancelled for now")
        if state not in ("pending", "cancelled"):
            raise Refused(f"job {job.id} is {state} already")


def _requests(calls: Iterable[Call[Any]]) -> list[Request]:
    requests = []
    for call in calls:
        if not isinstance(call, Call):
            raise TypeError(f"enqueue_many: expected task.bind(…), got {type(call).__name__}")
        if call.tx is not None:
            raise Refused(
                "enqueue_many: give the transaction as enqueue_many(…, tx=…), not to single calls", field="tx"
            )
        requests.append(call.request)
    return requests


def _refuse_on_loop() -> None:
    """A sync call on a running event loop would block it: say so instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Refused("this is a sync call on a running event loop; await the async one (aenqueue, ajob, aresult, …)")
