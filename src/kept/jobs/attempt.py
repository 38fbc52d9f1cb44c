"""One attempt: a claimed job goes in, an outcome comes out, whatever the handler does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Any

from kept.durations import duration, moment
from kept.errors import Defer, LeaseLost, Refused, Skip
from kept.jobs.context import Context
from kept.jobs.declaration import Declaration
from kept.jobs.model import Claimed, Completed, Deferred, Lane, LostLease, Outcome, Raised, Returned, Skipped
from kept.jobs.payload import encode_result
from kept.jobs.retry import type_name
from kept.jobs.text import attribute_of, code_of, detail_of, message_of

AGAIN_AFTER = 30.0  # seconds before a job that could not be started is tried again


class Attempt:
    """An attempt under way. :meth:`interrupt` ends it from outside with a verdict of ours."""

    __slots__ = (
        "_task", "began", "context", "deadline", "declaration", "job", "lane", "leftover", "told_at", "verdict",
    )  # fmt: skip

    def __init__(self, job: Claimed, lane: Lane, declaration: Declaration, context: Context) -> None:
        self.job = job
        self.lane = lane
        self.declaration = declaration
        self.context = context
        self.began = monotonic()
        self.deadline = inf  # its time runs once the handler does
        self.told_at = inf  # when it was first told to stop
        self.verdict: Outcome | None = None
        self.leftover: Future[Any] | None = None  # a thread that did not stop when it was told to
        self._task: asyncio.Task[Any] | None = None

    @property
    def duration(self) -> float:
        """Seconds since it began."""
        return monotonic() - self.began

    def begin(self) -> None:
        """The handler starts: its time runs from now."""
        self.began = monotonic()
        self.deadline = self.began + self.declaration.timeout

    def interrupt(self, verdict: Outcome) -> None:
        """Cancel the handler; the attempt comes to *verdict*, whatever the handler says then."""
        if self.verdict is None:
            self.verdict = verdict
            self.told_at = monotonic()
        if self._task is not None:
            self._task.cancel()

    async def run(self, threads: Executor, *, result_limit: int) -> Outcome:
        """Run the handler to its end."""
        if self.verdict is not None:
            return self.verdict
        self.begin()
        self._task = asyncio.current_task()
        try:
            return self._judged(await self._outcome(threads, result_limit))
        finally:
            self._task = None

    async def run_elsewhere(self, elsewhere: Coroutine[Any, Any, Outcome], *, stop: Callable[[], None]) -> Outcome:
        """Let *elsewhere* run the handler; an interruption ends it with *stop*."""
        if self.verdict is not None:
            elsewhere.close()
            return self.verdict
        self._task = asyncio.current_task()
        try:
            return self._judged(await elsewhere)
        except asyncio.CancelledError as error:
            stop()
            return self._judged(_cancelled(error))
        except Exception as error:  # noqa: BLE001  # no process to be had: not the job's fault, so not charged
            stop()
            return self._judged(Deferred(AGAIN_AFTER, message_of(error)))
        finally:
            self._task = None

    async def _outcome(self, threads: Executor, result_limit: int) -> Outcome:
        try:
            arguments = self.declaration.signature.decode(self.job.payload)
        except Refused as error:
            return Raised("invalid_arguments", message_of(error), retryable=False)
        try:
            return self._returned(await self._call(arguments, threads), result_limit)
        except asyncio.CancelledError as error:
            return _cancelled(error)
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            # The database's clock, as far as we can tell it: the one that will compare it with due_at.
            return outcome_of(error, now=self.job.claimed_at + timedelta(seconds=self.duration))

    async def _call(self, arguments: dict[str, Any], threads: Executor) -> object:
        args = (self.context,) if self.declaration.takes_context else ()
        if self.declaration.is_async:
            return await self.declaration.handler(*args, **arguments)
        call = contextvars.copy_context().run
        future = threads.submit(call, _contained, self.declaration.handler, args, arguments)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self.leftover = future
            raise

    def _returned(self, returned: object, result_limit: int) -> Outcome:
        if self.context.completed:
            return Completed()
        try:
            return Returned(encode_result(returned, limit=result_limit))
        except Refused as error:
            return Raised("unserialisable_result", message_of(error))

    def _judged(self, outcome: Outcome) -> Outcome:
        """Our verdict, if there is one. Cancellations end here, even if swallowed: the task goes on to other jobs."""
        while self._task is not None and self._task.cancelling():
            self._task.uncancel()
        return outcome if self.verdict is None else self.verdict


def outcome_of(error: BaseException, *, now: datetime) -> Outcome:
    """What an exception that left a handler at *now* means."""
    match error:
        case Defer():
            return _deferred(error, now)
        case Skip():
            return Skipped(_reason(error))
        case LeaseLost():
            return LostLease()
        case _:
            return _raised(error)


def timed_out(seconds: float) -> Raised:
    """The verdict on a handler that ran out of time."""
    return Raised("timeout", f"the attempt took longer than {seconds:g} s", types=_types(TimeoutError))


def _cancelled(error: asyncio.CancelledError) -> Raised:
    return Raised("cancelled", "the handler was cancelled from inside", detail=detail_of(error))


def _deferred(error: Defer, now: datetime) -> Outcome:
    until = attribute_of(error, "delay")
    try:
        if isinstance(until, datetime):
            delay = (moment(until, field="Defer") - now).total_seconds()
        else:
            delay = duration(until, field="Defer").total_seconds()
    except (Refused, TypeError) as bad:
        return Raised("invalid_defer", message_of(bad), detail=detail_of(error))
    # Not sooner than a tenth of a second: a handler that always defers must not spin.
    return Deferred(max(delay, 0.1), _reason(error))


def _reason(error: Defer | Skip) -> str:
    reason = attribute_of(error, "reason")
    return "" if reason is None else message_of(reason)


def _types(kind: type[BaseException]) -> tuple[str, ...]:
    return tuple(type_name(each) for each in kind.__mro__[:-1])


def _raised(error: BaseException) -> Raised:
    retryable = attribute_of(error, "retryable")
    return Raised(
        code=code_of(error),
        message=message_of(error),
        types=_types(type(error)),
        detail=detail_of(error),
        retryable=retryable if isinstance(retryable, bool) else None,
        after=_after(error),
    )


def _after(error: BaseException) -> float | None:
    after = attribute_of(error, "after")
    if after is None:
        return None
    try:
        return duration(after, field="after").total_seconds()
    except (Refused, TypeError):
        return None  # an exception of the user's own that means something else by it


def _contained(handler: Callable[..., object], args: tuple[Any, ...], arguments: dict[str, Any]) -> object:
    """Call a plain function in a thread. What ends generators cannot cross a future and travels as a RuntimeError."""
    try:
        return handler(*args, **arguments)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
