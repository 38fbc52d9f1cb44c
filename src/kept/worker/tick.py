"""One pass over the runners, in order, each within its budget. The only place where background work starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import psycopg

from kept.errors import Unavailable
from kept.jobs.text import message_of
from kept.runners.rules import chosen
from kept.signals import RunnerFailed, Signals, TickDone

# A session that turned read-only is as good as lost: the primary is elsewhere by now, or will be.
Unreachable = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    Unavailable,
    OSError,
)


@dataclass(slots=True)
class Budget:
    """What a runner may still use: items (None: no limit) and time."""

    items: int | None
    deadline: float  # monotonic

    @property
    def seconds(self) -> float:
        return max(0.0, self.deadline - monotonic())


@dataclass(frozen=True, slots=True)
class Report:
    """What one runner did."""

    runner: str
    items: int
    seconds: float
    error: str | None = None
    counters: Mapping[str, int | float] = field(default_factory=dict)
    note: str | None = None  # why it did nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runner may return instead of a number of items."""

    counters: Mapping[str, int | float] = field(default_factory=dict)
    note: str | None = None
    error: str | None = None


Runner = Callable[[Budget], Awaitable[int | Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of a pass, in seconds and items."""

    overall: float = 480.0
    runner: float = 60.0
    items: int | None = None


class Tick:
    """Runs the configured runners once per call; one call at a time."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        signals: Signals,
        limits: Limits,
        order: Sequence[str] | None = None,
        *,
        patient: Collection[str] = (),
        due: Mapping[str, Callable[[], bool]] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runners = {name: runners[name] for name in chosen(order, runners)}
        self._patient = patient  # these stop by themselves when their budget is over, and are not cut off
        self._due = due or {}  # what needs no pass is not given one: a wake-up has to get through quickly
        self._stopped = stopped  # no further runner is begun then
        self._signals = signals
        self._limits = limits
        self._lock = asyncio.Lock()
        self.reports: list[Report] = []  # of the last pass: of one that broke off, what was done before

    async def __call__(self) -> list[Report]:
        """One pass. A runner that fails is reported and does not stop the others; a lost connection ends the pass."""
        async with self._lock:
            started = monotonic()
            self.reports = reports = []
            for name, runner in self._runners.items():
                if name in self._due and not self._due[name]():
                    continue
                if self._stopped():
                    reports.append(Report(name, 0, 0.0, note="skipped, the tick was told to stop"))
                    continue
                budget = self._budget(started)
                if budget.seconds <= 0:
                    reports.append(Report(name, 0, 0.0, note="skipped, the tick's time is over"))
                    continue
                reports.append(await self._run(name, runner, budget))
            items = sum(report.items for report in reports)
            if items:
                self._signals.report(TickDone(duration=monotonic() - started, items=items))
            return reports

    def _budget(self, started: float) -> Budget:
        now = monotonic()
        return Budget(self._limits.items, min(now + self._limits.runner, started + self._limits.overall))

    async def _run(self, name: str, runner: Runner, budget: Budget) -> Report:
        started = monotonic()
        try:
            async with asyncio.timeout(None if name in self._patient else budget.seconds):
                answer = await runner(budget)
        except TimeoutError:
            # Cut off in the middle of a statement: whether it took effect is unknown, as after a lost connection.
            raise Unavailable(f"the runner {name} overran its budget") from None
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001  # a runner may fail in any way; the others go on
            told = f"{type(error).__name__}: {message_of(error)}"
            self._signals.report(RunnerFailed(runner=name, error=told))
            return Report(name, 0, monotonic() - started, told)
        taken = monotonic() - started
        if isinstance(answer, Answer):
            return Report(name, 0, taken, answer.error, answer.counters, answer.note)
        return Report(name, answer, taken)
