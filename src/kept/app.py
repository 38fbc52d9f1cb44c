"""The App: what a program declares, and the workers that run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from kept.config import Settings
from kept.durations import Duration
from kept.jobs import door
from kept.jobs.handle import Job
from kept.jobs.payload import check_name
from kept.loading import locate
from kept.outbox.inbox.inbox import Inbox
from kept.scheduling import Scheduling
from kept.signals import JobsSettled, Signal
from kept.tasks import MOST_QUEUE
from kept.worker.post import Plan
from kept.worker.worker import Worker, tick_once


class App(Scheduling):
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
        super().__init__(database, settings, default_tx)
        self._imports = tuple(imports)
        self._inboxes: dict[tuple[str, Duration | None, str | None], Inbox] = {}
        self._location: str | None = None
        self._made_in = str(sys._getframe(1).f_globals.get("__name__", ""))

    def inbox(self, consumer: str, *, ttl: Duration | None = None, redis: str | None = None) -> Inbox:
        """The events that *consumer* has handled, so that each is handled once: ``inbox.once(event_id, tx)``.

        *ttl* is how long they are remembered (KEPT_INBOX_TTL); *redis* is the URL of a Redis that accelerates.
        """
        asked = (consumer, ttl, redis)
        if asked not in self._inboxes:
            self._inboxes[asked] = Inbox(self, consumer, ttl=ttl, redis=redis)
        return self._inboxes[asked]

    def load_imports(self) -> None:
        """Import the modules named by *imports*, so that all tasks are declared."""
        for module in self._imports:
            importlib.import_module(module)

    # --- where it is, and by which settings it runs

    @property
    def location(self) -> str | None:
        """Where another process finds this App, as ``module:name``; None if it cannot."""
        return self._location or locate(self, self._made_in)

    def configure(self, settings: Settings, location: str | None = None) -> None:
        """Put these settings in force, as a command line does; a database they name wins over the App's own."""
        self._settings = settings
        self._database = settings.database or self._database
        self._location = location

    def close(self) -> None:
        """Close what was opened; the App can be used again."""
        for inbox in self._inboxes.values():
            inbox.close()
        super().close()

    async def aclose(self) -> None:
        """:meth:`close` for async code."""
        for inbox in self._inboxes.values():
            await inbox.aclose()
        await super().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def lifespan(self, _asgi: object = None) -> AsyncIterator[None]:
        """For ASGI apps: ``FastAPI(lifespan=app.lifespan)`` runs a worker beside the requests and stops it after."""
        async with self, self.worker():
            yield

    # --- working

    def plan(self, *, kept: bool = True, once: bool = False, own: bool = True, **changes: Any) -> Plan:
        """What a worker of this App is to do, with runners of its *own* or without; *changes* replace settings."""
        self.load_imports()
        settings = replace(self.settings, **changes)
        for queue in settings.queues or ():
            check_name(queue, what="queue", most=MOST_QUEUE)
        return Plan(
            registry=self.registry,
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            definitions=self.definitions,
            settings=settings,
            database=self.database,
            runners=tuple(self.runners.values()) if own else (),
            location=self.location,
            # Only where a command was told where the App is: a script that made it must not run again for a spare.
            spare=settings.spare and self._location is not None and not once,
            kept=kept,
            once=once,
        )

    def worker(self, *, queues: Iterable[str] | None = None, concurrency: int | None = None) -> Worker:
        """A worker inside this process: ``async with app.worker(): …``."""
        changes: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
        if queues is not None:
            changes["queues"] = tuple(queues)
        return Worker(self.plan(**changes), self.signals)

    async def drain(self) -> list[Job[Any]]:
        """Run all jobs that are due, here and now, and return those that were settled: for tests. Runs no runner."""
        settled: list[int] = []

        def note(signal: Signal) -> None:
            if isinstance(signal, JobsSettled):
                settled.extend(each.job_id for each in signal.jobs if each.state != "pending")

        stop = self.signals.subscribe(note)
        try:
            hour = timedelta(hours=1)
            limits: dict[str, Any] = {"lease": hour, "tick_overall": hour, "tick_runner": hour}
            limits |= {"tick_items": 2**31 - 1, "tick_runners": None}
            await tick_once(self.plan(kept=False, once=True, own=False, **limits), self.signals)
        finally:
            stop()
        records = await self.arun(door.find_many(self.sql, settled), None)
        return [self._found(record, record.id) for record in records]
