"""One attempt: a claimed job goes in, an outcome comes out, whatever the handler does."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Any

from msgspec import Struct

from kept.durations import duration, moment
from kept.errors import Defer, LeaseLost, Refused, Skip
from kept.jobs.context import Context, Terms
from kept.jobs.declaration import Declaration
from kept.jobs.model import NOTHING, Claimed, Completed, Deferred, LostLease, Outcome, Raised, Returned, Skipped
from kept.jobs.payload import encode_result
from kept.jobs.retry import type_name
from kept.jobs.text import attribute_of, code_of, detail_of, message_of

AGAIN_AFTER = 30.0  # seconds before a job that could not be started is tried again


class Attempt(Struct, eq=False):
    """An attempt under way. :meth:`interrupt` ends it from outside with a verdict of ours."""

    job: Claimed
    declaration: Declaration
    terms: Terms
    began: float = 0.0
    deadline: float = inf  # its time runs once the handler does
    told_at: float = inf  # when it was first told to stop
    verdict: Outcome | None = None
    leftover: Future[Any] | None = None  # a thread that did not stop when it was told to
    context: Context | None = None  # the handler's, if it takes one
    rest: deque[Claimed] | None = None  # what is to run after it, one after the other: jobs of the same order key
    _task: asyncio.Task[Any] | None = None  # that runs it

    @property
    def duration(self) -> float:
        """Seconds since it began."""
        return monotonic() - self.began

    @property
    def completed(self) -> bool:
        """Whether the handler said that it settled the job itself."""
        return self.context is not None and self.context.completed

    def begin(self, now: float) -> None:
        """The handler starts: its time runs from *now*."""
        self.began = now
        self.deadline = now + self.terms.timeout

    def interrupt(self, verdict: Outcome) -> None:
        """Cancel the handler; the attempt comes to *verdict*, whatever the handler says then."""
        if self.verdict is None:
            self.verdict = verdict
            self.told_at = monotonic()
        if self._task is not None:
            self._task.cancel()

    async def run(self, threads: Executor, task: asyncio.Task[Any] | None, now: float) -> Outcome:
        """Run the handler to its end in *task*, the one that calls this *now*.

        One coroutine for all of it: with four, each passing its result up, a job that does nothing takes twice as long.
        """
        if self.verdict is not None:
            return self.verdict
        self.begin(now)
        self._task = task
        declaration = self.declaration
        try:
            arguments = declaration.signature.decode(self.job.payload)
        except Refused as error:
            return self._judged(Raised("invalid_arguments", message_of(error), retryable=False))
        except Defer as error:  # readable, but not by this code yet
            return self._judged(outcome_of(error, now=self.job.claimed_at))
        try:
            args: tuple[Context, ...] = ()
            if declaration.takes_context:
                self.context = Context(self.job, self.terms)
                args = (self.context,)
            if declaration.is_async:
                returned = await declaration.handler(*args, **arguments)
            else:
                returned = await self._in_thread(threads, args, arguments)
            outcome = NOTHING if returned is None and not self.completed else self._returned(returned)
        except asyncio.CancelledError as error:
            outcome = cancelled(error)
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            # The database's clock, as far as we can tell it: the one that will compare it with due_at.
            outcome = outcome_of(error, now=self.job.claimed_at + timedelta(seconds=self.duration))
        return self._judged(outcome)

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
            return self._judged(cancelled(error))
        except Exception as error:  # noqa: BLE001  # no process to be had: not the job's fault, so not charged
            stop()
            return self._judged(Deferred(AGAIN_AFTER, message_of(error)))

    async def _in_thread(self, threads: Executor, args: tuple[Context, ...], arguments: dict[str, Any]) -> object:
        call = contextvars.copy_context().run
        future = threads.submit(call, _contained, self.declaration.handler, args, arguments)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self.leftover = future
            raise

    def _returned(self, returned: object) -> Outcome:
        if self.completed:
            return Completed()
        try:
            return Returned(encode_result(returned, limit=self.terms.limit))
        except Refused as error:
            return Raised("unserialisable_result", message_of(error))

    def _judged(self, outcome: Outcome) -> Outcome:
        """Our verdict, if there is one. Cancellations end here, even if swallowed: the task goes on to other jobs."""
        task, self._task = self._task, None
        while task is not None and task.cancelling():
            task.uncancel()
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


def cancelled(error: asyncio.CancelledError) -> Raised:
    """A handler that was cancelled, and not by us."""
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
