"""What a runner's function is given: its budget, its shard, and a fence for its own transactions."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

from kept.db.queries import Queries
from kept.db.tx import arun, async_tx, run, sync_tx
from kept.errors import LeaseLost, Refused
from kept.loggers import logger
from kept.runners import store
from kept.runners.model import Lease, Place


class Budget:
    """What a pass may still use. Safe to share between threads."""

    def __init__(self, items: int, seconds: float) -> None:
        self._items = items
        self._deadline = monotonic() + seconds
        self._stopped = False
        self._changing = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds left; 0 when the pass was told to stop."""
        return 0.0 if self._stopped else max(0.0, self._deadline - monotonic())

    @property
    def items(self) -> int:
        """Items left, whatever the time."""
        return self._items

    @property
    def left(self) -> int:
        """Items that may still be handled: 0 as soon as the time is over or the pass was told to stop."""
        return self._items if self.seconds > 0 else 0

    def spend(self, items: int = 1) -> int:
        """Note that so many were handled; what is left then."""
        if isinstance(items, bool) or not isinstance(items, int) or items < 0:
            raise Refused(f"spend: {items!r} is not a number of items", field="items")
        with self._changing:
            self._items = max(0, self._items - items)
        return self.left

    def stop(self) -> None:
        """Leave nothing: a function in a thread cannot be told in another way."""
        self._stopped = True


class RunnerContext:
    """One pass of one runner."""

    __slots__ = ("_lease", "_place", "_sql", "budget")

    def __init__(self, place: Place, lease: Lease, budget: Budget, sql: Queries) -> None:
        self._place = place
        self._lease = lease
        self._sql = sql
        self.budget = budget

    @property
    def name(self) -> str:
        """The runner's name."""
        return self._place.name

    @property
    def run(self) -> int:
        """The id of this run, as ``kept runs show`` takes it."""
        return self._lease.run

    @property
    def shard_index(self) -> int:
        """Which part of the work is meant, from 0."""
        return self._place.index

    @property
    def shard_count(self) -> int:
        """How many parts there are; 1 for a singleton and where there are no shards."""
        return self._place.count

    @property
    def logger(self) -> Any:
        """A structlog logger that names the runner and its run in every line."""
        return logger("kept.runner", {"runner": self.name, "run": self.run})

    def fence(self, tx: object) -> None:
        """Make sure that this pass still holds its slot, and does until the transaction *tx* ends.

        Raises :class:`LeaseLost` otherwise; let it propagate, so that your transaction rolls back.
        """
        self._check(ours=run(sync_tx(tx), store.fence(self._sql, self._lease)))

    async def afence(self, tx: object) -> None:
        """:meth:`fence` for async code."""
        self._check(ours=await arun(async_tx(tx), store.fence(self._sql, self._lease)))

    def _check(self, *, ours: bool) -> None:
        if not ours:
            self.budget.stop()
            raise LeaseLost(run=self.run, runner=self.name, worker=str(self._lease.worker))
