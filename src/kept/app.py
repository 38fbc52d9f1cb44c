"""The App: what a program declares, and the workers that run it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from kept.config import Settings
from kept.durations import Duration, duration
from kept.errors import Refused
from kept.events import Events
from kept.jobs import door
from kept.jobs.declaration import Declaration, wants_context
from kept.jobs.handle import Job
from kept.jobs.payload import Signature, check_name
from kept.jobs.retry import Retry
from kept.loading import locate
from kept.outbox.handling import EventSignature
from kept.outbox.rules import check_pattern
from kept.outbox.subscriptions import Subscription
from kept.signals import JobsSettled, Signal, Signals
from kept.tasks import MOST_QUEUE, MOST_TASK, AsyncTask, SyncTask, TaskDecorator, check_priority, is_async
from kept.worker.post import Plan
from kept.worker.worker import Worker, tick_once

H = TypeVar("H", bound=Callable[..., Any])


class App(Events):
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
        self.signals = Signals()
        self._imports = tuple(imports)
        self._location: str | None = None
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

    def on(
        self,
        *patterns: str,
        name: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
    ) -> Callable[[H], H]:
        """Declare a handler of events: ``@app.on("invoice.created")``, or of all that begin so: ``"invoice.*"``.

        Every event becomes one job for every handler, with retries of its own. The function stays as it is.
        """

        wanted = _patterns(patterns)

        def decorate(handler: H) -> H:
            declaration = self._declare(handler, name, (), queue, retry, timeout, priority, self._event_signature)
            self.subscriptions.add(Subscription(declaration.name, wanted, declaration.queue))
            return handler

        return decorate

    def _event_signature(self, handler: Callable[..., Any], *, task: str, takes_context: bool) -> EventSignature:
        return EventSignature(handler, task=task, takes_context=takes_context, types=self.event_types)

    def _declare(
        self,
        handler: Callable[..., Any],
        name: str | None,
        aliases: Iterable[str],
        queue: str,
        retry: Retry | None,
        timeout: Duration | None,
        priority: int,
        signature: Callable[..., Signature] = Signature,
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
            signature=signature(handler, task=called, takes_context=takes_context),
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

    def plan(self, *, kept: bool = True, once: bool = False, **changes: Any) -> Plan:
        """What a worker of this App is to do; *changes* replace settings."""
        self.load_imports()
        settings = replace(self.settings, **changes)
        for queue in settings.queues or ():
            check_name(queue, what="queue", most=MOST_QUEUE)
        return Plan(
            registry=self.registry,
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            settings=settings,
            database=self.database,
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
        records = await self._arun(door.find_many(self.sql, settled), None)
        return [self._found(record, record.id) for record in records]


def _patterns(given: Iterable[str]) -> tuple[str, ...]:
    patterns = tuple(dict.fromkeys(map(check_pattern, given)))
    if not patterns:
        raise Refused("on: name the events to handle, as in @app.on('invoice.created')", field="pattern")
    return patterns
