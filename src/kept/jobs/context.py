"""What a handler is given besides its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from kept.db.queries import Queries
from kept.db.tx import Steps, arun, async_tx, run, sync_tx
from kept.errors import LeaseLost, Refused
from kept.jobs import door
from kept.jobs.handle import Job
from kept.jobs.model import Claimed, Lane
from kept.jobs.payload import encode_result
from kept.loggers import job_logger

SCHEDULE, SLOT = "kept-schedule", "kept-slot"  # headers of a job that a schedule became


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every job of a lane in this process. Without *sql* there is no job behind the call."""

    lane: Lane
    timeout: float  # seconds
    sql: Queries | None
    limit: int  # bytes of a result


class Context:
    """One attempt at one job."""

    __slots__ = ("_claimed", "_completed", "_logger", "_terms")

    def __init__(self, claimed: Claimed, terms: Terms) -> None:
        self._claimed = claimed
        self._terms = terms
        self._completed = False
        self._logger: Any = None

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self._claimed.attempt

    @property
    def job(self) -> Job[Any]:
        """The job as it was claimed."""
        claimed = self._claimed
        return Job(
            id=claimed.id,
            task=self._terms.lane.task,
            queue=self._terms.lane.queue,
            state="running",
            key=claimed.key,
            attempt=claimed.attempt,
            priority=claimed.priority,
            created_at=claimed.created_at,
            due_at=claimed.due_at,
            retry_of=claimed.retry_of,
            headers=self._headers,
        )

    @property
    def deadline(self) -> datetime:
        """When this attempt runs out of time, on the database's clock, counted from the claim."""
        return self._claimed.claimed_at + timedelta(seconds=self._terms.timeout)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this job and for no other job, also after a failover repeated its id."""
        micros = int(self._claimed.created_at.timestamp() * 1_000_000)
        return f"kept-{self._claimed.id}-{micros:x}"

    @property
    def schedule(self) -> str | None:
        """The schedule that this job comes from, if it comes from one."""
        return self._headers.get(SCHEDULE)

    @property
    def slot(self) -> datetime | None:
        """The nominal time: the slot of its schedule that this job stands for, however late it runs."""
        told = self._headers.get(SLOT)
        return None if told is None else datetime.fromisoformat(told)

    @property
    def _headers(self) -> dict[str, str]:
        return msgspec.json.decode(self._claimed.headers) if self._claimed.headers else {}

    @property
    def logger(self) -> Any:
        """A structlog logger that names the job in every line."""
        if self._logger is None:
            self._logger = job_logger(self._claimed.id, self._terms.lane.task, self.attempt, self._terms.lane.queue)
        return self._logger

    @property
    def completed(self) -> bool:
        """Whether :meth:`complete` was called in this attempt."""
        return self._completed

    def complete(self, tx: object, result: object = None) -> None:
        """Settle the job as done inside the handler's own transaction: both commit, or neither.

        Raises :class:`LeaseLost` if the lease is gone; let it propagate, so that your transaction rolls back.
        """
        steps = self._complete(encode_result(result, limit=self._terms.limit))
        if steps is not None:
            self._check(settled=run(sync_tx(tx), steps))
        self._completed = True

    async def acomplete(self, tx: object, result: object = None) -> None:
        """:meth:`complete` for async code."""
        steps = self._complete(encode_result(result, limit=self._terms.limit))
        if steps is not None:
            self._check(settled=await arun(async_tx(tx), steps))
        self._completed = True

    def _complete(self, result: str | None) -> Steps[bool] | None:
        if self._completed:
            raise Refused("complete: this attempt has completed its job already")
        if self._terms.sql is None:  # called directly, for a test: there is no job to settle
            return None
        claimed = self._claimed
        return door.complete(
            self._terms.sql, id=claimed.id, attempt=claimed.attempt, worker=claimed.worker, result=result
        )

    def _check(self, *, settled: bool) -> None:
        if not settled:
            raise LeaseLost(job_id=self._claimed.id, attempt=self.attempt, worker=str(self._claimed.worker))
