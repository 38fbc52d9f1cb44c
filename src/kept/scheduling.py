"""Schedules as a program sees them: declared beside its tasks, or made at run time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Unpack, overload

from kept.config import Settings
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.durations import Duration
from kept.errors import Refused
from kept.jobs.retry import Retry
from kept.recurring import Recurring
from kept.schedules.book import Asked, Schedules, define
from kept.schedules.declared import Definitions
from kept.schedules.model import Rule
from kept.tasks import AsyncTask, Call, Enqueuer, SyncTask, TaskDecorator


class Scheduling(Recurring):
    """Where schedules are declared."""

    def __init__(
        self,
        database: str | None,
        settings: Settings | None,
        default_tx: Callable[[], object | None] | None,
    ) -> None:
        super().__init__(database, settings, default_tx)
        self.definitions = Definitions()

    @property
    def schedules_sql(self) -> Queries:
        return load_queries("kept.schedules", self.settings.schema)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the database, to be added, changed and asked for at run time."""
        return Schedules(self, lambda: self.schedules_sql)

    @overload
    def schedule(
        self,
        rule: Rule,
        *,
        name: str | None = None,
        owner: str | None = None,
        description: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        **asked: Unpack[Asked],
    ) -> TaskDecorator: ...
    @overload
    def schedule(
        self,
        rule: Rule,
        *,
        call: Call[Any],
        name: str | None = None,
        owner: str | None = None,
        description: str | None = None,
        **asked: Unpack[Asked],
    ) -> None: ...

    def schedule(
        self,
        rule: Rule,
        *,
        call: Call[Any] | None = None,
        name: str | None = None,
        owner: str | None = None,
        description: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        **asked: Unpack[Asked],
    ) -> TaskDecorator | None:
        """Declare a schedule: ``@app.schedule(cron("17 3 * * *", tz="America/Santiago"))`` on a function or a task.

        On a function it declares the task as well, by the schedule's name. ``app.schedule(every("1h"),
        call=report.bind(7), name="report-7")`` schedules an existing task with arguments. *start*, *end*, *blackout*,
        *jitter*, *misfire*, *most*, *within* and *overlap* say when it fires; see docs/schedules.md.
        """
        options = {"queue": queue, "retry": retry, "timeout": timeout, "priority": priority}
        given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}

        def declare(what: Call[Any], default: str, about: str | None) -> None:
            text = about if description is None else description
            self.definitions.add(define(name or default, rule, what, owner=owner, description=text, **asked))

        if call is not None:
            _refuse(given, "call")
            declare(call, call.request.task, None)
            return None

        def decorate(handler: Any) -> AsyncTask[Any, Any] | SyncTask[Any, Any]:
            if isinstance(handler, Enqueuer):
                _refuse(given, "a task")
                task: Any = handler
            else:
                task = self.task(name=name, **given)(handler)
            declare(task.bind(), task.name, _first_line(handler))
            return task  # type: ignore[no-any-return]  # one of the two

        return decorate  # type: ignore[return-value]  # its overloads say which of the two comes back


def _refuse(given: dict[str, Any], what: str) -> None:
    for option in given:
        raise Refused(f"{option}: is the task's own; with {what} it is not for the schedule to say", field=option)


def _first_line(handler: object) -> str | None:
    text = (getattr(handler, "__doc__", None) or "").strip()
    return text.splitlines()[0][:200] if text else None
