"""One pass of one runner: a function goes in, an outcome comes out, whatever the function does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime
from time import monotonic
from typing import Any

from kept.durations import duration
from kept.errors import Defer, Refused, Skip
from kept.jobs.text import attribute_of, code_of, detail_of, message_of
from kept.runners import rules
from kept.runners.context import Budget, RunnerContext
from kept.runners.model import Counted, Failed, Lease, Lost, Outcome, Place, Postponed, RunnerDeclaration

TELL_AGAIN = 1.0  # seconds before a function that was cancelled is cancelled once more


class Pass:
    """A pass under way. :meth:`interrupt` ends it from outside; it is over when its function has really ended."""

    def __init__(
        self, declaration: RunnerDeclaration, place: Place, lease: Lease, budget: Budget, context: RunnerContext
    ) -> None:
        self.declaration = declaration
        self.place = place
        self.lease = lease
        self.budget = budget
        self.began = monotonic()
        self.verdict: Outcome | None = None
        self.told_at: float | None = None  # when it was first told to stop
        self._tell_at = 0.0  # not before is it told again: it may be tidying up
        self.sent = False  # its ending was sent before, and the answer never came
        self.again_at = 0.0  # not before is its ending written again
        self._given_up = False
        self._context = context
        self._task: asyncio.Task[None] | None = None

    @property
    def duration(self) -> float:
        """Seconds since it began."""
        return monotonic() - self.began

    @property
    def overran(self) -> bool:
        return self.verdict is None and self.budget.seconds <= 0

    def start(self, threads: Executor, ended: Callable[[Pass, Outcome], None]) -> asyncio.Task[None]:
        """Run the function; *ended* is told what came of it."""
        self._task = asyncio.create_task(self._run(threads, ended), name=f"kept runner {self.place.name}")
        return self._task

    def interrupt(self, verdict: Outcome) -> None:
        """Cancel the function, again if need be; the pass comes to *verdict*, whatever the function says then."""
        if self.verdict is None or isinstance(verdict, Lost):
            self.verdict = verdict
        self.told_at = self.told_at or monotonic()
        self.budget.stop()
        if self._task is not None and self.declaration.is_async and monotonic() >= self._tell_at:
            self._tell_at = monotonic() + TELL_AGAIN
            self._task.cancel()

    def give_up(self) -> None:
        """The worker leaves: do not wait for a thread that does not end."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, threads: Executor, ended: Callable[[Pass, Outcome], None]) -> None:
        outcome: Outcome
        try:
            returned = await self._call() if self.declaration.is_async else await self._in_thread(threads)
            outcome = Counted(rules.counters_of(returned, self.place.name))
        except Refused as error:
            outcome = Failed(code_of(error), message_of(error))
        except asyncio.CancelledError:
            outcome = Failed("cancelled", "the runner was cancelled from inside")
        except BaseException as error:  # noqa: BLE001  # a function may raise anything, SystemExit included
            outcome = outcome_of(error)
        ended(self, outcome if self.verdict is None else self.verdict)

    async def _call(self) -> object:
        return await self.declaration.function(*self._arguments)

    async def _in_thread(self, threads: Executor) -> object:
        """The function's answer; a thread cannot be cancelled, so it is waited for whatever happens."""
        call = contextvars.copy_context().run
        future = asyncio.wrap_future(threads.submit(call, _contained, self.declaration.function, self._arguments))
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                if future.cancelled() or self._given_up:
                    raise
        return future.result()

    @property
    def _arguments(self) -> tuple[RunnerContext, ...]:
        return (self._context,) if self.declaration.takes_context else ()


def outcome_of(error: BaseException) -> Outcome:
    """What an exception that left a runner's function means."""
    match error:
        case Defer():
            until = attribute_of(error, "delay")
            return Postponed(None if isinstance(until, datetime) else _seconds(until))
        case Skip():
            return Postponed()
        case _:
            retryable = attribute_of(error, "retryable")
            return Failed(
                code_of(error),
                detail_of(error),
                retryable=retryable if isinstance(retryable, bool) else None,
                after=_seconds(attribute_of(error, "after")),
            )


def timed_out(pass_: Pass, seconds: float) -> Failed:
    """The verdict on a pass that used up its time."""
    return Failed("timeout", f"the runner {pass_.place.name} took longer than {seconds:g} s")


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    try:
        return duration(value, field="after").total_seconds()
    except (Refused, TypeError):
        return None  # an exception of the user's own that means something else by it


def _contained(function: Callable[..., object], arguments: tuple[Any, ...]) -> object:
    """Call a plain function in a thread. What ends generators cannot cross a future and travels as a RuntimeError."""
    try:
        return function(*arguments)
    except (StopIteration, GeneratorExit, asyncio.CancelledError) as error:
        raise RuntimeError(f"the runner raised {type(error).__name__}") from error
