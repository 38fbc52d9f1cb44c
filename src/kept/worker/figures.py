"""Figures: what no worker can tell of itself, read from the database now and then by those that serve metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

import psycopg

from kept.jobs.text import message_of
from kept.schedules.runner import Firing
from kept.signals import RunFigures, RunnerFailed, Signal
from kept.worker.post import Post
from kept.worker.tick import Budget, Unreachable

EVERY = 15.0  # seconds: Prometheus scrapes as often, or less
SHARE = 100  # and never more than a hundredth of the worker's time
MOST = 10_000  # due jobs of a lane that are counted; a backlog of a million is not more alarming

MOST_NAMES = 500  # runners, and schedules, whose last success is shown

Source = Callable[[Post], Awaitable[Signal]]


async def _kernel(post: Post) -> Signal:
    return await post.store.figures(MOST)


async def _schedules(post: Post) -> Signal:
    return await _firing(post).figures()


async def _runs(post: Post) -> Signal:
    succeeded = [*await post.own.store.successes(MOST_NAMES), *await _firing(post).successes(MOST_NAMES)]
    return RunFigures(succeeded=succeeded)


def _firing(post: Post) -> Firing:
    return Firing(post.link, post.signals, post.plan.settings.schema)


# Each feature that has something to show adds a source, and a signal for the metrics to take.
SOURCES: tuple[Source, ...] = (_kernel, _schedules, _runs)


class FigureReader:
    """A runner that asks each source and reports what it says. A source that fails is told of; work goes on."""

    def __init__(self, post: Post, sources: Sequence[Source] = SOURCES) -> None:
        self._post = post
        self._sources = sources
        self._next = 0.0

    def due(self) -> bool:
        return monotonic() >= self._next

    async def read(self, _budget: Budget) -> int:
        """Ask every source if it is time to. Nothing that counts as work, so that an idle worker stays idle."""
        if self.due():
            started = monotonic()
            for source in self._sources:
                await self._ask(source)
            self._next = monotonic() + max(EVERY, SHARE * (monotonic() - started))
        return 0

    async def _ask(self, source: Source) -> None:
        try:
            self._post.signals.report(await source(self._post))
        except psycopg.errors.QueryCanceled as error:  # took too long, but was answered: the connection is fine
            self._tell(error)
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001  # the tick would rest for half a minute, and the jobs with it
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        told = f"{type(error).__name__}: {message_of(error)}"
        self._post.signals.report(RunnerFailed(runner="figures", error=told))
